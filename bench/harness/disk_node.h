// A daemon with a disk, and sessions that put blocks and report when the blocks are durable.
//
// Ownership: a Node owns its daemon and kills it, as kill -9 does, when it is dropped; Writer
// borrows its attachment.
// Thread-safety: History may be used from any thread, everything else from one at a time.
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
inline constexpr double kDiskWait_s = 60;  // for any operation of a disk
inline constexpr char kAmpleDisk[] = "24GiB";

// All blocks have 1 MiB.
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
  std::string limit = kAmpleDisk;       // of the disk tier
  std::vector<std::string> flags = {};  // additional ones
  bool whole_pool = true;               // wait until all of it is online
};
[[nodiscard]] absl::StatusOr<std::unique_ptr<Node>> StartNode(const NodeConfig& config);
// Attaches another session.
[[nodiscard]] absl::StatusOr<Attachment> AttachTo(const Node& node, const std::string& engine_id);

// Calls done() every 2 ms until it returns true; DeadlineExceeded with `what` after a minute.
[[nodiscard]] absl::Status WaitFor(const char* what,
                                   const std::function<absl::StatusOr<bool>()>& done);
// Waits until done() is true of the daemon's own statistics.
[[nodiscard]] absl::Status WaitForNode(
    const Node& node, const char* what,
    const std::function<bool(const DaemonProcess::Holdings&)>& done);
// Waits until the index has as many blocks, of all tiers.
[[nodiscard]] absl::Status WaitForBlocks(const Node& node, uint64_t blocks);

// Puts blocks in batches, each under a new name, and waits until blocks are durable.
class Writer {
 public:
  // Writers with different `part` use different names, also in different processes over the same
  // disk.
  explicit Writer(Attachment& engine, uint64_t part = 0);

  [[nodiscard]] Names Next(size_t blocks) { return MakeNames(engine_.seed, ++salt_ << 20, blocks); }
  [[nodiscard]] absl::Status Put(const Names& names);
  // Puts the blocks one by one and calls before(its number) before each, like an engine that
  // computes meanwhile.
  [[nodiscard]] absl::Status PutEach(const Names& names, const std::function<void(size_t)>& before);
  // Waits until `more` further blocks are durable.
  [[nodiscard]] absl::Status WaitDurable(uint64_t more);
  [[nodiscard]] absl::Status PutDurable(const Names& names);
  // Measured from the first put until the last block is durable, with kAheadBlocks waiting for the
  // disk all the time; bytes per second.
  [[nodiscard]] absl::StatusOr<double> SpillRate(const Names& names);
  // Waits until no more blocks have become durable for a while; returns how many of the `put`
  // blocks have not.
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

// The names of the blocks that were put, for a thread that reads those which the pool has evicted.
class History {
 public:
  void Add(const Names& names) LARDER_EXCLUDES(mu_);
  // Returns batch after batch of the blocks that were put between `from` and `to` blocks ago,
  // oldest first, and starts over at the end.
  // REQUIRES: more than `from` blocks were put.
  [[nodiscard]] std::vector<Digest> Next(size_t from, size_t to) LARDER_EXCLUDES(mu_);

 private:
  Mutex mu_;
  std::vector<std::vector<Digest>> batches_ LARDER_GUARDED_BY(mu_);
  size_t next_ LARDER_GUARDED_BY(mu_) = 0;
};

// Puts blocks one by one at `rate` bytes per second, until go_on(number of batches put) returns
// false or a put fails.
[[nodiscard]] absl::Status PutAtRate(Writer& writer, double rate,
                                     const std::function<bool(size_t)>& go_on,
                                     History* history = nullptr);

}  // namespace larder::bench
