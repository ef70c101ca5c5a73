#include "client/pending_calls.h"

#include <utility>

namespace larder {

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
  calls_->Forget(id_);
  std::optional<Answer> left;
  {
    MutexLock lock(slot_->mu);
    slot_->closed = true;  // a delivery under way sees this and keeps its answer
    left = std::exchange(slot_->answer, std::nullopt);
  }
  slot_ = nullptr;
  if (left) calls_->unclaimed_(*std::move(left));
}

absl::StatusOr<Answer> PendingCalls::OpenCall::WaitAnswer(TimePoint deadline) {
  MutexLock lock(slot_->mu);
  while (!slot_->answer) {
    if (!slot_->failed.ok()) return slot_->failed;
    if (!slot_->changed.WaitUntil(slot_->mu, deadline) && !slot_->answer && slot_->failed.ok()) {
      return absl::DeadlineExceededError("the daemon did not answer in time");
    }
  }
  return *std::exchange(slot_->answer, std::nullopt);
}

absl::StatusOr<std::vector<wire::BlockReady>> PendingCalls::OpenCall::WaitReady(
    TimePoint deadline) {
  MutexLock lock(slot_->mu);
  while (slot_->ready.empty()) {
    if (!slot_->failed.ok()) return slot_->failed;
    if (!slot_->changed.WaitUntil(slot_->mu, deadline) && slot_->ready.empty() &&
        slot_->failed.ok()) {
      return absl::DeadlineExceededError("pending blocks did not become ready in time");
    }
  }
  return std::exchange(slot_->ready, {});
}

PendingCalls::OpenCall PendingCalls::Open() {
  OpenCall call;
  call.calls_ = this;
  call.id_ = NextId();
  call.slot_ = std::make_shared<Slot>();
  MutexLock lock(mu_);
  if (!failed_.ok()) {
    MutexLock slot_lock(call.slot_->mu);
    call.slot_->failed = failed_;
  } else {
    open_.emplace(call.id_, call.slot_);
  }
  return call;
}

std::shared_ptr<PendingCalls::Slot> PendingCalls::Find(uint64_t id) {
  MutexLock lock(mu_);
  const auto found = open_.find(id);
  return found == open_.end() ? nullptr : found->second;
}

void PendingCalls::Forget(uint64_t id) {
  MutexLock lock(mu_);
  open_.erase(id);
}

void PendingCalls::Deliver(uint64_t id, Answer answer) {
  if (const std::shared_ptr<Slot> slot = Find(id)) {
    bool taken = false;
    {
      MutexLock lock(slot->mu);
      if (!slot->closed && !slot->answer) {
        slot->answer = std::move(answer);
        taken = true;
      }
    }
    if (taken) {
      slot->changed.NotifyOne();  // after the lock, so that the waiter does not run into it
      return;
    }
  }
  unclaimed_(std::move(answer));
}

void PendingCalls::DeliverReady(wire::BlockReady ready) {
  const std::shared_ptr<Slot> slot = Find(ready.id);
  if (slot == nullptr) return;  // cancelled; its lease was given back
  {
    MutexLock lock(slot->mu);
    if (slot->ready.size() >= wire::kKeysMax) return;  // more than was ever asked for
    slot->ready.push_back(std::move(ready));
  }
  slot->changed.NotifyOne();
}

void PendingCalls::FailAll(const absl::Status& status) {
  absl::flat_hash_map<uint64_t, std::shared_ptr<Slot>> open;
  {
    MutexLock lock(mu_);
    if (failed_.ok()) failed_ = status;
    open.swap(open_);
  }
  for (const auto& [id, slot] : open) {
    {
      MutexLock lock(slot->mu);
      slot->failed = status;
    }
    slot->changed.NotifyAll();
  }
}

}  // namespace larder
