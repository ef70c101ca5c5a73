// A disk whose reads and writes wait while a test says so.
#pragma once

#include <span>

#include "storage/disk/memory_disk_tier.h"
#include "storage/mutex.h"

namespace larder::testing {

class GatedTier final : public MemoryDiskTier {
 public:
  using MemoryDiskTier::MemoryDiskTier;

  void Shut() {
    MutexLock lock(mu_);
    shut_ = true;
  }
  void Open() {
    MutexLock lock(mu_);
    shut_ = false;
    changed_.NotifyAll();
  }
  // Until so many reads and writes have come, since it was made.
  void AwaitCalls(size_t count) {
    MutexLock lock(mu_);
    while (calls_ < count) changed_.Wait(mu_);
  }

  [[nodiscard]] size_t calls() {
    MutexLock lock(mu_);
    return calls_;
  }

  GetStatus Get(const Read& read) override {
    Pass();
    return MemoryDiskTier::Get(read);
  }
  void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) override {
    Pass();
    MemoryDiskTier::Put(blocks, results);
  }

 private:
  void Pass() {
    MutexLock lock(mu_);
    ++calls_;
    changed_.NotifyAll();
    while (shut_) changed_.Wait(mu_);
  }

  Mutex mu_;
  CondVar changed_;
  bool shut_ LARDER_GUARDED_BY(mu_) = false;
  size_t calls_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder::testing
