#include "client/session/outbox.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "storage/clock.h"

namespace larder {
namespace {

// Moves the first elements of `from`, at most `most`, to the end of `to`.
template <class T>
void MoveSome(std::vector<T>* from, size_t most, std::vector<T>* to) {
  const size_t count = std::min(most, from->size());
  const auto end = from->begin() + static_cast<ptrdiff_t>(count);
  to->insert(to->end(), std::make_move_iterator(from->begin()), std::make_move_iterator(end));
  from->erase(from->begin(), end);
}

}  // namespace

void Outbox::Start(SessionChannel* channel) {
  {
    MutexLock lock(mu_);
    if (stop_) return;
    channel_ = channel;
    due_ = TimePoint();
  }
  thread_ = std::thread([this] { Run(); });
}

void Outbox::ArmLocked() {
  armed_ = true;
  // If the thread is awake, it checks armed_ soon anyway: a busy session pays no wake-up per call.
  if (asleep_) wake_.NotifyOne();
}

void Outbox::Release(LeaseId lease) {
  MutexLock lock(mu_);
  releases_.push_back(lease);
  ArmLocked();
}

void Outbox::Acknowledge(LeaseId lease) {
  MutexLock lock(mu_);
  acks_.leases.push_back(lease);
  ArmLocked();
}

void Outbox::Acknowledge(ReservationId reservation) {
  MutexLock lock(mu_);
  acks_.reservations.push_back(reservation);
  ArmLocked();
}

void Outbox::Add(wire::Abort abort) {
  MutexLock lock(mu_);
  aborts_.push_back(std::move(abort));
  ArmLocked();
}

void Outbox::Cancel(uint64_t acquire_id) {
  MutexLock lock(mu_);
  cancels_.push_back(acquire_id);
  ArmLocked();
}

void Outbox::CancelChannel() {
  MutexLock lock(mu_);
  if (channel_ != nullptr) channel_->Cancel();
}

void Outbox::Arm() {
  MutexLock lock(mu_);
  ArmLocked();
}

bool Outbox::HasLeft() const {
  return !releases_.empty() || !acks_.leases.empty() || !acks_.reservations.empty() ||
         !aborts_.empty() || !cancels_.empty();
}

void Outbox::TakeInto(wire::Up* up) {
  MoveSome(&releases_, wire::kKeysMax, &up->releases);
  MoveSome(&aborts_, wire::kPartsMax - std::min(wire::kPartsMax, up->aborts.size()), &up->aborts);
  MoveSome(&cancels_, wire::kPartsMax - std::min(wire::kPartsMax, up->cancels.size()),
           &up->cancels);
  if (acks_.leases.empty() && acks_.reservations.empty()) return;
  wire::RevokeAck& ack = up->revoke_ack ? *up->revoke_ack : up->revoke_ack.emplace();
  MoveSome(&acks_.leases, wire::kKeysMax, &ack.leases);
  MoveSome(&acks_.reservations, wire::kKeysMax, &ack.reservations);
}

absl::Status Outbox::Send(wire::Up up) {
  SessionChannel* channel;
  {
    MutexLock lock(mu_);
    if (channel_ == nullptr) return absl::UnavailableError("the session has no stream");
    channel = channel_;
    TakeInto(&up);
  }
  return channel->Send(std::move(up));
}

void Outbox::WaitForWork() {
  asleep_ = true;
  while (!stop_ && !armed_) {
    if (!due_) {
      wake_.Wait(mu_);
    } else if (!wake_.WaitUntil(mu_, *due_)) {
      break;
    }
  }
  asleep_ = false;
  if (!std::exchange(armed_, false)) return;
  const TimePoint until = SteadyNow() + ride_;
  while (!stop_ && wake_.WaitUntil(mu_, until)) {
  }
  ride_ = HasLeft() ? kRideAlong : std::min(2 * ride_, kRideAlongMax);
}

void Outbox::Flush() {
  while (channel_ != nullptr && HasLeft()) {
    wire::Up up;
    TakeInto(&up);
    SessionChannel* const channel = channel_;
    mu_.Unlock();
    // An error is ignored: the stream is then lost, and with it the leases and reservations.
    (void)channel->Send(std::move(up));
    mu_.Lock();
  }
}

void Outbox::Run() {
  pthread_setname_np(pthread_self(), "larder-outbox");
  mu_.Lock();
  while (!stop_) {
    WaitForWork();
    if (stop_) break;
    mu_.Unlock();
    const std::optional<TimePoint> due = chores_(SteadyNow());
    mu_.Lock();
    due_ = due;
    Flush();
  }
  mu_.Unlock();
}

bool Outbox::Stop(bool bye) {
  {
    MutexLock lock(mu_);
    stop_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  SessionChannel* channel;
  {
    MutexLock lock(mu_);
    Flush();
    channel = std::exchange(channel_, nullptr);
  }
  if (!bye || channel == nullptr) return false;
  wire::Up up;
  up.bye = true;
  return channel->Send(std::move(up)).ok();
}

}  // namespace larder
