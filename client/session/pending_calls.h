// Matches a request with its answer: the caller waits on an OpenCall, and answers are delivered by
// id.
//
// If the session's stream is a MessagePump, which has no thread of its own, the waiting callers
// read it: one of them pumps (reads messages and hands them over), the others sleep.  While no
// caller waits, the owner calls PumpIfIdle from time to time, so that revocations are noticed.
//
// PendingCalls does not interpret answers.  An answer that no caller took goes to the owner, which
// can return the lease or reservation in it.
// Ownership: PendingCalls outlives its OpenCalls.
// Thread-safety: PendingCalls from any thread; an OpenCall from one thread at a time.
// Lifecycle: A call: Open -> (sent) -> Wait -> [WaitReady ...] -> destroyed.  The pump: StartPump
// -> StopPump, which waits until no thread pumps.
// Invariants: At most one thread pumps through PendingCalls.  When that thread stops, PassOn wakes
// a waiting caller, if there is one, which can pump next.  (SessionChannel::Send may also hand over
// messages, independently of this.)
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

using Answer = std::variant<wire::Registered, wire::Reserved, wire::Published, wire::Promised,
                            wire::Grant, wire::BlockReady>;

class PendingCalls {
  // Guarded by mu_ of the PendingCalls.
  struct Slot {
    CondVar changed;
    std::optional<Answer> answer;
    std::vector<wire::BlockReady> ready;
    absl::Status failed;
  };

 public:
  // While no caller waits, PumpIfIdle is due about every kIdle, and less often, up to kIdleMax
  // apart, while no messages arrive.
  static constexpr std::chrono::milliseconds kIdle{10}, kIdleMax{40};
  // About the most messages that one PumpIfIdle reads: its thread has other work, and must be able
  // to stop.
  static constexpr int kIdleMessagesMax = 64;
  // For how long one Poll begins to read messages.  An engine's scheduler polls in each of its
  // steps, and a step must not become longer because many answers arrive at once.  Reading one
  // answer takes about 20 us.
  static constexpr std::chrono::microseconds kPollMax{250};
  // Longest time that a caller spins for its answer before it sleeps.  A Get of 16 blocks of 64 KiB
  // took 223 us when the caller slept at once, and 160 us when it spun first.
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
    // deadline, the status of FailAll if FailAll was called first, Internal if the daemon answered
    // with another kind of message.
    template <class A>
    [[nodiscard]] absl::StatusOr<A> Wait(TimePoint deadline);
    // Returns the answer if it has arrived (see PendingCalls::Poll), otherwise nullopt; errors are
    // those of Wait.
    template <class A>
    [[nodiscard]] std::optional<absl::StatusOr<A>> Take();
    // For an Acquire: waits for answers to keys that the Grant called pending, and returns those
    // that no earlier call returned.  Returns DeadlineExceeded if there are none by the deadline,
    // the status of FailAll if there are none and FailAll was called.
    [[nodiscard]] absl::StatusOr<std::vector<wire::BlockReady>> WaitReady(TimePoint deadline);

   private:
    friend class PendingCalls;
    void Close();
    [[nodiscard]] absl::StatusOr<Answer> WaitAnswer(TimePoint deadline);
    [[nodiscard]] std::optional<absl::StatusOr<Answer>> TakeAnswer();
    template <class A>
    [[nodiscard]] absl::StatusOr<A> Only(Answer answer);

    PendingCalls* calls_ = nullptr;
    std::shared_ptr<Slot> slot_;
    uint64_t id_ = 0;
  };

  // `unclaimed` is called, without mu_ held, with answers that arrived and that no caller took.
  explicit PendingCalls(std::function<void(Answer)> unclaimed) : unclaimed_(std::move(unclaimed)) {}

  [[nodiscard]] uint64_t NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] OpenCall Open() LARDER_EXCLUDES(mu_);
  // Delivers the answer to the open call of this id.  If there is no such call, or if an answer
  // waits in it already, `answer` goes to `unclaimed`.
  void Deliver(uint64_t id, Answer answer) LARDER_EXCLUDES(mu_);
  // Delivers the answer to one pending key of an Acquire (OpenCall::WaitReady).  If its call is not
  // open, or closes before WaitReady has taken the answer, the answer goes to `unclaimed`.  A call
  // keeps at most kKeysMax such answers; more are dropped.
  void DeliverReady(wire::BlockReady ready) LARDER_EXCLUDES(mu_);
  // From now on waits for answers that have not arrived return `status` (of the first FailAll).
  void FailAll(const absl::Status& status) LARDER_EXCLUDES(mu_);

  // Reads messages that have arrived and delivers their answers, for about kPollMax at most, and
  // does not wait.  Does nothing while another thread pumps.
  void Poll() LARDER_EXCLUDES(mu_);

  // From now on waiting callers pump.
  void StartPump(MessagePump* pump) LARDER_EXCLUDES(mu_);
  // Reads messages, unless a caller waits or has waited within the last kIdle.  Returns when to
  // poll again, or nullopt if there is no pump or FailAll was called.  Called from one thread.
  [[nodiscard]] std::optional<TimePoint> PumpIfIdle(TimePoint now) LARDER_EXCLUDES(mu_);
  // Once StopPump has returned, no thread pumps through this object.  REQUIRES: FailAll was called.
  void StopPump() LARDER_EXCLUDES(mu_);

 private:
  // Waits until done() is true or the deadline has passed, and returns done().  done() is called
  // under mu_.
  template <class Done>
  [[nodiscard]] bool Await(Slot& slot, TimePoint deadline, Done done) LARDER_REQUIRES(mu_);
  void PumpUntil(uint64_t seen, TimePoint spin_until, TimePoint deadline) LARDER_REQUIRES(mu_);
  // Reads messages that have arrived.  Ends when none is left, a caller waits, SteadyNow() has
  // reached `until`, or it has read about kIdleMessagesMax.  Returns about how many it has read.
  int TakeWhatCame(TimePoint until) LARDER_REQUIRES(mu_);
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
  return Only<A>(std::move(answer));
}

template <class A>
std::optional<absl::StatusOr<A>> PendingCalls::OpenCall::Take() {
  std::optional<absl::StatusOr<Answer>> answer = TakeAnswer();
  if (!answer) return std::nullopt;
  if (!answer->ok()) return answer->status();
  return Only<A>(**std::move(answer));
}

template <class A>
absl::StatusOr<A> PendingCalls::OpenCall::Only(Answer answer) {
  if (A* found = std::get_if<A>(&answer)) return std::move(*found);
  calls_->unclaimed_(std::move(answer));
  return absl::InternalError("the daemon answered a request with another kind of message");
}

}  // namespace larder
