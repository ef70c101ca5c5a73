// Ends a streaming call whose caller named no deadline, kDefault after it began: what a stalled
// call holds (a lease, a reservation, a place at the admission) must come back without the caller's
// help.
//
// A caller that names a deadline keeps it; gRPC sees to that one.
// Ownership: a member of the call's reactor; the context outlives it.  Thread-safety: made and
// destroyed once each, from any thread; it may fire on a thread of gRPC meanwhile.
#pragma once

#include <chrono>
#include <memory>

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include "storage/mutex.h"

namespace larder {

class CallDeadline {
 public:
  static constexpr std::chrono::seconds kDefault{30};  // as proto/larder/v1/types.proto has it

  explicit CallDeadline(grpc::CallbackServerContext& context) {
    if (context.deadline() != std::chrono::system_clock::time_point::max()) return;
    call_ = std::make_shared<Call>();
    {
      MutexLock lock(call_->mu);
      call_->context = &context;
    }
    alarm_.Set(std::chrono::system_clock::now() + kDefault, [call = call_](bool fired) {
      MutexLock lock(call->mu);
      if (fired && call->context != nullptr) call->context->TryCancel();
    });
  }
  ~CallDeadline() {
    if (!call_) return;
    MutexLock lock(call_->mu);
    call_->context = nullptr;
  }
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

 private:
  struct Call {
    Mutex mu;
    grpc::CallbackServerContext* context LARDER_GUARDED_BY(mu) = nullptr;  // null: the call is over
  };
  std::shared_ptr<Call> call_;  // null: the caller named a deadline
  grpc::Alarm alarm_;
};

}  // namespace larder
