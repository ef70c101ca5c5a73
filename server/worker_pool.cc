#include "server/worker_pool.h"

#include <pthread.h>

#include <utility>

#include "storage/look.h"

namespace larder {

WorkerPool::WorkerPool(size_t threads, size_t jobs_max, size_t bytes_max)
    : jobs_max_(jobs_max), bytes_max_(bytes_max) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool WorkerPool::Submit(size_t bytes, std::function<void()> job) {
  {
    MutexLock lock(mu_);
    const bool full = jobs_.size() >= jobs_max_ || bytes_ + bytes > bytes_max_;
    if (stop_ || (full && !jobs_.empty())) return false;
    jobs_.push_back({bytes, std::move(job)});
    ++waiting_;
    bytes_ += bytes;
  }
  wake_.NotifyOne();
  return true;
}

void WorkerPool::Help(std::function<void()> job) {
  {
    MutexLock lock(mu_);
    if (stop_ || jobs_.size() >= jobs_max_ / 2) return;
    jobs_.push_back({0, std::move(job)});
    ++waiting_;
  }
  wake_.NotifyOne();
}

void WorkerPool::Run() {
  pthread_setname_np(pthread_self(), "worker");
  for (;;) {
    Job job;
    (void)LookUntil(std::chrono::steady_clock::now() + kLook, [&] { return waiting_.load() > 0; });
    {
      MutexLock lock(mu_);
      while (jobs_.empty() && !stop_) wake_.Wait(mu_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      --waiting_;
      bytes_ -= job.bytes;
    }
    job.run();
  }
}

}  // namespace larder
