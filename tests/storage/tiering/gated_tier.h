// A disk whose reads and writes wait until a test opens it, but not forever, because a failed test
// must end as well.
#pragma once

#include <chrono>
#include <span>

#include <gtest/gtest.h>

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
  // Waits until `count` reads and writes in total have begun.  The test fails if they do not.
  void AwaitCalls(size_t count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    MutexLock lock(mu_);
    while (calls_ < count && changed_.WaitUntil(mu_, until)) {
    }
    EXPECT_GE(calls_, count) << "calls of the disk";
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
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(mu_);
    ++calls_;
    changed_.NotifyAll();
    while (shut_ && changed_.WaitUntil(mu_, until)) {
    }
    EXPECT_FALSE(shut_) << "the test did not open the gate";
  }

  Mutex mu_;
  CondVar changed_;
  bool shut_ LARDER_GUARDED_BY(mu_) = false;
  size_t calls_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder::testing
