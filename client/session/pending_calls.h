// Joins a request with its answer: the caller waits on an OpenCall, answers are delivered by id.
//
// Over a MessagePump the callers read the stream themselves: one of those that wait pumps, the
// others sleep until theirs is delivered or the pump falls to them.  While no caller waits, the
// owner looks now and then (PumpIfIdle), so that revocations are heard.
//
// Knows nothing of what an answer means: whoever closes a call that nobody consumed gets the answer
// back, so that a lease or reservation in it can be returned.
// Ownership: PendingCalls outlives its OpenCalls.
// Thread-safety: PendingCalls from any thread; an OpenCall from one thread at a time.
// Lifecycle of a call: Open -> (sent) -> Wait -> [WaitReady ...] -> destroyed.  Of the pump:
// StartPump -> StopPump, which waits until nobody pumps.
// Invariants: of those that wait at most one pumps, and while a caller waits, one does.  (A thread
// that sends may take messages in, too, beside all this.)
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
  // Guarded by mu_ of its PendingCalls.
  struct Slot {
    CondVar changed;
    std::optional<Answer> answer;
    std::vector<wire::BlockReady> ready;
    absl::Status failed;
  };

 public:
  // What nobody waits for is heard this late: while callers come and go, and after a long silence.
  // (The owner may add to it.)
  static constexpr std::chrono::milliseconds kIdle{10}, kIdleMax{40};
  // What one look takes in at most: the owner has other work, and wants to end.
  static constexpr int kIdleMessagesMax = 64;
  // How long a caller looks for its answer before it sleeps, at most.  Most come within, and to
  // wake a thread that sleeps takes about as long again (get of 16 blocks of 64 KiB: 223 us asleep,
  // 160 so).
  static constexpr std::chrono::microseconds kSpin{80};

  class OpenCall {
   public:
    OpenCall() = default;
    OpenCall(OpenCall&& other) noexcept { *this = std::move(other); }
    OpenCall& operator=(OpenCall&& other) noexcept;
    ~OpenCall() { Close(); }

    [[nodiscard]] uint64_t id() const { return id_; }
    [[nodiscard]] explicit operator bool() const { return slot_ != nullptr; }
    // The answer.  DeadlineExceeded; Unavailable when the stream broke; Internal when the daemon
    // answered with another kind of message.
    template <class A>
    [[nodiscard]] absl::StatusOr<A> Wait(TimePoint deadline);
    // What arrived of an Acquire's pending keys since the last call; waits for at least one.
    [[nodiscard]] absl::StatusOr<std::vector<wire::BlockReady>> WaitReady(TimePoint deadline);

   private:
    friend class PendingCalls;
    void Close();
    [[nodiscard]] absl::StatusOr<Answer> WaitAnswer(TimePoint deadline);

    PendingCalls* calls_ = nullptr;
    std::shared_ptr<Slot> slot_;
    uint64_t id_ = 0;
  };

  // `unclaimed` gets each answer that arrived but was not waited for.
  explicit PendingCalls(std::function<void(Answer)> unclaimed) : unclaimed_(std::move(unclaimed)) {}

  [[nodiscard]] uint64_t NextId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] OpenCall Open() LARDER_EXCLUDES(mu_);
  // Unknown ids go to `unclaimed`.
  void Deliver(uint64_t id, Answer answer) LARDER_EXCLUDES(mu_);
  // Likewise; and those that a call was closed with.
  void DeliverReady(wire::BlockReady ready) LARDER_EXCLUDES(mu_);
  // All calls, open and to come, answer `status`.
  void FailAll(const absl::Status& status) LARDER_EXCLUDES(mu_);

  // From here on waiting callers pump.
  void StartPump(MessagePump* pump) LARDER_EXCLUDES(mu_);
  // Takes what came, unless a caller does or did a moment ago.  Answers when to look again (at once
  // when more came than one look takes in); nullopt, and never again, after StopPump or FailAll.
  // From one thread.
  [[nodiscard]] std::optional<TimePoint> PumpIfIdle(TimePoint now) LARDER_EXCLUDES(mu_);
  // Nobody pumps any more once this returned.  REQUIRES: FailAll was called.
  void StopPump() LARDER_EXCLUDES(mu_);

 private:
  // True when done() became so before the deadline; done is asked under mu_.
  template <class Done>
  [[nodiscard]] bool Await(Slot& slot, TimePoint deadline, Done done) LARDER_REQUIRES(mu_);
  void PumpUntil(uint64_t seen, TimePoint spin_until, TimePoint deadline) LARDER_REQUIRES(mu_);
  // How many messages had come; kIdleMessagesMax: maybe more.
  int TakeWhatCame() LARDER_REQUIRES(mu_);
  // Somebody who waits takes over.
  void PassOn() LARDER_REQUIRES(mu_);

  const std::function<void(Answer)> unclaimed_;
  std::atomic<uint64_t> next_id_{1};
  Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Slot>> open_ LARDER_GUARDED_BY(mu_);
  absl::Status failed_ LARDER_GUARDED_BY(mu_);
  MessagePump* pump_ LARDER_GUARDED_BY(mu_) = nullptr;
  bool pumping_ LARDER_GUARDED_BY(mu_) = false;
  std::vector<Slot*> waiting_ LARDER_GUARDED_BY(mu_);
  TimePoint last_wait_ LARDER_GUARDED_BY(mu_);                      // a caller's, its end
  std::chrono::milliseconds pause_ LARDER_GUARDED_BY(mu_) = kIdle;  // between looks
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
