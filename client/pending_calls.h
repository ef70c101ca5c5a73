// Joins a request with its answer: the caller waits on an OpenCall, the stream's reader delivers by
// id.
//
// Knows nothing of what an answer means: whoever closes a call that nobody consumed gets the answer
// back, so that a lease or reservation in it can be returned.
// Ownership: PendingCalls outlives its OpenCalls.
// Thread-safety: PendingCalls from any thread; an OpenCall from one thread at a time.
// Lifecycle of a call: Open -> (sent) -> Wait -> [WaitReady ...] -> destroyed.
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
#include "client/wire/messages.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

using Answer = std::variant<wire::Registered, wire::Reserved, wire::Published, wire::Grant>;

class PendingCalls {
  struct Slot {
    Mutex mu;
    CondVar changed;
    std::optional<Answer> answer LARDER_GUARDED_BY(mu);
    std::vector<wire::BlockReady> ready LARDER_GUARDED_BY(mu);
    absl::Status failed LARDER_GUARDED_BY(mu);
    bool closed LARDER_GUARDED_BY(mu) = false;
  };

 public:
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
  void DeliverReady(wire::BlockReady ready) LARDER_EXCLUDES(mu_);
  // All calls, open and to come, answer `status`.
  void FailAll(const absl::Status& status) LARDER_EXCLUDES(mu_);

 private:
  [[nodiscard]] std::shared_ptr<Slot> Find(uint64_t id) LARDER_EXCLUDES(mu_);
  void Forget(uint64_t id) LARDER_EXCLUDES(mu_);

  const std::function<void(Answer)> unclaimed_;
  std::atomic<uint64_t> next_id_{1};
  Mutex mu_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Slot>> open_ LARDER_GUARDED_BY(mu_);
  absl::Status failed_ LARDER_GUARDED_BY(mu_);
};

using OpenCall = PendingCalls::OpenCall;

template <class A>
absl::StatusOr<A> PendingCalls::OpenCall::Wait(TimePoint deadline) {
  absl::StatusOr<Answer> answer = WaitAnswer(deadline);
  if (!answer.ok()) return answer.status();
  if (A* found = std::get_if<A>(&*answer)) return std::move(*found);
  calls_->unclaimed_(*std::move(answer));
  return absl::InternalError("the daemon answered a request with another kind of message");
}

}  // namespace larder
