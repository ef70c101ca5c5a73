// std::mutex and its condition variable with clang's capability annotations, so that
// -Wthread-safety checks which lock guards which member.  absl::Mutex is not used: Debian's build
// of it is not instrumented, so TSAN reports false races.
//
// Thread-safety: as std::mutex.  Limits: not recursive.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define LARDER_ATTRIBUTE(x) __attribute__((x))
#else
#define LARDER_ATTRIBUTE(x)
#endif
#define LARDER_GUARDED_BY(x) LARDER_ATTRIBUTE(guarded_by(x))
#define LARDER_REQUIRES(...) LARDER_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define LARDER_EXCLUDES(...) LARDER_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define LARDER_NO_THREAD_SAFETY_ANALYSIS LARDER_ATTRIBUTE(no_thread_safety_analysis)

namespace larder {

class LARDER_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void Lock() LARDER_ATTRIBUTE(acquire_capability()) { mu_.lock(); }
  void Unlock() LARDER_ATTRIBUTE(release_capability()) { mu_.unlock(); }
  [[nodiscard]] bool TryLock() LARDER_ATTRIBUTE(try_acquire_capability(true)) {
    return mu_.try_lock();
  }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class LARDER_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) LARDER_ATTRIBUTE(acquire_capability(mu)) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() LARDER_ATTRIBUTE(release_capability()) { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Wait and WaitUntil unlock the mutex while they sleep, and lock it again before they return.  They
// may return without a notification, so the caller checks its condition after each return.
class CondVar {
 public:
  void Wait(Mutex& mu) LARDER_REQUIRES(mu) {
    std::unique_lock lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // Returns false if the deadline ended the wait.  The caller's condition may be true all the same,
  // so the caller checks it again.
  bool WaitUntil(Mutex& mu, std::chrono::steady_clock::time_point deadline) LARDER_REQUIRES(mu) {
    std::unique_lock lock(mu.mu_, std::adopt_lock);
    const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace larder
