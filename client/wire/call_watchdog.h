// Cancels a gRPC call that does not come on: gRPC's blocking calls of a stream know no deadline of
// their own, and a daemon that was stopped would hold their callers for ever.
//
//   CallWatchdog watchdog([&context] { context.TryCancel(); });
//   { const CallWatchdog::Watch watch(watchdog, now + 10s);  stream->Write(message); }
//
// Ownership: owns a thread; what `cancel` uses outlives this.  Thread-safety: all methods from any
// thread.
// Lifecycle: a Watch ends before its watchdog.  After the first cancel nothing is watched any more.
// Limits: meant for a handful of watches at a time.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class CallWatchdog {
 public:
  // `cancel` runs on the watchdog's thread, at most once.
  explicit CallWatchdog(std::function<void()> cancel);
  ~CallWatchdog();
  CallWatchdog(const CallWatchdog&) = delete;
  CallWatchdog& operator=(const CallWatchdog&) = delete;

  // Armed while it lives.
  class Watch {
   public:
    Watch(CallWatchdog& watchdog, TimePoint due) : watchdog_(watchdog), due_(due) {
      watchdog_.Arm(due_);
    }
    ~Watch() { watchdog_.Disarm(due_); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    CallWatchdog& watchdog_;
    const TimePoint due_;
  };
  // For as long as the watchdog lives.
  void Arm(TimePoint due) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool cancelled() LARDER_EXCLUDES(mu_);

 private:
  void Disarm(TimePoint due) LARDER_EXCLUDES(mu_);
  void Run() LARDER_EXCLUDES(mu_);

  const std::function<void()> cancel_;
  Mutex mu_;
  CondVar wake_;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  bool cancelled_ LARDER_GUARDED_BY(mu_) = false;
  // When the thread looks next.  Later than what is due it never is; earlier it may be, so that
  // writes in quick succession wake nobody.
  TimePoint looks_at_ LARDER_GUARDED_BY(mu_) = TimePoint::max();
  std::vector<TimePoint> due_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses the others
};

}  // namespace larder
