// Ends a streaming call that takes too long: what a stalled call holds (a lease, a reservation, a
// share) must come back without the caller's help.
//
// A call whose caller named no deadline ends kDefault after it began; one that names its own keeps
// it, up to the bound.  With an idle limit a call also ends when nothing moved for so long.
// Ownership: a member of the call's reactor; the context outlives it.  Thread-safety: made and
// destroyed once each, from any thread; Moved from any; it may fire on a thread of gRPC meanwhile.
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
  static constexpr std::chrono::seconds kDefault{30};  // as proto/larder/v1/types.proto has it

  struct Limits {
    std::chrono::seconds most;  // whatever the caller names
    std::chrono::seconds idle;  // 0: it may be idle
  };
  static constexpr Limits kWork{.most = std::chrono::hours(24), .idle = {}};  // of a long verb
  static constexpr Limits kBytes{.most = std::chrono::hours(1), .idle = kDefault};
  static constexpr Limits kLinger{.most = kDefault, .idle = {}};  // of what has ended

  CallDeadline(grpc::CallbackServerContext& context, const Limits& limits)
      : call_(std::make_shared<Call>()) {
    using std::chrono::system_clock;
    std::chrono::nanoseconds left = kDefault;
    if (context.deadline() != system_clock::time_point::max())
      left = context.deadline() - system_clock::now();
    const TimePoint now = std::chrono::steady_clock::now();
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
    std::shared_ptr<grpc::Alarm> alarm;  // cancelled without the lock: that may call back
    MutexLock lock(call_->mu);
    call_->context = nullptr;
    alarm.swap(call_->alarm);
  }
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

  // The call is not idle.  Cheap.
  void Moved() { call_->Moved(std::chrono::steady_clock::now()); }

 private:
  struct Call {
    void Moved(TimePoint now) { moved.store(now, std::memory_order_relaxed); }

    std::atomic<TimePoint> moved;
    Mutex mu;
    grpc::CallbackServerContext* context LARDER_GUARDED_BY(mu) = nullptr;  // null: the call is over
    TimePoint end LARDER_GUARDED_BY(mu);
    std::chrono::seconds idle LARDER_GUARDED_BY(mu);
    std::shared_ptr<grpc::Alarm> alarm LARDER_GUARDED_BY(mu);
  };
  // Ends the call if it is due, else looks again when it may be.
  static void Check(const std::shared_ptr<Call>& call, TimePoint now) {
    // Another alarm each time: one cannot be set again while it fires.
    const auto alarm = std::make_shared<grpc::Alarm>();
    std::shared_ptr<grpc::Alarm> before = alarm;  // dropped without the lock, as below
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
    // Without the lock, as it may fire at once.
    alarm->Set(std::chrono::system_clock::now() +
                   std::chrono::ceil<std::chrono::system_clock::duration>(left),
               [call](bool fired) {
                 if (fired) Check(call, std::chrono::steady_clock::now());
               });
  }

  const std::shared_ptr<Call> call_;
};

}  // namespace larder
