// What the parts of one session share: whose session it is, the objects of the daemon that it uses,
// the write and read mode, and the way by which messages go to the client (SessionOutlet).
//
// The parts are SessionRegistrations, SessionReservations, SessionLeases, SessionFillings and
// SessionDevice.  AttachedSession (server/sessions/session.h) owns this context and, directly or
// not, the parts.
// Thread-safety: all methods from any thread.  Members that are neither atomic nor classes with a
// lock are const after AttachedSession::Create, or after the hello (the client's first message)
// where a comment says so.
// Locks: the lock of SessionOutlet is held while the SessionSink is called, and is acquired after
// all other locks of the session.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/messages/messages.h"
#include "server/connections/connection_peers.h"
#include "server/instances/instance_table.h"
#include "server/metrics/counters.h"
#include "server/processes/process_table.h"
#include "server/processes/staging_table.h"
#include "server/runtime/shares.h"
#include "server/runtime/worker_pool.h"
#include "server/sessions/hold_ledger.h"
#include "server/sessions/quarantine.h"
#include "server/sessions/session_page.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/format/prefix.h"
#include "storage/memory/copy_kernels.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"

namespace larder {

class DamageChecks;    // server/sessions/damage_checks.h
class DeviceTable;     // server/instances/device_table.h
class DirectiveQueue;  // server/instances/directive_queue.h
class PromiseTable;    // server/sessions/promise_table.h
class TierWorker;      // storage/tiering/tier_worker.h

// Where a session sends its answers.  The methods are called from any thread, possibly under the
// session's locks.
class SessionSink {
 public:
  // How many bytes of answers may wait, uncharged, for the client to read them.
  static constexpr size_t kFreeAnswerBytes = 64 << 10;
  // Bytes of waiting answers beyond which the stream reads no further message.
  static constexpr size_t kQueuedMax = 1 << 20;

  virtual ~SessionSink() = default;
  virtual void Send(wire::Down message) = 0;
  // Ends the stream, with this status, after the messages that were handed to Send before.  A
  // client that does not read may lose some of them.  Does nothing if an end was requested before.
  virtual void Finish(absl::Status status) = 0;
  // Ends the stream now; answers that wait may be dropped.
  virtual void Abort() { Finish(absl::CancelledError("the process of this session is dead")); }
};

// The sink of a session, until the stream has closed.
class SessionOutlet {
 public:
  explicit SessionOutlet(SessionSink& sink) : sink_(&sink) {}

  void Send(wire::Down message) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (sink_ != nullptr) sink_->Send(std::move(message));
  }
  void Finish(absl::Status status) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (sink_ != nullptr) sink_->Finish(std::move(status));
  }
  void Abort() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (sink_ != nullptr) sink_->Abort();
  }
  // Once this returns, the sink is not called any more.
  void Close() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    sink_ = nullptr;
  }

 private:
  // A lock of its own, not the session's, so that a job that has finished a copy can send its
  // answer while another thread handles a message.
  Mutex mu_;
  SessionSink* sink_ LARDER_GUARDED_BY(mu_);
};

// The parts of the daemon that sessions share.  All outlive every session.
struct SessionDeps {
  BlockStore& store;
  InstanceTable& instances;
  Quarantine& quarantine;
  ProcessTable& processes;
  const ConnectionPeers& peers;
  StagingTable& staging;
  WorkerPool& workers;
  Counters& counters;
  const Clock& clock;
  const CopyKernel copy_kernel;  // copies to and from staging segments
  std::string boot_id;
  std::string tenant;
  // About one in this many blocks that sessions read from HOST is checked against its hashes; 0
  // disables these checks.
  uint32_t check_one_in = 64;
  DeviceTable& devices;
  DirectiveQueue& directives;
  Shares& shares;
  DamageChecks& damage_checks;
  PromiseTable& promises;
  TierWorker* disk = nullptr;  // null without a disk
};

struct SessionContext {
  SessionContext(SessionDeps& the_deps, SessionId the_id,
                 std::optional<AttachedProcess> its_process, const ShareHolder& holder,
                 SessionSink& sink)
      : deps(the_deps),
        id(the_id),
        process(std::move(its_process)),
        account(the_deps.shares.Of(holder)),
        outlet(sink) {}

  // Returns an id for a lease or a reservation, which no other lease or reservation of the session
  // has: the words of its page (SessionPage) hold ids of both.
  [[nodiscard]] uint64_t NewId() {
    return (id.value << 32) | (ids.fetch_add(1, std::memory_order_relaxed) + 1);
  }
  // Returns a reference that a job keeps so that the session outlives the job.  REQUIRES: the
  // caller keeps the session alive.
  [[nodiscard]] std::shared_ptr<const void> KeepAlive() const {
    std::shared_ptr<const void> session = self.lock();
    LARDER_CHECK(session != nullptr);
    return session;
  }
  // Returns true if the session grants no new lease or reservation, because the daemon drains.
  [[nodiscard]] bool Drained() const {
    const TimePoint from = drained_from.load(std::memory_order_relaxed);
    return from != TimePoint::max() && deps.clock.Now() >= from;
  }

  SessionDeps& deps;
  const SessionId id;
  const std::optional<AttachedProcess> process;  // empty for a caller without a sideband token
  const Shares::Account account;                 // of the session's holder
  std::unique_ptr<SessionPage> page;             // null without a process
  std::weak_ptr<const void> self;                // the session; see KeepAlive
  SessionOutlet outlet;

  // Const after the hello.
  std::string engine_id;
  BlockWriter writer;  // of the blocks that the session stores
  std::atomic<wire::WriteMode> write_mode = wire::WriteMode::kStream;
  std::atomic<wire::ReadMode> read_mode = wire::ReadMode::kStream;
  std::atomic<bool> tiers = false;  // the client understands PENDING and Durable

  std::atomic<TimePoint> drained_from = TimePoint::max();  // max if the daemon does not drain
  std::atomic<uint64_t> ids = 0;
};

// What an ended session held that its process may still use, and what is charged for it.  All of it
// goes to the quarantine unless the process is known not to use it any more.
struct SessionHoldings {
  std::vector<BlockLease> leases;
  std::vector<ExtentReservation> extents;
  std::vector<Shares::Ticket> charges;
  std::vector<LedgerHold> under_promises;  // charges for blocks of `leases`
};

// A variant that a session registered.  The session's messages name it by its position among the
// session's variants, the rest of the daemon by `index`.
struct SessionVariant {
  VariantIndex index = VariantIndex::kNone;
  uint32_t block_tokens = 0;
  uint32_t layers = 0;
  GroupRule rule = {};
};

// Charges `account` for the answers that a session's client has not read: afterwards *charged
// covers `waiting` bytes, or nothing if they are at most SessionSink::kFreeAnswerBytes.  Returns
// ResourceExhausted if there is no share left for them: *charged stays as it was, and the session
// must end.
[[nodiscard]] absl::Status ChargeAnswers(const Shares::Account& account, size_t waiting,
                                         Shares::Ticket* charged);

[[nodiscard]] inline uint32_t RetryAfterMs(Duration d) {
  return static_cast<uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(d).count());
}

// Returns InvalidArgument if a block's tokens and segment table would take, as estimated, more than
// half as much memory as the block takes in the pool.  This bounds the memory for tokens and
// tables.
[[nodiscard]] absl::Status CheckMetadata(size_t tokens, const SegmentTable& segments);

// Returns what is kept with a block about its writer: its engine, unless `engine_id` is empty, and
// the uid of `account`.  A caller without a sideband token gets no uid in it, although its call
// counts in its user's share, because its user is not known for certain.
[[nodiscard]] BlockWriter WriterOf(const Shares::Account& account, std::string_view engine_id);

}  // namespace larder
