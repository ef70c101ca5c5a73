// Where the actors of the storm stop: for a look at everything at once, and while the daemon is
// not there.
//
// Thread-safety: all methods from any thread; Close, Open and End by one.
#pragma once

#include <atomic>
#include <functional>

#include "storage/mutex.h"

namespace larder::e2e {

class StormGate {
 public:
  explicit StormGate(int actors) : actors_(actors) {}

  // An actor between two steps: waits while the gate is closed; false: it is to end.  `park` is
  // called before it waits, and told whether the daemon will be another one.
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
  // Until all wait.
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
  // The daemon is about to end: calls may fail from now on.
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
