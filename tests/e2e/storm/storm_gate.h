// The gate at which the actors of the storm wait while the test checks everything and while there
// is no daemon.
//
// Thread-safety: all methods may be called from any thread; Close and Open from one at a time.
#pragma once

#include <atomic>
#include <functional>

#include "storage/mutex.h"

namespace larder::e2e {

class StormGate {
 public:
  explicit StormGate(int actors) : actors_(actors) {}

  // Called by an actor between two steps.  Waits while the gate is closed, after calling `park`
  // with whether the daemon will be another one.  Returns false if the actor is to end.
  [[nodiscard]] bool Pass(const std::function<void(bool another)>& park) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (closed_) {
      park(stopping_);
      ++parked_;
      changed_.NotifyAll();
      while (closed_) changed_.Wait(mu_);
      --parked_;
    }
    return !ended_;
  }
  // Closes the gate and waits until all actors wait at it.
  void Close() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    closed_ = true;
    while (parked_ < actors_) changed_.Wait(mu_);
  }
  void Open(bool end = false) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    closed_ = false;
    ended_ = end;
    changed_.NotifyAll();
  }
  // Announces that the daemon is about to end, so that calls may fail from now on.
  void SetStopping(bool stopping) { stopping_ = stopping; }
  [[nodiscard]] bool stopping() const { return stopping_; }

 private:
  const int actors_;
  std::atomic<bool> stopping_{false};
  Mutex mu_;
  CondVar changed_;
  bool closed_ LARDER_GUARDED_BY(mu_) = true;
  bool ended_ LARDER_GUARDED_BY(mu_) = false;
  int parked_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder::e2e
