// Ends a call that takes too long: what a stalled call holds (a lease, a reservation, a share) must
// be released without the caller's help.
//
// A call for which the caller sets no deadline may last kDefault from the construction of the
// CallDeadline, another call until the caller's deadline, and no call longer than Limits::most;
// then it is cancelled.  With an idle limit, a call is also cancelled if Moved was not called for
// that long.
// Ownership: a member of the call's reactor; the context outlives it.
// Thread-safety: constructed and destroyed on any thread; Moved from any thread.  It may cancel the
// call on a thread of gRPC meanwhile.
// Locks: one, which is held while the call is cancelled, and not while an alarm is set or
// cancelled.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class CallDeadline {
 public:
  static constexpr std::chrono::seconds kDefault{30};  // as in proto/larder/v1/types.proto

  struct Limits {
    std::chrono::seconds most;  // the longest time that a call gets
    std::chrono::seconds idle;  // 0 disables the idle limit
  };
  static constexpr Limits kWork{.most = std::chrono::hours(24),
                                .idle = {}};  // verbs of many blocks
  static constexpr Limits kBytes{.most = std::chrono::hours(1), .idle = kDefault};  // byte streams
  // For a call that only waits for its client to read the end.
  static constexpr Limits kLinger{.most = kDefault, .idle = {}};

  CallDeadline(grpc::CallbackServerContext& context, const Limits& limits)
      : call_(std::make_shared<Call>()) {
    using std::chrono::system_clock;
    std::chrono::nanoseconds left = kDefault;
    if (context.deadline() != system_clock::time_point::max())
      left = context.deadline() - system_clock::now();
    const TimePoint now = SteadyNow();
    call_->Moved(now);
    {
      MutexLock lock(call_->mu);
      call_->context = &context;
      call_->end = now + std::min<std::chrono::nanoseconds>(left, limits.most);
      call_->idle = limits.idle;
    }
    Check(call_, now);
  }
  ~CallDeadline() {
    // The alarm is destroyed after the unlock, because that may run its callback.
    std::shared_ptr<grpc::Alarm> alarm;
    MutexLock lock(call_->mu);
    call_->context = nullptr;
    alarm.swap(call_->alarm);
  }
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

  // To be called when the call makes progress.  Cheap.
  void Moved() { call_->Moved(SteadyNow()); }

 private:
  struct Call {
    void Moved(TimePoint now) { moved.store(now, std::memory_order_relaxed); }

    std::atomic<TimePoint> moved;
    Mutex mu;
    // Null once the CallDeadline is destroyed.
    grpc::CallbackServerContext* context LARDER_GUARDED_BY(mu) = nullptr;
    TimePoint end LARDER_GUARDED_BY(mu);
    std::chrono::seconds idle LARDER_GUARDED_BY(mu);
    std::shared_ptr<grpc::Alarm> alarm LARDER_GUARDED_BY(mu);
  };
  // Cancels the call if its time is up, otherwise sets an alarm that checks again.
  static void Check(const std::shared_ptr<Call>& call, TimePoint now) {
    // A new alarm each time, because an alarm cannot be set again while its callback runs.
    const auto alarm = std::make_shared<grpc::Alarm>();
    std::shared_ptr<grpc::Alarm> before = alarm;  // the old one is destroyed without the lock
    std::chrono::nanoseconds left{0};
    {
      MutexLock lock(call->mu);
      if (call->context == nullptr) return;
      TimePoint due = call->end;
      if (call->idle > std::chrono::seconds(0))
        due = std::min<TimePoint>(due, call->moved.load(std::memory_order_relaxed) + call->idle);
      if (now >= due) return call->context->TryCancel();
      left = due - now;
      call->alarm.swap(before);
    }
    // Without the lock, because the callback may run at once.
    alarm->Set(std::chrono::system_clock::now() +
                   std::chrono::ceil<std::chrono::system_clock::duration>(left),
               [call](bool fired) {
                 if (fired) Check(call, SteadyNow());
               });
  }

  const std::shared_ptr<Call> call_;
};

}  // namespace larder
