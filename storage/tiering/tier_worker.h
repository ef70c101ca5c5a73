// The daemon's part of the disk tier: what finds out at start what is there, and what moves blocks
// there and back.  Absent where no disk is configured.
//
// Ownership: made by Daemon; tier, store and clock outlive it.  Thread-safety: all methods from any
// thread.
// Lifecycle: made (promotes; what is to be spilled waits) -> StartRecovery once (spills when that
// has ended) -> destroyed (ends within one operation of the disk; what waits is lost, unless
// spiller().WaitIdle said otherwise).
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

// Both null where there is no disk.
struct DiskParts {
  DiskTier* tier = nullptr;
  TierWorker* work = nullptr;

  // What a call about the disk needs.  FailedPrecondition: there is none.  Unavailable: what is on
  // it is not known yet.
  [[nodiscard]] absl::Status CheckReady() const;
};

class TierWorker {
 public:
  TierWorker(DiskTier& tier, BlockStore& store, const Clock& clock, size_t reader_threads,
             ByteCount verify_rate, Spiller::Durable durable);
  ~TierWorker();
  TierWorker(const TierWorker&) = delete;
  TierWorker& operator=(const TierWorker&) = delete;

  // Tells the store what a former process left, on a thread of its own, while all else works.  What
  // the disk does not give, or the store cannot take, is asked for again, ever later; `done` hears
  // of the first time, and once more when nothing is lacking after all.
  using Done = std::function<void(const absl::Status&, uint64_t blocks, Duration)>;
  void StartRecovery(Done done);

  [[nodiscard]] Spiller& spiller() { return spiller_; }
  [[nodiscard]] Promoter& promoter() { return promoter_; }
  [[nodiscard]] bool recovering() const { return recovering_; }
  // No part of the disk has yet to tell what it holds, be it that it failed until now or that the
  // store could not take all of it.
  [[nodiscard]] bool all_known() const { return all_known_; }
  // Reads those of these blocks that are on disk alone into HOST, for nobody in particular.
  // `ready`: once for each, kOk (it is there), kMissing (it has gone), kFull, kDamaged, kCancelled;
  // for some before this returns, for others from the promoter's threads.  False: too much waits,
  // so nothing was done, and `ready` hears nothing.
  using Ready = std::function<void(size_t i, BlockStatus)>;
  [[nodiscard]] bool Promote(VariantIndex variant, std::span<const Digest> digests, Ready ready);
  // Rooms that blocks left since are given back soon.
  void Tick();

  struct Stats {
    DiskTier::Stats tier;
    Spiller::Stats spiller;
    Promoter::Stats promoter;
    DiskVerifier::Stats verifier;
    uint64_t recovered_blocks = 0;
    bool recovering = false;
  };
  // Reads directories: for metrics, not for every call.
  [[nodiscard]] Stats stats() const;

 private:
  void Recover(const Done& done);
  [[nodiscard]] absl::Status RecoverOnce();
  void TellUnplaced();
  void StopAskingWhereAllIsPlaced();
  // As DiskTier::Recover's `owner_of`.
  [[nodiscard]] EntryRef Place(const DiskTier::Entry& entry);
  [[nodiscard]] EntryRef Enter(const DiskTier::Entry& entry, EntryRef same);
  // Of one that the pool has, too: the disk told of it late, or while it was published.  As a copy
  // of that where the bytes are the same.
  [[nodiscard]] EntryRef Join(const DiskTier::Entry& entry, const BlockIndex::Held& held);
  // False: it ends.
  [[nodiscard]] bool SleepUntil(TimePoint until) LARDER_EXCLUDES(stop_mu_);

  DiskTier& tier_;
  BlockStore& store_;
  const Clock& clock_;
  Spiller spiller_;
  Promoter promoter_;
  const ByteCount verify_rate_;
  // Begins when recovery ended.
  mutable Mutex verifier_mu_;
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
