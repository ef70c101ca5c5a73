// One session, independent of gRPC and of how bytes move: requests and their answers, leases,
// reservations, mappings, revocations.  The transports and the classes Session, Lease and
// Reservation are built on it.
//
// It trusts what the daemon says about blocks, but not the numbers in its messages: ids are looked
// up, and places in memory are checked before use.
// Ownership: Shared by Session, Leases and Reservations; transports borrow it.  Does not own the
// channel.
// Thread-safety: All methods may be called from any thread.  OnDown is called by one thread at a
// time; over a MessagePump that is a thread in MessagePump::Pump or SessionChannel::Send, so OnDown
// must not call Send.
// Fork: The core belongs to the process that made it.  In a forked child status() is
// FailedPrecondition, nothing is sent, Holds returns false, leases and extents are not returned,
// and Close does nothing.
// Lifecycle: made -> Start(attached, channel) -> ... -> Close.  OnDown may be called before Start.
// After OnBroken or Close every request fails, and nothing new is mapped.
// Locks: mu_ is a leaf: no other lock is taken under it.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/session/directive_runner.h"
#include "client/session/fork_guard.h"
#include "client/session/outbox.h"
#include "client/session/pending_calls.h"
#include "client/session/promise_book.h"
#include "client/session/reservation_book.h"
#include "client/session/session_channel.h"
#include "client/session/slab_cache.h"
#include "client/session/staging_area.h"
#include "storage/mutex.h"

namespace larder {

class SessionCore {
 public:
  // `memory` may be null for a session in stream mode.  Without `on_directive` all directives
  // except DRAIN are ignored.  `beside` counts the sessions of one Client that share a limit of
  // extents reserved ahead (ReservationBook); SessionCore keeps the count up to date.  If `beside`
  // is null, the session has the limit to itself.
  explicit SessionCore(std::shared_ptr<SharedMemory> memory,
                       DirectiveRunner::Handler on_directive = {},
                       std::shared_ptr<std::atomic<size_t>> beside = nullptr);
  ~SessionCore();
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  // Unless the session is in stream mode, maps the page with its revocation words and, if the
  // session writes staged or reads by copies, gets a staging segment.  After an error the caller
  // must call Close; ResourceExhausted normally means that the daemon has no staging memory for the
  // session now.  REQUIRES: It is called once.  The channel lives until Close has returned.
  [[nodiscard]] absl::Status Start(wire::Attached attached, SessionChannel* channel,
                                   ByteCount staging_bytes);
  // Returns the extents reserved ahead and the staging segment, and sends a goodbye (`bye` in
  // wire::Up) unless the session is lost or still has leases or extents in use.  Afterwards the
  // session is as after OnBroken, and no thread reads the stream through this object.  Returns true
  // if the channel took the goodbye.
  bool Close() LARDER_EXCLUDES(mu_);
  // To be called when the daemon has ended the stream after the goodbye: sets bye_flag().
  void OnGoodbyeTaken() { said_bye_->store(true); }

  // ---- the stream's reader
  void OnDown(wire::Down down) LARDER_EXCLUDES(mu_);
  void OnBroken(const absl::Status& status) LARDER_EXCLUDES(mu_);

  // ---- requests: open a call, put its id into a message, send, wait
  [[nodiscard]] OpenCall Open() { return calls_.Open(); }
  [[nodiscard]] absl::Status Send(wire::Up up);
  void CancelAcquire(const OpenCall& call) { outbox_.Cancel(call.id()); }

  // ---- leases: the caller that took a Grant with a lease ends the lease, exactly once
  // Returns true if the daemon still promises the bytes of this lease: call it after reading them.
  [[nodiscard]] bool Holds(LeaseId lease, uint32_t word) const LARDER_EXCLUDES(mu_);
  void EndLease(LeaseId lease) LARDER_EXCLUDES(mu_);

  // ---- extents in use: a caller that got extents, by a Reserved or TakeStock, calls EndExtent
  // once for each
  [[nodiscard]] std::optional<HeldExtent> TakeStock(ByteCount bytes);
  // Adds to `up` a Reserve of extents, so that `wanted` of this size are reserved ahead for later
  // Puts, as far as ReservationBook::Ask allows it.
  void AskStock(ByteCount bytes, size_t wanted, wire::Up* up);
  // Returns the stock to the daemon.
  void DropStock();
  void EndExtent(const HeldExtent& extent, bool abort);

  // Returns the bytes of an extent, for reading or for writing.  Errors are those of
  // SlabCache::Map.  If the sideband fails, the session ends, because nothing more could be mapped.
  [[nodiscard]] absl::StatusOr<MappedBytes> Map(const wire::ExtentGrant& extent, bool writable);
  // Null unless the session writes staged or reads by copies.
  [[nodiscard]] StagingArea* staging() const { return staging_.get(); }
  [[nodiscard]] bool writes_staged() const { return attached_.write_mode == WriteMode::kStaged; }
  [[nodiscard]] bool reads_copied() const { return attached_.read_mode == ReadMode::kCopied; }
  // Frees these parts of the staging segment when the answer to the Publish `id` arrives; the
  // daemon may copy from them until then.  Only for a Publish that no caller waits for any more: an
  // answer that a caller takes frees nothing.  REQUIRES: the call `id` is still open.
  void FreeWhenAnswered(uint64_t id, std::vector<StagingArea::Chunk> chunks) LARDER_EXCLUDES(mu_);

  // An acquire that no caller waits for any more.  The daemon may write to the acquire's part of
  // the staging segment until it has answered for every key.
  struct LateRead {
    std::shared_ptr<const StagingRoom> room;
    LeaseId lease;         // set once granted
    bool granted = false;  // the grant has arrived
    size_t pending = 0;    // keys that the grant called pending and that were not answered
  };
  // Cancels the acquire.  When its last answer has arrived, or the session has ended, its part of
  // the staging segment is freed and its lease ends.
  void EndLater(OpenCall call, LateRead read) LARDER_EXCLUDES(mu_);

  // ---- promises: who took a Promised that is OK ends it, exactly once
  [[nodiscard]] std::shared_ptr<PromiseState> FindPromise(LeaseId promise) const {
    return promises_.Find(promise);
  }
  void EndPromise(LeaseId promise);
  // Takes in what has arrived, without waiting, for a bounded time (PendingCalls::Poll).  In a
  // forked child it does nothing, because what arrives is the parent's.
  void Poll() {
    if (!in_child()) calls_.Poll();
  }

  // Returns the largest number of bytes that NoteBlock was given for this variant, or 0.
  [[nodiscard]] uint64_t LargestBlock(uint32_t variant) const LARDER_EXCLUDES(mu_);
  void NoteBlock(uint32_t variant, uint64_t bytes) LARDER_EXCLUDES(mu_);

  // REQUIRES: Start was called.
  [[nodiscard]] const wire::Attached& attached() const { return attached_; }
  [[nodiscard]] absl::Status status() const LARDER_EXCLUDES(mu_);
  // Becomes true once the daemon has taken the goodbye (OnGoodbyeTaken).  May be read after the
  // core is destroyed.
  [[nodiscard]] std::shared_ptr<const std::atomic<bool>> bye_flag() const { return said_bye_; }
  // Returns true in a forked child of the process that made the session.
  [[nodiscard]] bool in_child() const { return fork_guard_.left(); }
  [[nodiscard]] bool draining() const { return draining_.load(std::memory_order_relaxed); }

  struct Counters {
    std::atomic<uint64_t> blocks_put{0}, blocks_got{0}, bytes_put{0}, bytes_got{0};
    std::atomic<uint64_t> checked{0}, damaged{0}, revoked{0}, blocks_durable{0};
  };
  [[nodiscard]] Counters& counters() { return counters_; }

 private:
  void OnReserved(wire::Reserved reserved);
  void OnGrant(wire::Grant grant) LARDER_EXCLUDES(mu_);
  void OnRevocation(const wire::Revocation& revocation) LARDER_EXCLUDES(mu_);
  void OnUnclaimed(Answer answer) LARDER_EXCLUDES(mu_);
  // Returns true if the grant belongs to a LateRead.
  [[nodiscard]] bool OnLateGrant(const wire::Grant& grant) LARDER_EXCLUDES(mu_);
  void OnLateReady(uint64_t id) LARDER_EXCLUDES(mu_);
  void EndIfAnswered(uint64_t id) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status BringStaging(const std::shared_ptr<SharedMemory>& memory,
                                          ByteCount bytes);
  [[nodiscard]] std::optional<TimePoint> Chores(TimePoint now);
  void DropStaging();

  const ForkGuard fork_guard_;
  const std::shared_ptr<std::atomic<size_t>> beside_;
  std::shared_ptr<SharedMemory> memory_;          // null after Start
  wire::Attached attached_;                       // const after Start
  std::shared_ptr<StagingArea> staging_;          // const after Start
  std::shared_ptr<SharedMemory> staging_memory_;  // made staging_; null after Close
  Counters counters_;
  std::atomic<bool> draining_{false};
  const std::shared_ptr<std::atomic<bool>> said_bye_ = std::make_shared<std::atomic<bool>>(false);
  PromiseBook promises_;
  PendingCalls calls_;
  ReservationBook book_;
  SlabCache slabs_;

  mutable Mutex mu_;
  absl::Status status_ LARDER_GUARDED_BY(mu_);
  bool counted_ LARDER_GUARDED_BY(mu_) = false;  // beside_ includes this session
  std::shared_ptr<const RevocationWords> page_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<LeaseId, bool> leases_ LARDER_GUARDED_BY(mu_);  // in use; true: revoked
  // By the id of the publish that staged them.
  absl::flat_hash_map<uint64_t, std::vector<StagingArea::Chunk>> late_chunks_
      LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, LateRead> late_reads_ LARDER_GUARDED_BY(mu_);  // by call
  absl::flat_hash_map<uint32_t, uint64_t> largest_ LARDER_GUARDED_BY(mu_);     // by variant

  Outbox outbox_;                                // its thread uses the members above
  std::unique_ptr<DirectiveRunner> directives_;  // may be null; const once it was made
};

}  // namespace larder
