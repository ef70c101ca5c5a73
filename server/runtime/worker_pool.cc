#include "server/runtime/worker_pool.h"

#include <pthread.h>

#include <utility>

#include "storage/clock.h"
#include "storage/spin_wait.h"

namespace larder {
namespace {

constexpr size_t kSpareMax = 64;  // list nodes of finished jobs that are kept for reuse

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

bool WorkerPool::Submit(const ShareHolder& who, size_t bytes, std::function<void()> job) {
  {
    MutexLock lock(mu_);
    if (stop_) return false;
    const auto line = lines_.find(who.process);
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
    Add(ShareHolder{}, 0, std::move(job));
  }
  wake_.NotifyOne();
  return true;
}

void WorkerPool::Help(const ShareHolder& who, std::function<void()> job) {
  {
    MutexLock lock(mu_);
    const auto line = lines_.find(who.process);
    const size_t own = line == lines_.end() ? 0 : line->second.jobs.size();
    if (stop_ || !Fits(2 * own, 1, waiting_, jobs_max_)) return;
    Add(who, 0, std::move(job));
  }
  wake_.NotifyOne();
}

void WorkerPool::Add(const ShareHolder& who, size_t bytes, std::function<void()> job) {
  Line& line = lines_[who.process];
  if (line.jobs.empty()) {
    std::deque<ProcessId>& of_user = processes_[who.uid];
    if (of_user.empty()) users_.push_back(who.uid);
    of_user.push_back(who.process);
  }
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
  const User user = users_.front();
  users_.pop_front();
  const auto of_user = processes_.find(user);
  const ProcessId who = of_user->second.front();
  of_user->second.pop_front();
  const auto line = lines_.find(who);
  to->splice(to->begin(), line->second.jobs, line->second.jobs.begin());
  line->second.bytes -= to->front().bytes;
  bytes_ -= to->front().bytes;
  --waiting_;
  if (line->second.jobs.empty()) {
    lines_.erase(line);
  } else {
    of_user->second.push_back(who);
  }
  if (of_user->second.empty()) {
    processes_.erase(of_user);
  } else {
    users_.push_back(user);
  }
}

void WorkerPool::Run() {
  pthread_setname_np(pthread_self(), "worker");
  Jobs job;  // holds one job, or none
  for (;;) {
    (void)SpinWhileIdle(SteadyNow() + kSpin, [&] { return waiting_.load() > 0; });
    {
      MutexLock lock(mu_);
      if (spare_.size() < kSpareMax) spare_.splice(spare_.end(), job);
      job.clear();
      while (users_.empty() && !stop_) wake_.Wait(mu_);
      if (users_.empty()) return;
      TakeNext(&job);
    }
    job.front().run();
    job.front().run = nullptr;  // releases now what the job captured
  }
}

}  // namespace larder
