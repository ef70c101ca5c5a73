// A few threads for what would keep others waiting where it came in: copies of staged blocks, long
// messages and requests.
//
// Users take turns, and the processes of a user take theirs in his: a user's next job waits for one
// job of each other user at most, however many jobs and processes he has.  And what waits is
// shared: a process has more taken while no more of its waits than there is room for still, so it
// gets half of the room at most, and others always find some.
// Ownership: made by the daemon; joins its threads when destroyed, after the jobs that were taken.
// Thread-safety: Submit from any thread.
// Limits: `jobs_max` jobs wait, and jobs that say to take `bytes_max`; beyond it Submit says no,
// unless nothing of that process waits.
// Memory: a job that is taken reuses the memory of one that is done.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/runtime/shares.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class WorkerPool {
 public:
  // How long a thread looks for its next job before it sleeps, while nobody else wants its core.
  static constexpr std::chrono::microseconds kSpin{100};

  WorkerPool(size_t threads, size_t jobs_max, size_t bytes_max);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] size_t threads() const { return threads_.size(); }
  // `who`: whose it is.  `bytes`: what the job takes while it waits.  False when the queue or his
  // part of it is full: the caller answers "full, retry after".
  [[nodiscard]] bool Submit(const ShareHolder& who, size_t bytes, std::function<void()> job)
      LARDER_EXCLUDES(mu_);
  // For pools whose callers may have all of it.
  [[nodiscard]] bool Submit(std::function<void()> job) LARDER_EXCLUDES(mu_);

  // A job that is worth doing only if a thread has nothing else to do: dropped when many wait.
  void Help(const ShareHolder& who, std::function<void()> job) LARDER_EXCLUDES(mu_);

 private:
  struct Job {
    size_t bytes = 0;
    std::function<void()> run;
  };
  using Jobs = std::list<Job>;
  // What waits of a process; gone where that is nothing.
  struct Line {
    Jobs jobs;
    size_t bytes = 0;
  };

  void Run();
  // Whether a holder of `held` may have `more`.
  [[nodiscard]] static bool Fits(size_t held, size_t more, size_t all, size_t max) {
    return all + more <= max && held + more <= max - all - more;
  }
  void Add(const ShareHolder& who, size_t bytes, std::function<void()> job) LARDER_REQUIRES(mu_);
  // The next job, of the user and process whose turn it is.  REQUIRES: some wait.
  void TakeNext(Jobs* to) LARDER_REQUIRES(mu_);

  const size_t jobs_max_, bytes_max_;
  Mutex mu_;
  CondVar wake_;
  absl::flat_hash_map<ProcessId, Line> lines_ LARDER_GUARDED_BY(mu_);
  using User = std::optional<uid_t>;
  // The processes of lines_ by user, and the users; the next one first.
  absl::flat_hash_map<User, std::deque<ProcessId>> processes_ LARDER_GUARDED_BY(mu_);
  std::deque<User> users_ LARDER_GUARDED_BY(mu_);
  Jobs spare_ LARDER_GUARDED_BY(mu_);        // done, and empty
  size_t bytes_ LARDER_GUARDED_BY(mu_) = 0;  // of those that wait
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::atomic<size_t> waiting_{0};  // jobs; written under mu_, for who looks
  std::vector<std::thread> threads_;
};

}  // namespace larder
