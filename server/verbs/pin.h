// Pins and prefetches as their callers want them: on disk, so that they outlive the daemon; until
// their deadline; and with each block brought into the tier that it is pinned in.
//
// What counts is BlockStore::pins().  A pin is a fact of the disk tier under
// "pin/" VARIANT DIGEST TIER OWNER, whose value is its deadline (docs/format.md).  A prefetch is a
// pin of HOST that nobody owns, and that no disk remembers.
// Ownership: made by Daemon; store, disk and counters outlive it, jobs of the promoter may outlive
// it.
// Thread-safety: all methods from any thread.  Pin and Unpin do not wait for the disk: a thread of
// its own writes what changed, for all of them at once, and answers.  It writes of each pin what is
// true when it writes, so it does not matter who called first; what the disk did not take it writes
// again, later.
// Lifecycle: made -> Load -> the disk's recovery -> ... -> destroyed (answers what waits).
// Memory: of what is to be written, and 8 bytes for each pin on disk.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/metrics/counters.h"
#include "storage/clock.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

class PinVerb {
 public:
  static constexpr size_t kOwnerBytesMax = 256;
  // Blocks on their way into their tier at once, beside those of the calls that just came.
  static constexpr size_t kBroughtAtOnce = 1024;

  PinVerb(BlockStore& store, DiskParts disk, Counters& counters, WallClock now_ms);
  ~PinVerb();
  PinVerb(const PinVerb&) = delete;
  PinVerb& operator=(const PinVerb&) = delete;

  // What a former process left; how many pins.
  size_t Load();
  [[nodiscard]] bool durable() const { return disk_.tier != nullptr; }
  [[nodiscard]] uint64_t DeadlineIn(std::chrono::milliseconds ttl) const {
    return now_ms_() + static_cast<uint64_t>(ttl.count());
  }

  // OK when all that the call changed is on disk, at once where there is none; else Unavailable: it
  // is so while this process lives, and may get there yet.  Each block's answer beside it.  Called
  // once, from this thread or the keeper's.
  using Answer = std::function<void(const absl::Status&, std::vector<BlockStatus>)>;
  // Of each key, as BlockPins::Add says.  REQUIRES: owner of 1 to kOwnerBytesMax bytes.
  void Pin(std::string_view owner, std::span<const PinKey> keys, uint64_t deadline_ms,
           Answer answer) LARDER_EXCLUDES(mu_);
  // Of each key: kOk, kMissing (that owner does not pin it).
  void Unpin(std::string_view owner, std::span<const PinKey> keys, Answer answer)
      LARDER_EXCLUDES(mu_);
  // All of an owner: kOk for each.
  void UnpinAll(std::string_view owner, Answer answer) LARDER_EXCLUDES(mu_);
  // All pins of these blocks, whoever's: kOk for each.
  void UnpinBlocks(absl::FunctionRef<bool(VariantIndex, const Digest&)> which, Answer answer)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::vector<BlockStatus> Prefetch(std::span<const PinKey> keys,
                                                  uint64_t deadline_ms);

  // Often: ends pins at their deadline, and now and then brings what is not where it is pinned.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_, sweep_mu_);

 private:
  void EndPins(std::span<const larder::Pin> ended, Answer answer) LARDER_EXCLUDES(mu_);

  using Name = std::pair<std::string, PinKey>;  // owner first
  using Names = std::set<Name>;
  struct Waiting {
    Answer answer;
    std::vector<BlockStatus> statuses;
  };
  // Some of these changed; `answer` when that is on disk, as is all that changed before.
  void Write(std::vector<Name> changed, Waiting waiting) LARDER_EXCLUDES(mu_);
  void Run() LARDER_EXCLUDES(mu_);
  // False: it ends.  What is to be written, and who waits for it.
  [[nodiscard]] bool AwaitWork(Names* changed, std::vector<Waiting>* waiting) LARDER_EXCLUDES(mu_);
  // The first error; what it concerns is to be written again.
  [[nodiscard]] absl::Status WriteNames(const Names& names) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status WriteSome(std::span<const Name> names);
  void Expire() LARDER_EXCLUDES(mu_);
  void Sweep() LARDER_EXCLUDES(sweep_mu_);
  // Pinned where they are not: up to kBroughtAtOnce, from another one on each time; of how many.
  [[nodiscard]] std::vector<PinKey> Astray(size_t* all) LARDER_REQUIRES(sweep_mu_);
  void Bring(std::span<const PinKey> keys);
  void Spill(const PinKey& key);
  void Promote(VariantIndex variant, std::span<const Digest> digests);

  BlockStore& store_;
  const DiskParts disk_;
  Counters& counters_;
  const WallClock now_ms_;
  const std::shared_ptr<std::atomic<size_t>> under_way_;  // blocks that are being promoted

  Mutex sweep_mu_;
  TimePoint next_sweep_ LARDER_GUARDED_BY(sweep_mu_);
  Duration sweep_period_ LARDER_GUARDED_BY(sweep_mu_);
  size_t astray_ LARDER_GUARDED_BY(sweep_mu_) = 0;  // at the last sweep
  size_t passed_ LARDER_GUARDED_BY(sweep_mu_) = 0;  // of them, those that had their turn

  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  Names changed_ LARDER_GUARDED_BY(mu_);
  TimePoint not_before_ LARDER_GUARDED_BY(mu_);  // unless somebody waits
  std::vector<Waiting> waiting_ LARDER_GUARDED_BY(mu_);
  // Hashes of the facts that a shard may have.  Of the writer, but for Load.
  absl::flat_hash_set<uint64_t> on_disk_;
  std::thread writer_;  // joinable where there is a disk
};

}  // namespace larder
