// A disk whose reads and writes wait while a test says so, though not for ever: a test that has
// failed must end, too.
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
  // Until so many reads and writes have come, since it was made; the test fails when they do not.
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
    EXPECT_FALSE(shut_) << "nobody opened it";
  }

  Mutex mu_;
  CondVar changed_;
  bool shut_ LARDER_GUARDED_BY(mu_) = false;
  size_t calls_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder::testing
