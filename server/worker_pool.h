// A few threads for what would keep others waiting where it came in: copies of staged blocks, long
// messages of session sockets.
//
// Ownership: made by the daemon; joins its threads when destroyed, after the jobs that were taken.
// Thread-safety: Submit from any thread.
// Limits: `jobs_max` jobs wait, and jobs that say to take `bytes_max`; beyond it Submit says no,
// unless nothing waits.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "storage/mutex.h"

namespace larder {

class WorkerPool {
 public:
  // How long a thread looks for its next job before it sleeps.
  static constexpr std::chrono::microseconds kLook{100};

  WorkerPool(size_t threads, size_t jobs_max, size_t bytes_max);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] size_t threads() const { return threads_.size(); }
  // `bytes`: what the job takes while it waits.  False when the queue is full: the caller answers
  // "full, retry after".
  [[nodiscard]] bool Submit(size_t bytes, std::function<void()> job) LARDER_EXCLUDES(mu_);

  // A job that is worth doing only if a thread has nothing else to do: dropped when many wait.
  void Help(std::function<void()> job) LARDER_EXCLUDES(mu_);

 private:
  void Run();

  struct Job {
    size_t bytes = 0;
    std::function<void()> run;
  };

  const size_t jobs_max_, bytes_max_;
  Mutex mu_;
  CondVar wake_;
  std::deque<Job> jobs_ LARDER_GUARDED_BY(mu_);
  size_t bytes_ LARDER_GUARDED_BY(mu_) = 0;  // of those that wait
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::atomic<size_t> waiting_{0};  // jobs_.size(), for who looks
  std::vector<std::thread> threads_;
};

}  // namespace larder
