// Messages that the daemon should get soon but that no caller waits for: releases of leases,
// acknowledgements of revocations, aborts of reserved extents, cancels of acquires.  A request that
// is sent meanwhile carries them; otherwise the outbox's thread sends them after at most about 40
// ms.  That thread also calls Chores.
//
// The outbox does not preserve the order of what it collects; none of these messages needs another
// to be handled before it.
// Ownership: Does not own the channel.
// Thread-safety: All methods may be called from any thread.
// Lifecycle: made -> Start(channel) -> ... -> Stop (joins the thread) -> destroyed.
// Limits: One message takes at most kKeysMax ids of each kind, and at most kPartsMax aborts and
// cancels; the rest waits for the next message.
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
  // How long the outbox's thread waits for a request that carries what was collected: long enough
  // for a busy engine's next request, short enough that an idle engine does not hold leases for
  // long.  The wait doubles, up to kRideAlongMax, while requests carry everything: the threads of
  // 32 busy sessions used 6 % of two cores when each waited 10 ms.
  static constexpr std::chrono::milliseconds kRideAlong{10}, kRideAlongMax{40};

  // The outbox's thread calls this function from time to time: soon after an Arm or a collected
  // message, and at about the time that its last call returned (nullopt: no time).  The function
  // may call Add.  It is not called any more once Stop has returned.
  using Chores = std::function<std::optional<TimePoint>(TimePoint now)>;
  explicit Outbox(Chores chores) : chores_(std::move(chores)) {}
  ~Outbox() { Stop(/*bye=*/false); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // REQUIRES: Start is called once, and the channel lives until Stop has returned.
  void Start(SessionChannel* channel) LARDER_EXCLUDES(mu_);
  void Release(LeaseId lease) LARDER_EXCLUDES(mu_);
  void Acknowledge(LeaseId lease) LARDER_EXCLUDES(mu_);
  void Acknowledge(ReservationId reservation) LARDER_EXCLUDES(mu_);
  void Add(wire::Abort abort) LARDER_EXCLUDES(mu_);
  void Cancel(uint64_t acquire_id) LARDER_EXCLUDES(mu_);
  // Cancels the channel, if there still is one.
  void CancelChannel() LARDER_EXCLUDES(mu_);
  // Requests that chores run.
  void Arm() LARDER_EXCLUDES(mu_);
  // Sends `up`, together with as many waiting releases, acknowledgements, aborts and cancels as
  // fit.  Returns Unavailable before Start and after Stop; other errors are the channel's.
  [[nodiscard]] absl::Status Send(wire::Up up) LARDER_EXCLUDES(mu_);
  // Ends the thread and sends what is left.  If `bye` is true, then sends one more message, which
  // says that nothing is in use any more, and returns true if the channel took that message.  In
  // all other cases, and if Stop was called before, returns false.
  bool Stop(bool bye) LARDER_EXCLUDES(mu_);

 private:
  void Run() LARDER_EXCLUDES(mu_);
  // Sends until nothing is left.  Releases mu_ while it sends.
  void Flush() LARDER_REQUIRES(mu_);
  // Waits for Arm, Stop or the time due_.  After an Arm, waits ride_ longer for a request that
  // carries what was collected.
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
  bool asleep_ LARDER_GUARDED_BY(mu_) = false;  // in a wait that only Arm, Stop or `due_` ends
  std::optional<TimePoint> due_ LARDER_GUARDED_BY(mu_);
  std::chrono::milliseconds ride_ LARDER_GUARDED_BY(mu_) = kRideAlong;
  std::vector<LeaseId> releases_ LARDER_GUARDED_BY(mu_);
  wire::RevokeAck acks_ LARDER_GUARDED_BY(mu_);
  std::vector<wire::Abort> aborts_ LARDER_GUARDED_BY(mu_);
  std::vector<uint64_t> cancels_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
