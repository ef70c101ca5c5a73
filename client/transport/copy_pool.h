// A few threads that copy one large batch together with the caller.
//
// Ownership: owns its threads.  Thread-safety: ForEach from any thread; one batch is divided at a
// time, another that comes meanwhile runs on its caller alone.
// Lifecycle: threads live as long as the pool.  Limits: kThreadsMax.
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
  // How long a thread looks for the next batch before it sleeps, while nobody else wants its core:
  // a busy caller is back within, and to wake a thread takes as long as to copy a MiB.
  static constexpr std::chrono::microseconds kSpin{100};
  // `threads` copy in all, the caller included; 0 counts as 1.
  explicit CopyPool(uint32_t threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // Calls work(i) for each i < count, once, from any of the threads; returns when all are done, and
  // their stores, non-temporal ones too, can be seen by everybody.
  void ForEach(size_t count, const std::function<void(size_t)>& work) LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  void AwaitHelpers() LARDER_EXCLUDES(mu_);
  void Drain();  // what is left of the batch, then a StoreFence

  std::vector<std::thread> threads_;
  Mutex batch_mu_;  // held by the caller whose batch is divided; before mu_

  // Written while no helper is inside (under mu_), read by helpers inside.
  const std::function<void(size_t)>* work_ = nullptr;
  size_t count_ = 0;
  std::atomic<size_t> next_{0};

  Mutex mu_;
  CondVar wake_, idle_;
  std::atomic<uint64_t> batch_{0};            // changed under mu_
  std::atomic<uint32_t> inside_{0};           // helpers in the batch; changed under mu_
  bool open_ LARDER_GUARDED_BY(mu_) = false;  // helpers may enter the batch
  std::atomic<bool> stop_{false};             // changed under mu_
};

}  // namespace larder
