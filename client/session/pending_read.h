// An Acquire from its request to its end, whichever way the session reads: it waits for the
// answers, finds the bytes that they name, and gives back what the acquire holds.
//
// Of a session that reads in place that is its lease.  Of one that reads by copies it is the room
// in the staging segment as well, which the daemon may write until it has answered for every key:
// what ends sooner (a deadline, an error) leaves the rest to the session, which takes the late
// answers and frees the room then.
// It does not copy, and does not decide about statuses.
//
// Ownership: borrows the session core; room() keeps the room for as long as its bytes are read.
// Thread-safety: none; one thread at a time.
// Lifecycle: Begin -> (the request is sent) -> WaitGrant -> [WaitReady ...] -> destroyed.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/session_core.h"
#include "proto/messages/messages.h"
#include "storage/clock.h"

namespace larder {

class PendingRead {
 public:
  PendingRead() = default;
  PendingRead(PendingRead&& other) noexcept { *this = std::move(other); }
  PendingRead& operator=(PendingRead&& other) noexcept;
  ~PendingRead() { End(); }

  // Opens the call and puts its id into `acquire`; of a session that reads by copies also a room of
  // `bytes`, for which it waits.  DeadlineExceeded: there was no room by then.  ResourceExhausted:
  // it is more than the staging segment.
  [[nodiscard]] static absl::StatusOr<PendingRead> Begin(SessionCore& core, ByteCount bytes,
                                                         TimePoint deadline,
                                                         wire::Acquire* acquire);
  [[nodiscard]] explicit operator bool() const { return core_ != nullptr; }

  // The answer.  Internal: it is of another number of keys than were asked for; errors as those of
  // OpenCall::Wait.
  [[nodiscard]] absl::StatusOr<wire::Grant> WaitGrant(TimePoint until);
  // Those that arrived since, of keys that the grant called PENDING, each once, and none PENDING.
  [[nodiscard]] absl::StatusOr<std::vector<wire::BlockReady>> WaitReady(TimePoint until);
  [[nodiscard]] size_t pending() const { return pending_; }
  // What is not there yet will not come.
  void Cancel() { core_->CancelAcquire(call_); }

  // The bytes of an answer.  As SessionCore::Map; Internal, too, where they are not in the room.
  [[nodiscard]] absl::StatusOr<MappedBytes> Map(const wire::ExtentGrant& extent) const;
  // What was read before is what the daemon promised.
  [[nodiscard]] bool Holds() const;
  // Of a session that reads in place, for who holds on to it: ended by it (SessionCore::EndLease).
  [[nodiscard]] LeaseId TakeLease() { return std::exchange(lease_, {}); }
  [[nodiscard]] uint32_t word() const { return word_; }

 private:
  void End();

  SessionCore* core_ = nullptr;
  OpenCall call_;
  std::shared_ptr<const StagingRoom> room_;  // null: it reads in place
  size_t keys_ = 0;
  bool granted_ = false;
  LeaseId lease_;
  uint32_t word_ = 0;
  std::vector<bool> waits_;  // by key
  size_t pending_ = 0;       // keys that wait
};

}  // namespace larder
