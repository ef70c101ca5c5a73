// The daemon's part of the disk tier: what finds out at start what is there, and what moves blocks
// there and back.  Absent where no disk is configured.
//
// Ownership: made by Daemon; tier, store and clock outlive it.  Thread-safety: all methods from any
// thread.
// Lifecycle: made (spills and promotes) -> StartRecovery once -> destroyed (ends within one
// operation of the disk).
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "storage/block_store.h"
#include "storage/clock.h"
#include "storage/disk/disk_tier.h"
#include "storage/promoter.h"
#include "storage/spiller.h"

namespace larder {

class DiskWork {
 public:
  DiskWork(DiskTier& tier, BlockStore& store, const Clock& clock, size_t reader_threads,
           Spiller::Durable durable);
  ~DiskWork();
  DiskWork(const DiskWork&) = delete;
  DiskWork& operator=(const DiskWork&) = delete;

  // Tells the store what a former process left, on a thread of its own, while all else works.
  using Done = std::function<void(const absl::Status&, uint64_t blocks, Duration)>;
  void StartRecovery(Done done);

  [[nodiscard]] Spiller& spiller() { return spiller_; }
  [[nodiscard]] Promoter& promoter() { return promoter_; }
  [[nodiscard]] bool recovering() const { return recovering_; }
  // Rooms that blocks left since are given back soon.
  void Tick();

  struct Stats {
    DiskTier::Stats tier;
    Spiller::Stats spiller;
    Promoter::Stats promoter;
    uint64_t recovered_blocks = 0;
    bool recovering = false;
  };
  // Reads directories: for metrics, not for every call.
  [[nodiscard]] Stats stats() const;

 private:
  void Recover(const Done& done);

  DiskTier& tier_;
  BlockStore& store_;
  const Clock& clock_;
  Spiller spiller_;
  Promoter promoter_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> recovering_{true};
  std::atomic<uint64_t> recovered_{0};
  std::thread recovery_;
};

}  // namespace larder
