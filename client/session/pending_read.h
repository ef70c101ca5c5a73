// An Acquire (a request to read blocks) from its sending to its end, for sessions that read in
// place and sessions that read by copies.  PendingRead waits for the answers, finds the bytes that
// they name, and at the end returns what the acquire holds.
//
// In a session that reads in place, an acquire holds a lease.  In a session that reads by copies it
// also holds a part of the staging segment, which the daemon may write until it has answered for
// every key.  If the PendingRead is destroyed sooner (a deadline, an error), the session core takes
// the late answers and then frees that part.
// PendingRead does not copy bytes.
//
// Ownership: Borrows the session core.  The MappedBytes that Map returned keep their memory mapped
// and, in the staging segment, allocated.
// Thread-safety: None; one thread at a time.
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

  // Opens the call and puts its id into `acquire`, which must have its digests already.  In a
  // session that reads by copies it also allocates `bytes` bytes of the staging segment for the
  // acquire; errors are those of StagingArea::Allocate.
  [[nodiscard]] static absl::StatusOr<PendingRead> Begin(SessionCore& core, ByteCount bytes,
                                                         TimePoint deadline,
                                                         wire::Acquire* acquire);
  [[nodiscard]] explicit operator bool() const { return core_ != nullptr; }

  // Waits for the answer and returns it.  Returns Internal if it has another number of keys than
  // the request; other errors are those of OpenCall::Wait.
  [[nodiscard]] absl::StatusOr<wire::Grant> WaitGrant(TimePoint until);
  // Waits for answers of the daemon to keys that the grant called PENDING, and returns those that
  // came.  A key is returned at most once, and not as PENDING.  Errors are those of
  // OpenCall::WaitReady.
  [[nodiscard]] absl::StatusOr<std::vector<wire::BlockReady>> WaitReady(TimePoint until);
  [[nodiscard]] size_t pending() const { return pending_; }
  // Tells the daemon that what has not arrived is no longer wanted.
  void Cancel() { core_->CancelAcquire(call_); }

  // Returns the bytes that an answer names.  Errors are those of SessionCore::Map; Internal also if
  // the bytes lie outside the allocated part of the staging segment.
  [[nodiscard]] absl::StatusOr<MappedBytes> Map(const wire::ExtentGrant& extent) const;
  // Returns true if the bytes that were read so far count: always for copies, otherwise only while
  // the lease is valid.
  [[nodiscard]] bool Holds() const;
  // Hands the lease over to the caller, which then ends it (SessionCore::EndLease).  Only for a
  // session that reads in place.
  [[nodiscard]] LeaseId TakeLease() { return std::exchange(lease_, {}); }
  [[nodiscard]] uint32_t word() const { return word_; }

 private:
  void End();

  SessionCore* core_ = nullptr;
  OpenCall call_;
  std::shared_ptr<const StagingRoom> room_;  // null: the session reads in place
  size_t keys_ = 0;
  bool granted_ = false;
  LeaseId lease_;
  uint32_t word_ = 0;
  std::vector<bool> waits_;  // by key: its answer is pending
  size_t pending_ = 0;       // how many keys are pending
};

}  // namespace larder
