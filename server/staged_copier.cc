#include "server/staged_copier.h"

#include <utility>

namespace larder {

StagedCopier::StagedCopier(size_t threads, size_t queue_max) : queue_max_(queue_max) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

StagedCopier::~StagedCopier() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

bool StagedCopier::Submit(std::function<void()> job) {
  {
    MutexLock lock(mu_);
    if (stop_ || jobs_.size() >= queue_max_) return false;
    jobs_.push_back(std::move(job));
  }
  wake_.NotifyOne();
  return true;
}

void StagedCopier::Run() {
  for (;;) {
    std::function<void()> job;
    {
      MutexLock lock(mu_);
      while (jobs_.empty() && !stop_) wake_.Wait(mu_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace larder
