#include "client/transport/copy_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "storage/clock.h"
#include "storage/memory/copy_kernels.h"
#include "storage/spin_wait.h"

namespace larder {

CopyPool::CopyPool(uint32_t threads) {
  for (uint32_t i = 1; i < std::min(threads, kThreadsMax); ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

CopyPool::~CopyPool() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void CopyPool::Drain() {
  for (size_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) (*work_)(i);
  StoreFence();
}

void CopyPool::ForEach(size_t count, const std::function<void(size_t)>& work) {
  if (count < 2 || threads_.empty() || !batch_mu_.TryLock()) {
    for (size_t i = 0; i < count; ++i) work(i);
    StoreFence();
    return;
  }
  {
    MutexLock lock(mu_);
    work_ = &work;
    count_ = count;
    next_ = 0;
    ++batch_;
    open_ = true;
    wake_.NotifyAll();
  }
  Drain();
  {
    MutexLock lock(mu_);
    open_ = false;
  }
  AwaitHelpers();
  batch_mu_.Unlock();
}

// Spins before it sleeps: the pool's threads usually end at about the same time as the caller's.
void CopyPool::AwaitHelpers() {
  constexpr auto kAwait = std::chrono::microseconds(50);
  (void)SpinWhileIdle(SteadyNow() + kAwait, [&] { return inside_.load() == 0; });
  if (inside_.load() == 0) return;
  MutexLock lock(mu_);
  while (inside_.load() > 0) idle_.Wait(mu_);
}

void CopyPool::Run() {
  pthread_setname_np(pthread_self(), "larder-copy");
  uint64_t seen = 0;
  mu_.Lock();
  while (true) {
    while (!stop_ && (!open_ || batch_ == seen)) wake_.Wait(mu_);
    if (stop_) break;
    seen = batch_;
    ++inside_;
    mu_.Unlock();
    Drain();
    mu_.Lock();
    if (--inside_ == 0) idle_.NotifyAll();
    mu_.Unlock();
    (void)SpinWhileIdle(SteadyNow() + kSpin, [&] { return batch_.load() != seen || stop_.load(); });
    mu_.Lock();
  }
  mu_.Unlock();
}

}  // namespace larder
