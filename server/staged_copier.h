// A few threads that copy staged blocks into the pool, so that no RPC thread does.
//
// Ownership: made by the daemon; joins its threads when destroyed, after the jobs that were taken.
// Thread-safety: Submit from any thread.  Limits: `queue_max` jobs wait; beyond it Submit says no.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "storage/mutex.h"

namespace larder {

class StagedCopier {
 public:
  StagedCopier(size_t threads, size_t queue_max);
  ~StagedCopier();
  StagedCopier(const StagedCopier&) = delete;
  StagedCopier& operator=(const StagedCopier&) = delete;

  // False when the queue is full: the caller answers "full, retry after".
  [[nodiscard]] bool Submit(std::function<void()> job) LARDER_EXCLUDES(mu_);

 private:
  void Run();

  const size_t queue_max_;
  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> jobs_ LARDER_GUARDED_BY(mu_);
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace larder
