// What ends a call before its answer comes: its deadline, or a cancellation by another thread.
//
// Ownership: a CallCancel outlives the calls that it is given to.
// Thread-safety: any thread may call Cancel and cancelled; a CallCancel serves one call at a time.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class CallCancel {
 public:
  // Ends the call under way, and every later call that is given this CallCancel.
  void Cancel() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    cancelled_ = true;
    woken_.NotifyAll();
    if (stop_) stop_();
  }
  [[nodiscard]] bool cancelled() const LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return cancelled_;
  }

  // Sleeps for `how_long`, or until Cancel is called.  Returns false if Cancel has been called.
  [[nodiscard]] bool Sleep(std::chrono::milliseconds how_long) LARDER_EXCLUDES(mu_) {
    const auto until = SteadyNow() + how_long;
    MutexLock lock(mu_);
    while (!cancelled_ && woken_.WaitUntil(mu_, until)) continue;
    return !cancelled_;
  }

  // For the code that makes a call.  While the Scope lives, Cancel calls `stop`, which must end the
  // call; the constructor calls `stop` if Cancel was called before.  `stop` runs under the
  // CallCancel's lock, so it must not use the CallCancel.  If `cancel` is null, the Scope does
  // nothing.
  class Scope {
   public:
    Scope(CallCancel* cancel, std::function<void()> stop) : cancel_(cancel) {
      if (cancel_ == nullptr) return;
      MutexLock lock(cancel_->mu_);
      if (cancel_->cancelled_) stop();
      cancel_->stop_ = std::move(stop);
    }
    ~Scope() {
      if (cancel_ == nullptr) return;
      MutexLock lock(cancel_->mu_);
      cancel_->stop_ = nullptr;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    CallCancel* const cancel_;
  };

 private:
  mutable Mutex mu_;
  CondVar woken_;
  bool cancelled_ LARDER_GUARDED_BY(mu_) = false;
  std::function<void()> stop_ LARDER_GUARDED_BY(mu_);
};

struct CallLimits {
  static constexpr std::chrono::milliseconds kNoDeadline = std::chrono::milliseconds::max();

  CallLimits(std::chrono::milliseconds the_deadline,  // NOLINT(google-explicit-constructor)
             CallCancel* who_cancels = nullptr)
      : deadline(the_deadline), cancel(who_cancels) {}
  std::chrono::milliseconds deadline;  // a unary call lasts at most wire::kDeadlineMaxMs
  CallCancel* cancel;                  // may be null
};

}  // namespace larder
