// A daemon with a disk, and sessions that put blocks and say when they are durable.
//
// Ownership: a Node has its daemon, which is killed with it as by kill -9; what else is made
// borrows its session.
// Thread-safety: History from any thread; all else from one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/harness/blocks.h"
#include "bench/harness/harness.h"
#include "bench/harness/processes.h"
#include "storage/mutex.h"

namespace larder::bench {

inline constexpr size_t kRoundBlocks = 512;
inline constexpr size_t kAheadBlocks = 128;
inline constexpr double kDiskWait_s = 60;  // for anything that a disk does
inline constexpr char kAmpleDisk[] = "24GiB";

// All blocks are of 1 MiB.
[[nodiscard]] const BlockShape& Shape();
[[nodiscard]] constexpr double Mebibytes(uint64_t blocks) {
  return static_cast<double>(blocks << 20);
}

// A daemon over the directory `disk`, and an engine attached to it.
struct Node {
  std::unique_ptr<DaemonProcess> daemon;
  Attachment engine;
};
struct NodeConfig {
  std::string disk;
  ByteCount pool;
  std::string limit = kAmpleDisk;       // of the disk
  std::vector<std::string> flags = {};  // more of them
  bool whole_pool = true;               // wait until all of it is online
};
[[nodiscard]] absl::StatusOr<std::unique_ptr<Node>> StartNode(const NodeConfig& config);
// Another session at it.
[[nodiscard]] absl::StatusOr<Attachment> AttachTo(const Node& node, const std::string& engine_id);

// Asks every 2 ms until it is true; DeadlineExceeded with `what` after a minute.
[[nodiscard]] absl::Status WaitFor(const char* what,
                                   const std::function<absl::StatusOr<bool>()>& done);
// Until it says so of itself.
[[nodiscard]] absl::Status WaitForNode(
    const Node& node, const char* what,
    const std::function<bool(const DaemonProcess::Holdings&)>& done);
// Until the index has as many blocks, of all tiers.
[[nodiscard]] absl::Status WaitForBlocks(const Node& node, uint64_t blocks);

// Puts blocks of a new name each, in batches, and says when each was durable.
class Writer {
 public:
  // Another `part`: other names, also than those of another process over the same disk.
  explicit Writer(Attachment& engine, uint64_t part = 0);

  [[nodiscard]] Names Next(size_t blocks) { return MakeNames(engine_.seed, ++salt_ << 20, blocks); }
  [[nodiscard]] absl::Status Put(const Names& names);
  // One by one, each after before(its number): as an engine has them that computes.
  [[nodiscard]] absl::Status PutEach(const Names& names, const std::function<void(size_t)>& before);
  // Until that many more are.
  [[nodiscard]] absl::Status WaitDurable(uint64_t more);
  [[nodiscard]] absl::Status PutDurable(const Names& names);
  // From the first put until the last is durable, kAheadBlocks ahead of the disk all the time:
  // bytes a second.
  [[nodiscard]] absl::StatusOr<double> SpillRate(const Names& names);
  // Until no more become durable for a while; how many of those that were put did not.
  [[nodiscard]] uint64_t CountDropped(uint64_t put);
  [[nodiscard]] std::span<std::byte> source() const { return source_.bytes(); }

 private:
  [[nodiscard]] absl::Status Listen();
  [[nodiscard]] PutPlan Plan(const Names& names);

  Attachment& engine_;
  const Memory source_{64 << 20, Memory::Kind::kPrivate};
  const Digest nobody_;
  uint64_t salt_, durable_ = 0;
};

// The names of what was put, for whoever reads what the pool has no more.
class History {
 public:
  void Add(const Names& names) LARDER_EXCLUDES(mu_);
  // Batch after batch of those that were put between `from` and `to` blocks ago, oldest first,
  // round and round.
  // REQUIRES: more than `from` were put.
  [[nodiscard]] std::vector<Digest> Next(size_t from, size_t to) LARDER_EXCLUDES(mu_);

 private:
  Mutex mu_;
  std::vector<std::vector<Digest>> batches_ LARDER_GUARDED_BY(mu_);
  size_t next_ LARDER_GUARDED_BY(mu_) = 0;
};

// Puts block after block, `rate` bytes a second, until go_on(batches so far) says no or an error.
[[nodiscard]] absl::Status PutAtRate(Writer& writer, double rate,
                                     const std::function<bool(size_t)>& go_on,
                                     History* history = nullptr);

}  // namespace larder::bench
