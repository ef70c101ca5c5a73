// Threads that copy one large batch together with the caller.
//
// Ownership: Owns its threads.
// Thread-safety: ForEach may be called from any thread.  One batch is divided among the threads at
// a time; a batch that comes meanwhile runs on its caller's thread alone.
// Lifecycle: The threads live as long as the pool.
// Limits: kThreadsMax threads copy, including the caller's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "storage/mutex.h"

namespace larder {

class CopyPool {
 public:
  static constexpr uint32_t kThreadsMax = 64;
  // Longest time that a thread of the pool, after a batch, spins for the next one before it sleeps.
  // Waking a thread can take as long as copying 1 MiB.
  static constexpr std::chrono::microseconds kSpin{100};
  // `threads` threads copy, including the caller's; 0 counts as 1, and more than kThreadsMax as
  // kThreadsMax.
  explicit CopyPool(uint32_t threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // Calls work(i) once for each i from 0 to count - 1, on the caller's thread and maybe those of
  // the pool.  When it returns, all calls are done and their stores, including non-temporal ones,
  // are visible to all threads.
  void ForEach(size_t count, const std::function<void(size_t)>& work) LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  void AwaitHelpers() LARDER_EXCLUDES(mu_);
  // Runs what is left of the batch, then a StoreFence.
  void Drain();

  std::vector<std::thread> threads_;
  Mutex batch_mu_;  // held by the caller whose batch is divided; taken before mu_

  // work_, count_ and next_ are set under mu_ while inside_ is 0.  The threads that work on the
  // batch then use them without the lock.
  const std::function<void(size_t)>* work_ = nullptr;
  size_t count_ = 0;
  std::atomic<size_t> next_{0};

  Mutex mu_;
  CondVar wake_, idle_;
  std::atomic<uint64_t> batch_{0};            // changed under mu_
  std::atomic<uint32_t> inside_{0};           // threads of the pool in the batch; changed under mu_
  bool open_ LARDER_GUARDED_BY(mu_) = false;  // helpers may enter the batch
  std::atomic<bool> stop_{false};             // changed under mu_
};

}  // namespace larder
