#include "server/worker_pool.h"

#include <pthread.h>

#include <utility>

#include "storage/look.h"

namespace larder {
namespace {

constexpr size_t kSpareMax = 64;  // jobs whose memory is kept

}  // namespace

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

bool WorkerPool::Submit(ProcessId who, size_t bytes, std::function<void()> job) {
  {
    MutexLock lock(mu_);
    if (stop_) return false;
    const auto line = lines_.find(who);
    if (line != lines_.end() && !(Fits(line->second.jobs.size(), 1, waiting_, jobs_max_) &&
                                  Fits(line->second.bytes, bytes, bytes_, bytes_max_))) {
      return false;
    }
    Add(who, bytes, std::move(job));
  }
  wake_.NotifyOne();
  return true;
}

bool WorkerPool::Submit(std::function<void()> job) {
  {
    MutexLock lock(mu_);
    if (stop_ || (waiting_ >= jobs_max_ && waiting_ > 0)) return false;
    Add(ProcessId{}, 0, std::move(job));
  }
  wake_.NotifyOne();
  return true;
}

void WorkerPool::Help(ProcessId who, std::function<void()> job) {
  {
    MutexLock lock(mu_);
    const auto line = lines_.find(who);
    const size_t own = line == lines_.end() ? 0 : line->second.jobs.size();
    if (stop_ || !Fits(2 * own, 1, waiting_, jobs_max_)) return;
    Add(who, 0, std::move(job));
  }
  wake_.NotifyOne();
}

void WorkerPool::Add(ProcessId who, size_t bytes, std::function<void()> job) {
  Line& line = lines_[who];
  if (line.jobs.empty()) turns_.push_back(who);
  if (spare_.empty()) {
    line.jobs.emplace_back();
  } else {
    line.jobs.splice(line.jobs.end(), spare_, spare_.begin());
  }
  line.jobs.back() = {bytes, std::move(job)};
  line.bytes += bytes;
  bytes_ += bytes;
  ++waiting_;
}

void WorkerPool::TakeNext(Jobs* to) {
  const ProcessId who = turns_.front();
  turns_.pop_front();
  const auto line = lines_.find(who);
  to->splice(to->begin(), line->second.jobs, line->second.jobs.begin());
  line->second.bytes -= to->front().bytes;
  bytes_ -= to->front().bytes;
  --waiting_;
  if (line->second.jobs.empty()) {
    lines_.erase(line);
  } else {
    turns_.push_back(who);
  }
}

void WorkerPool::Run() {
  pthread_setname_np(pthread_self(), "worker");
  Jobs job;  // one, or none
  for (;;) {
    (void)LookWhileIdle(std::chrono::steady_clock::now() + kLook,
                        [&] { return waiting_.load() > 0; });
    {
      MutexLock lock(mu_);
      if (spare_.size() < kSpareMax) spare_.splice(spare_.end(), job);
      job.clear();
      while (turns_.empty() && !stop_) wake_.Wait(mu_);
      if (turns_.empty()) return;
      TakeNext(&job);
    }
    job.front().run();
    job.front().run = nullptr;  // what it keeps goes now
  }
}

}  // namespace larder
