// Threads that the daemon runs for its disk tier: recovery, which finds at the start what is on
// disk; Spiller and Promoter, which copy blocks to disk and back; and, if its rate is not 0,
// DiskVerifier, which looks for damaged blocks.  A daemon without a disk has no TierWorker.
//
// Ownership: the daemon or a test; tier, store and clock outlive it.  Thread-safety: all methods
// from any thread.
// Lifecycle: made (promotes; blocks to spill wait) -> StartRecovery once (spilling starts when the
// first try of recovery has ended) -> destroyed (waits for the operations of the disk that are
// under way; blocks that are still queued are not written).
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <span>
#include <thread>

#include "absl/status/status.h"
#include "storage/clock.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"
#include "storage/tiering/disk_verifier.h"
#include "storage/tiering/promoter.h"
#include "storage/tiering/spiller.h"

namespace larder {

class TierWorker;

// Both are null if the daemon has no disk.
struct DiskParts {
  DiskTier* tier = nullptr;
  TierWorker* work = nullptr;

  // Returns FailedPrecondition if there is no disk, Unavailable if the first try of recovery has
  // not ended.
  [[nodiscard]] absl::Status CheckReady() const;
};

class TierWorker {
 public:
  TierWorker(DiskTier& tier, BlockStore& store, const Clock& clock, size_t reader_threads,
             ByteCount verify_rate, Spiller::Durable durable);
  ~TierWorker();
  TierWorker(const TierWorker&) = delete;
  TierWorker& operator=(const TierWorker&) = delete;

  // Receives the status of a try of recovery, the number of blocks recovered so far, and the time
  // since recovery began.
  using Done = std::function<void(const absl::Status&, uint64_t blocks, Duration)>;
  // Enters the blocks that an earlier process left on disk into the store, on a thread of its own,
  // while the daemon serves calls.  What cannot be read or taken now is tried again, at growing
  // intervals.  `done` is called on that thread after the first try; if the first try could not
  // read all of the disk, `done` may be called once more.
  void StartRecovery(Done done);

  [[nodiscard]] Spiller& spiller() { return spiller_; }
  [[nodiscard]] Promoter& promoter() { return promoter_; }
  [[nodiscard]] bool recovering() const { return recovering_; }
  // Returns true once recovery has read the whole disk and no block that it found there still has
  // to be taken by the store.
  [[nodiscard]] bool all_known() const { return all_known_; }
  // Receives the index of a block in `digests`, and the outcome: kOk if the block was found in HOST
  // or has been read into it.
  using Ready = std::function<void(size_t i, BlockStatus)>;
  // Asks the promoter to read those of the blocks that are only on disk, for no particular session.
  // Calls `ready` once for each element of `digests`, on this thread or on others, also
  // concurrently and after Promote has returned.  Returns false, without calling `ready`, if the
  // promoter does not take the blocks now (Promoter::Prepare).
  [[nodiscard]] bool Promote(VariantIndex variant, std::span<const Digest> digests, Ready ready);
  // Wakes the spiller if blocks have left extents on disk that it must erase.
  void Tick();

  struct Stats {
    DiskTier::Stats tier;
    Spiller::Stats spiller;
    Promoter::Stats promoter;
    DiskVerifier::Stats verifier;
    uint64_t recovered_blocks = 0;
    bool recovering = false;
  };
  // May be slow, so it is meant for metrics and not for every call of a client.
  [[nodiscard]] Stats stats() const;

 private:
  void Recover(const Done& done);
  [[nodiscard]] absl::Status RecoverOnce();
  void TellUnplaced();
  void StopAskingWhereAllIsPlaced();
  // Handles a block that DiskTier::Recover reports.  Returns the block's entry, {} if the tier is
  // to erase the record, or kNotNow if the store cannot take the block now.
  [[nodiscard]] EntryRef Place(const DiskTier::Entry& entry);
  [[nodiscard]] EntryRef Enter(const DiskTier::Entry& entry, EntryRef same);
  // Called by Place if a block of this key is in HOST, as `held` says.  The record becomes the disk
  // copy of that block only if the record is found to have the same bytes.
  [[nodiscard]] EntryRef Join(const DiskTier::Entry& entry, const BlockIndex::Held& held);
  // Returns false if the worker is being destroyed.
  [[nodiscard]] bool SleepUntil(TimePoint until) LARDER_EXCLUDES(stop_mu_);

  DiskTier& tier_;
  BlockStore& store_;
  const Clock& clock_;
  Spiller spiller_;
  Promoter promoter_;
  const ByteCount verify_rate_;
  mutable Mutex verifier_mu_;
  // nullopt before the first try of recovery has ended, and if verify_rate_ is 0.
  std::optional<DiskVerifier> verifier_ LARDER_GUARDED_BY(verifier_mu_);
  Mutex stop_mu_;
  CondVar stopped_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> recovering_{true};
  std::atomic<bool> all_known_{false};
  std::atomic<uint64_t> recovered_{0};
  std::thread recovery_;
};

}  // namespace larder
