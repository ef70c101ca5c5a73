// Matches a request with its answer: the caller waits on an OpenCall, and answers are delivered by
// id.
//
// Over a MessagePump the callers read the stream themselves: one of the waiting callers pumps, the
// others sleep until their answer is delivered or the pump is passed to them.  While no caller
// waits, the owner polls from time to time (PumpIfIdle), so that revocations are noticed.
//
// PendingCalls does not interpret answers.  If a call is closed before its caller took the answer,
// the owner gets the answer back and can return the lease or reservation in it.
// Ownership: PendingCalls outlives its OpenCalls.
// Thread-safety: PendingCalls from any thread; an OpenCall from one thread at a time.
// Lifecycle: A call: Open -> (sent) -> Wait -> [WaitReady ...] -> destroyed.  The pump: StartPump
// -> StopPump, which waits until no thread pumps.
// Invariants: At most one thread pumps through PendingCalls.  When it stops, PassOn wakes a waiting
// caller, if there is one, which can pump next.  (A thread that sends may also take messages in,
// independently of this.)
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/session_channel.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"
#include "storage/mutex.h"
#include "storage/status_macros.h"

namespace larder {

using Answer =
    std::variant<wire::Registered, wire::Reserved, wire::Published, wire::Grant, wire::BlockReady>;

class PendingCalls {
  // Guarded by mu_ of the PendingCalls.
  struct Slot {
    CondVar changed;
    std::optional<Answer> answer;
    std::vector<wire::BlockReady> ready;
    absl::Status failed;
  };

 public:
  // While no caller waits, the owner polls about every kIdle, and less often, up to kIdleMax apart,
  // while no messages arrive.
  static constexpr std::chrono::milliseconds kIdle{10}, kIdleMax{40};
  // Most messages that one poll takes in: the owner has other work, and must be able to stop.
  static constexpr int kIdleMessagesMax = 64;
  // Longest time that a wait for an answer spins before it sleeps, which saves waking the thread
  // (get of 16 blocks of 64 KiB: 223 us when the caller sleeps, 160 us when it spins).
  static constexpr std::chrono::microseconds kSpin{80};

  class OpenCall {
   public:
    OpenCall() = default;
    OpenCall(OpenCall&& other) noexcept { *this = std::move(other); }
    OpenCall& operator=(OpenCall&& other) noexcept;
    ~OpenCall() { Close(); }

    [[nodiscard]] uint64_t id() const { return id_; }
    [[nodiscard]] explicit operator bool() const { return slot_ != nullptr; }
    // Waits for the answer and returns it.  Returns DeadlineExceeded if there is none by the
    // deadline, the status of FailAll if that was called before the answer came, Internal if the
    // daemon answered with another kind of message.
    template <class A>
    [[nodiscard]] absl::StatusOr<A> Wait(TimePoint deadline);
    // Waits until at least one pending key of an Acquire has been answered, and returns the answers
    // that no earlier call returned.  Returns DeadlineExceeded if there are none by the deadline,
    // the status of FailAll if there are none and that was called.
    [[nodiscard]] absl::StatusOr<std::vector<wire::BlockReady>> WaitReady(TimePoint deadline);

   private:
    friend class PendingCalls;
    void Close();
    [[nodiscard]] absl::StatusOr<Answer> WaitAnswer(TimePoint deadline);

    PendingCalls* calls_ = nullptr;
    std::shared_ptr<Slot> slot_;
    uint64_t id_ = 0;
  };

  // `unclaimed` is called, without mu_, with answers that arrived and that no caller took.
  explicit PendingCalls(std::function<void(Answer)> unclaimed) : unclaimed_(std::move(unclaimed)) {}

  [[nodiscard]] uint64_t NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] OpenCall Open() LARDER_EXCLUDES(mu_);
  // Delivers the answer to the open call of this id.  If there is none, or if it has an answer
  // already, the answer goes to `unclaimed`.
  void Deliver(uint64_t id, Answer answer) LARDER_EXCLUDES(mu_);
  // Delivers a block of an Acquire that became ready (OpenCall::WaitReady).  If its call is not
  // open, the block goes to `unclaimed` now; if the call closes before WaitReady has taken the
  // block, it goes to `unclaimed` then.  A call keeps at most kKeysMax such blocks; more are
  // dropped.
  void DeliverReady(wire::BlockReady ready) LARDER_EXCLUDES(mu_);
  // From now on waits for answers that have not arrived return `status` (of the first FailAll).
  void FailAll(const absl::Status& status) LARDER_EXCLUDES(mu_);

  // From now on waiting callers pump.
  void StartPump(MessagePump* pump) LARDER_EXCLUDES(mu_);
  // Takes in messages, unless a caller waits or has waited within the last kIdle.  Returns when to
  // poll again, or nullopt if there is no pump or FailAll was called.  Called from one thread.
  [[nodiscard]] std::optional<TimePoint> PumpIfIdle(TimePoint now) LARDER_EXCLUDES(mu_);
  // Once this has returned, no thread pumps.  REQUIRES: FailAll was called.
  void StopPump() LARDER_EXCLUDES(mu_);

 private:
  // Waits until done() is true or the deadline has passed, and returns done().  done() is called
  // under mu_.
  template <class Done>
  [[nodiscard]] bool Await(Slot& slot, TimePoint deadline, Done done) LARDER_REQUIRES(mu_);
  void PumpUntil(uint64_t seen, TimePoint spin_until, TimePoint deadline) LARDER_REQUIRES(mu_);
  // Takes in messages that have arrived, until a caller waits, but at most about kIdleMessagesMax.
  // Returns about how many.
  int TakeWhatCame() LARDER_REQUIRES(mu_);
  // Lets another waiting caller take over the pump.
  void PassOn() LARDER_REQUIRES(mu_);

  const std::function<void(Answer)> unclaimed_;
  std::atomic<uint64_t> next_id_{1};
  Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Slot>> open_ LARDER_GUARDED_BY(mu_);
  absl::Status failed_ LARDER_GUARDED_BY(mu_);
  MessagePump* pump_ LARDER_GUARDED_BY(mu_) = nullptr;
  bool pumping_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<Slot*> waiting_ LARDER_GUARDED_BY(mu_);
  TimePoint last_wait_ LARDER_GUARDED_BY(mu_);                      // end of a caller's last wait
  std::chrono::milliseconds pause_ LARDER_GUARDED_BY(mu_) = kIdle;  // between two polls
  CondVar pump_free_;                                               // StopPump waits for it
};

using OpenCall = PendingCalls::OpenCall;

template <class A>
absl::StatusOr<A> PendingCalls::OpenCall::Wait(TimePoint deadline) {
  LARDER_ASSIGN_OR_RETURN(Answer answer, WaitAnswer(deadline));
  if (A* found = std::get_if<A>(&answer)) return std::move(*found);
  calls_->unclaimed_(std::move(answer));
  return absl::InternalError("the daemon answered a request with another kind of message");
}

}  // namespace larder
