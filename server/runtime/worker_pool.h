// A few threads for work that would delay other requests on the thread where it arrived, such as
// copies of staged blocks, long messages and calls on many blocks.
//
// Users take turns, and the processes of a user share the turns of that user: at most one waiting
// job of each other user is taken before a user's next job, however many jobs and processes the
// other users have.  If jobs name their holder, a process with a waiting job may submit another one
// only if its waiting jobs together then take no more slots, and no more bytes, than stay free.
// Ownership: the destructor joins the threads, after they have run all accepted jobs.
// Thread-safety: Submit and Help may be called from any thread.
// Limits: `jobs_max` waiting jobs and `bytes_max` declared bytes, beyond which a process without a
// waiting job may still submit one.
// Memory: list nodes of finished jobs are reused.
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
  // How long at most a thread spins for its next job before it sleeps, while no other thread wants
  // its core.
  static constexpr std::chrono::microseconds kSpin{100};

  WorkerPool(size_t threads, size_t jobs_max, size_t bytes_max);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] size_t threads() const { return threads_.size(); }
  // Queues a job of the holder `who`; `bytes` is the memory that the job takes while it waits.
  // Returns false if the pool is being destroyed, or if the process's part of the queue is full.
  [[nodiscard]] bool Submit(const ShareHolder& who, size_t bytes, std::function<void()> job)
      LARDER_EXCLUDES(mu_);
  // Queues a job in a pool whose queue is not divided among holders.  Returns false if the pool is
  // being destroyed, or if `jobs_max` jobs wait; one job may wait even if `jobs_max` is 0.
  [[nodiscard]] bool Submit(std::function<void()> job) LARDER_EXCLUDES(mu_);

  // Queues a job that is worth running only if a thread has nothing else to do.  Drops the job if
  // few slots are free, or if the pool is being destroyed.
  void Help(const ShareHolder& who, std::function<void()> job) LARDER_EXCLUDES(mu_);

 private:
  struct Job {
    size_t bytes = 0;
    std::function<void()> run;
  };
  using Jobs = std::list<Job>;
  // The waiting jobs of a process.  A process without waiting jobs has no entry in lines_.
  struct Line {
    Jobs jobs;
    size_t bytes = 0;
  };

  void Run();
  // Returns true if a process that holds `held` may take `more`, while all processes together hold
  // `all` of `max`: the process then holds no more than stays free.
  [[nodiscard]] static bool Fits(size_t held, size_t more, size_t all, size_t max) {
    return all + more <= max && held + more <= max - all - more;
  }
  void Add(const ShareHolder& who, size_t bytes, std::function<void()> job) LARDER_REQUIRES(mu_);
  // Moves the next job, of the user and process whose turn it is, to `to`.  REQUIRES: a job waits.
  void TakeNext(Jobs* to) LARDER_REQUIRES(mu_);

  const size_t jobs_max_, bytes_max_;
  Mutex mu_;
  CondVar wake_;
  absl::flat_hash_map<ProcessId, Line> lines_ LARDER_GUARDED_BY(mu_);
  using User = std::optional<uid_t>;
  // The processes in lines_ by user, and the users.  The first in each queue has the next turn.
  absl::flat_hash_map<User, std::deque<ProcessId>> processes_ LARDER_GUARDED_BY(mu_);
  std::deque<User> users_ LARDER_GUARDED_BY(mu_);
  Jobs spare_ LARDER_GUARDED_BY(mu_);        // nodes of finished jobs, emptied
  size_t bytes_ LARDER_GUARDED_BY(mu_) = 0;  // of the waiting jobs
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::atomic<size_t> waiting_{0};  // jobs; written under mu_, read without it by spinning threads
  std::vector<std::thread> threads_;
};

}  // namespace larder
