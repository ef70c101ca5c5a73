// What the daemon should hear soon but nobody waits for: releases, acknowledgements, aborts,
// cancels.  They ride on the next request; when none comes within 10 ms (40 while all do), a thread
// of its own sends them.  It does the session's chores, too: a session has no other thread, but
// those that copy.
//
// The order among what is collected is not kept, and need not be: each of these is final for its
// id.
// Ownership: does not own the channel.  Thread-safety: all methods from any thread.
// Lifecycle: made -> Start(channel) -> ... -> Stop (joins the thread) -> destroyed.
// Limits: one message takes at most kKeysMax ids and kPartsMax parts; the rest waits for the next.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "client/session/session_channel.h"
#include "storage/clock.h"
#include "storage/mutex.h"

namespace larder {

class Outbox {
 public:
  // Long enough for a busy engine's next request, short enough that an idle one does not hold
  // leases.  Doubled while everything rides along: 32 busy sessions that looked every 10 ms took
  // 6 % of two cores for it.
  static constexpr std::chrono::milliseconds kRideAlong{10}, kRideAlongMax{40};

  // Called by the thread first, then when it asked to be and after each Arm, 40 ms late at most;
  // answers when it wants to be called next.  May call Add.  Not called any more once Stop began.
  using Chores = std::function<std::optional<TimePoint>(TimePoint now)>;
  explicit Outbox(Chores chores) : chores_(std::move(chores)) {}
  ~Outbox() { Stop(/*bye=*/false); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // REQUIRES: called once; the channel lives until Stop.
  void Start(SessionChannel* channel) LARDER_EXCLUDES(mu_);
  void Release(LeaseId lease) LARDER_EXCLUDES(mu_);
  void Acknowledge(LeaseId lease) LARDER_EXCLUDES(mu_);
  void Acknowledge(ReservationId reservation) LARDER_EXCLUDES(mu_);
  void Add(wire::Abort abort) LARDER_EXCLUDES(mu_);
  void Cancel(uint64_t acquire_id) LARDER_EXCLUDES(mu_);
  // Cancels the channel, if there still is one.
  void CancelChannel() LARDER_EXCLUDES(mu_);
  // Chores are wanted.
  void Arm() LARDER_EXCLUDES(mu_);
  // Sends `up` with what has been collected.  Unavailable before Start and after Stop.
  [[nodiscard]] absl::Status Send(wire::Up up) LARDER_EXCLUDES(mu_);
  // Sends what is left; with `bye`, as the last message of all, that nothing is in use any more.
  // True: that went out.
  bool Stop(bool bye) LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  // Sends until nothing is left.
  void Flush() LARDER_REQUIRES(mu_);
  // Waits until there is something to do; to send, then a while for a request to take it along.
  void WaitForWork() LARDER_REQUIRES(mu_);
  void ArmLocked() LARDER_REQUIRES(mu_);
  void TakeInto(wire::Up* up) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool HasLeft() const LARDER_REQUIRES(mu_);

  const Chores chores_;
  std::thread thread_;
  Mutex mu_;
  CondVar wake_;
  SessionChannel* channel_ LARDER_GUARDED_BY(mu_) = nullptr;
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  bool armed_ LARDER_GUARDED_BY(mu_) = false;
  bool asleep_ LARDER_GUARDED_BY(mu_) = false;  // in a wait that only Arm or `due_` ends
  std::optional<TimePoint> due_ LARDER_GUARDED_BY(mu_);
  std::chrono::milliseconds ride_ LARDER_GUARDED_BY(mu_) = kRideAlong;
  std::vector<LeaseId> releases_ LARDER_GUARDED_BY(mu_);
  wire::RevokeAck acks_ LARDER_GUARDED_BY(mu_);
  std::vector<wire::Abort> aborts_ LARDER_GUARDED_BY(mu_);
  std::vector<uint64_t> cancels_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
