#include "client/session/pending_calls.h"

#include <algorithm>
#include <utility>

#include "storage/clock.h"

namespace larder {

// ---- a call

PendingCalls::OpenCall& PendingCalls::OpenCall::operator=(OpenCall&& other) noexcept {
  if (this != &other) {
    Close();
    calls_ = std::exchange(other.calls_, nullptr);
    slot_ = std::exchange(other.slot_, nullptr);
    id_ = std::exchange(other.id_, 0);
  }
  return *this;
}

void PendingCalls::OpenCall::Close() {
  if (slot_ == nullptr) return;
  std::optional<Answer> left;
  std::vector<wire::BlockReady> ready;
  {
    MutexLock lock(calls_->mu_);
    calls_->open_.erase(id_);  // from here on deliveries do not find this call
    left = std::exchange(slot_->answer, std::nullopt);
    ready = std::exchange(slot_->ready, {});
  }
  slot_ = nullptr;
  if (left) calls_->unclaimed_(*std::move(left));
  for (wire::BlockReady& one : ready) calls_->unclaimed_(std::move(one));
}

absl::StatusOr<Answer> PendingCalls::OpenCall::WaitAnswer(TimePoint deadline) {
  Slot& slot = *slot_;
  MutexLock lock(calls_->mu_);
  const bool done = calls_->Await(slot, deadline,
                                  [&slot] { return slot.answer.has_value() || !slot.failed.ok(); });
  if (slot.answer) return *std::exchange(slot.answer, std::nullopt);
  if (done) return slot.failed;
  return absl::DeadlineExceededError("the daemon did not answer before the call's deadline");
}

std::optional<absl::StatusOr<Answer>> PendingCalls::OpenCall::TakeAnswer() {
  MutexLock lock(calls_->mu_);
  if (slot_->answer) return *std::exchange(slot_->answer, std::nullopt);
  if (!slot_->failed.ok()) return slot_->failed;
  return std::nullopt;
}

absl::StatusOr<std::vector<wire::BlockReady>> PendingCalls::OpenCall::WaitReady(
    TimePoint deadline) {
  Slot& slot = *slot_;
  MutexLock lock(calls_->mu_);
  const bool done =
      calls_->Await(slot, deadline, [&slot] { return !slot.ready.empty() || !slot.failed.ok(); });
  if (!slot.ready.empty()) return std::exchange(slot.ready, {});
  if (done) return slot.failed;
  return absl::DeadlineExceededError(
      "pending blocks did not become ready before the call's deadline");
}

// ---- waiting, and the pump

template <class Done>
bool PendingCalls::Await(Slot& slot, TimePoint deadline, Done done) {
  waiting_.push_back(&slot);
  const TimePoint spin_until = SteadyNow() + kSpin;
  bool in_time = true;
  for (;;) {
    // Read before done() is called, so that Pump returns if a message has arrived since then.
    const uint64_t seen = pump_ != nullptr ? pump_->arrivals() : 0;
    if (done() || !in_time) break;
    if (pump_ != nullptr && !pumping_) {
      PumpUntil(seen, spin_until, deadline);
      in_time = SteadyNow() < deadline;
    } else {
      in_time = slot.changed.WaitUntil(mu_, deadline);
    }
  }
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &slot));
  if (pump_ != nullptr) last_wait_ = SteadyNow();
  PassOn();
  return done();
}

void PendingCalls::PumpUntil(uint64_t seen, TimePoint spin_until, TimePoint deadline) {
  MessagePump* const pump = pump_;
  pumping_ = true;
  mu_.Unlock();
  pump->Pump(seen, spin_until, deadline);
  mu_.Lock();
  pumping_ = false;
  if (pump_ == nullptr) pump_free_.NotifyAll();
}

void PendingCalls::PassOn() {
  if (pump_ != nullptr && !pumping_ && !waiting_.empty()) waiting_.front()->changed.NotifyOne();
}

void PendingCalls::StartPump(MessagePump* pump) {
  MutexLock lock(mu_);
  pump_ = pump;
}

// The owner calls this from time to time instead of sleeping in Pump, because gRPC may wake a
// thread that sleeps inside it for what other threads wait for.
std::optional<TimePoint> PendingCalls::PumpIfIdle(TimePoint now) {
  MutexLock lock(mu_);
  if (pump_ == nullptr || !failed_.ok()) return std::nullopt;
  const bool idle = !pumping_ && waiting_.empty() && now >= last_wait_ + kIdle;
  const int came = idle ? TakeWhatCame(TimePoint::max()) : 0;
  PassOn();
  if (pump_ == nullptr) return std::nullopt;
  if (came == kIdleMessagesMax) return now;
  pause_ = idle && came == 0 ? std::min(2 * pause_, kIdleMax) : kIdle;
  return now + pause_;
}

void PendingCalls::Poll() {
  MutexLock lock(mu_);
  if (pump_ == nullptr || pumping_ || !waiting_.empty() || !failed_.ok()) return;
  (void)TakeWhatCame(SteadyNow() + kPollMax);
  PassOn();
}

int PendingCalls::TakeWhatCame(TimePoint until) {
  int came = 0;
  while (came < kIdleMessagesMax && pump_ != nullptr && waiting_.empty()) {
    const uint64_t seen = pump_->arrivals();
    // The deadline is long past, so that gRPC does not round the wait up to a millisecond.
    PumpUntil(seen, TimePoint(), TimePoint());
    if (pump_ == nullptr || pump_->arrivals() == seen) break;
    ++came;
    if (SteadyNow() >= until) break;
  }
  return came;
}

void PendingCalls::StopPump() {
  MutexLock lock(mu_);
  MessagePump* const pump = std::exchange(pump_, nullptr);
  if (pump == nullptr) return;
  if (pumping_) pump->Wake();
  while (pumping_) pump_free_.Wait(mu_);
}

// ---- requests and answers

PendingCalls::OpenCall PendingCalls::Open() {
  OpenCall call;
  call.calls_ = this;
  call.id_ = NextId();
  call.slot_ = std::make_shared<Slot>();
  MutexLock lock(mu_);
  if (failed_.ok()) {
    open_.emplace(call.id_, call.slot_);
  } else {
    call.slot_->failed = failed_;
  }
  return call;
}

void PendingCalls::Deliver(uint64_t id, Answer answer) {
  {
    MutexLock lock(mu_);
    const auto found = open_.find(id);
    if (found != open_.end() && !found->second->answer) {
      found->second->answer = std::move(answer);
      found->second->changed.NotifyOne();
      return;
    }
  }
  unclaimed_(std::move(answer));
}

void PendingCalls::DeliverReady(wire::BlockReady ready) {
  {
    MutexLock lock(mu_);
    const auto found = open_.find(ready.id);
    if (found != open_.end()) {
      Slot& slot = *found->second;
      if (slot.ready.size() >= wire::kKeysMax) return;  // more keys than one call may ask for
      slot.ready.push_back(std::move(ready));
      slot.changed.NotifyOne();
      return;
    }
  }
  unclaimed_(std::move(ready));
}

void PendingCalls::FailAll(const absl::Status& status) {
  MutexLock lock(mu_);
  if (failed_.ok()) failed_ = status;
  for (const auto& [id, slot] : open_) {
    slot->failed = status;
    slot->changed.NotifyAll();
  }
  open_.clear();
}

}  // namespace larder
