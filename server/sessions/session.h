// One attached process of an engine: the state machine behind an Attach stream.  Knows messages,
// not gRPC.
//
// Holds what the session was given (leases, reservations) by RAII handles, and gives all of it
// back: at once on a end with `bye`, through the quarantine when the stream broke and the process
// may live on.
//
// Ownership: shared by its stream and the SessionTable.  The sink must stay valid until OnClosed
// returns.
// Thread-safety: OnUp from one thread at a time (the stream's reads); everything else from any
// thread.
// Lifecycle: Create -> OnUp... -> OnClosed (exactly once).  Without a hello it ends after
// kHelloDeadline.
// Limits: kWords leases and reservations at once; its process's and uid's shares
// (server/runtime/shares.h); engine.proto.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "proto/messages/messages.h"
#include "server/connections/connection_peers.h"
#include "server/instances/instance_table.h"
#include "server/metrics/counters.h"
#include "server/processes/process_table.h"
#include "server/processes/staging_table.h"
#include "server/runtime/shares.h"
#include "server/runtime/worker_pool.h"
#include "server/sessions/quarantine.h"
#include "server/sessions/read_sampler.h"
#include "server/sessions/session_page.h"
#include "storage/clock.h"
#include "storage/codec/payload_codec.h"
#include "storage/memory/copy_kernels.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"
#include "storage/tiering/promoter.h"

namespace larder {

class DamageChecks;    // server/sessions/damage_checks.h
class DeviceTable;     // server/instances/device_table.h
class DirectiveQueue;  // server/instances/directive_queue.h
class TierWorker;      // storage/tiering/tier_worker.h

// Where a session's answers go.
class SessionSink {
 public:
  // Answers of a session that may wait for its client to read them without a charge.
  static constexpr size_t kFreeAnswerBytes = 64 << 10;
  static constexpr size_t kQueuedMax = 1 << 20;  // of answers, beyond which nothing more is read

  virtual ~SessionSink() = default;
  virtual void Send(wire::Down message) = 0;
  // Ends the stream once what was sent has left.
  virtual void Finish(absl::Status status) = 0;
  // Ends it now: nobody is there to read.
  virtual void Abort() { Finish(absl::CancelledError("the process of this session is dead")); }
};

// Charges a session's process for the answers that its client has not read: afterwards *charged
// covers `waiting` bytes, or nothing up to SessionSink::kFreeAnswerBytes.  ResourceExhausted: the
// process has no share left for them, *charged stays as it was, and the session is to end.
[[nodiscard]] absl::Status ChargeAnswers(const Shares::Account& account, size_t waiting,
                                         Shares::Ticket* charged);

[[nodiscard]] inline uint32_t RetryAfterMs(Duration d) {
  return static_cast<uint32_t>(std::chrono::ceil<std::chrono::milliseconds>(d).count());
}

// What is kept beside a block's bytes (tokens, segment table) takes at most half of their room in
// the pool, so that all of it never takes more than half of the pool.  InvalidArgument.
[[nodiscard]] absl::Status CheckMetadata(size_t tokens, const SegmentTable& segments);

// The writer that is kept with a block which the process behind `account` stores for an engine.
// The writer of a caller without a sideband token is unknown, although the call counts as its
// user's share: the daemon knows its connection by a descriptor number alone, and another
// connection may have had that number a moment ago.
[[nodiscard]] BlockWriter WriterOf(const Shares::Account& account, std::string_view engine_id);

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
  const CopyKernel copy_kernel;  // staged blocks are copied by it
  std::string boot_id;
  std::string tenant;
  uint32_t check_one_in = 64;  // host reads that are checked: one in so many; 0 = none
  DeviceTable& devices;
  DirectiveQueue& directives;
  Shares& shares;
  DamageChecks& damage_checks;
  TierWorker* disk = nullptr;  // null: no disk
};

class AttachedSession : public std::enable_shared_from_this<AttachedSession> {
 public:
  static constexpr std::chrono::seconds kHelloDeadline{5};
  // What was on its way when the client was told to finish is still served.
  static constexpr std::chrono::milliseconds kDrainGrace{100};
  static constexpr size_t kKeysPerMessageMax = 4 * wire::kKeysMax;  // of all acquires of one Up
  static constexpr size_t kTablesPerMessageMax = 512;  // likewise; each may have 1,024 segments
  static constexpr uint32_t kRetryAfterFullMs = 20;
  // Leases of one session on a block that many hold already (kCrowdedHolds).
  static constexpr uint32_t kCrowdedMax = 16;

  // `process` is empty for a caller without a sideband token: byte streams only.  `holder`: whose
  // shares it takes.
  // Unavailable: no memory for the session page.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<AttachedSession>> Create(
      SessionDeps& deps, SessionId id, std::optional<AttachedProcess> process,
      const ShareHolder& holder, std::string peer, SessionSink& sink);
  ~AttachedSession();

  // An error ends the stream.  InvalidArgument: hello missing or twice.  PermissionDenied:
  // another's tenant.  Takes what it keeps out of `up`.
  [[nodiscard]] absl::Status OnUp(wire::Up& up) LARDER_EXCLUDES(mu_);
  // The stream has ended.  After `bye` all goes back to the store; else what the process may still
  // touch waits.
  void OnClosed() LARDER_EXCLUDES(mu_);
  // Its process is proven dead, though a forked child may keep the stream open, or has said that it
  // unmapped all of this session: all goes back at once, and the stream ends.
  void OnUnmapped() LARDER_EXCLUDES(mu_);
  // Ends leases and reservations whose deadline has passed.
  void Tick(TimePoint now) LARDER_EXCLUDES(mu_);
  // Tells the client to finish.  After kDrainGrace nothing new is begun, and the stream ends OK
  // after its last release.
  void Drain() LARDER_EXCLUDES(mu_);
  // Ends the stream now, Unavailable.
  void Abandon() LARDER_EXCLUDES(mu_);
  // Asks it to do something with what it has in device memory; `directive` lacks its variant.
  // kOk: it is on its way.  kUnsupported: it takes none.  kMissing: it ends.
  [[nodiscard]] BlockStatus Direct(VariantIndex variant, wire::Directive directive)
      LARDER_EXCLUDES(mu_);
  // Blocks that it published are on disk now, and survive a crash.
  void OnDurable(VariantIndex variant, std::span<const Digest> digests) LARDER_EXCLUDES(mu_);

  [[nodiscard]] SessionId id() const { return id_; }
  [[nodiscard]] ProcessId process() const { return process_ ? process_->id : ProcessId{}; }
  [[nodiscard]] const Shares::Account& account() const { return account_; }
  [[nodiscard]] absl::StatusOr<int> OpenPage()
      const;  // read-only descriptor of the revocation words
  [[nodiscard]] ByteCount page_bytes() const;
  [[nodiscard]] wire::WriteMode write_mode() const { return write_mode_; }
  [[nodiscard]] wire::ReadMode read_mode() const { return read_mode_; }
  [[nodiscard]] const std::string& engine_id() const { return engine_id_; }  // valid after attached

 private:
  class CopyRoom;  // server/sessions/session_filling.h
  struct Filling;  // likewise
  struct LeaseRecord {
    LeaseRecord() = default;
    LeaseRecord(LeaseRecord&&) = default;
    LeaseRecord& operator=(LeaseRecord&&) = default;
    ~LeaseRecord() {
      if (promotion) Promoter::Cancel(promotion);
    }
    BlockLease lease;
    TimePoint deadline;
    uint32_t word = 0;
    bool revoked = false;
    uint64_t request = 0;                    // the acquire's id
    Promoter::Prepared promotion;            // what is read for it; may be null
    std::vector<ExtentReservation> decoded;  // extents of its own, of blocks that HOST has encoded
    bool copied = false;                     // its client reads copies, and nothing in the pool
    std::shared_ptr<CopyRoom> room;          // of those, until they are made
    bool cancelled = false;                  // nothing more is decoded or copied for it
    bool promise = false;                    // of a promise alone: its client reads nothing by it
    Shares::Ticket place, bytes;             // what it holds, and will
    std::vector<EntryRef> crowded;           // of crowded_, counted for it
  };
  // Shared with copies under way; `mu` guards the handle.
  struct ReservationRecord {
    Mutex mu;
    ExtentReservation reservation LARDER_GUARDED_BY(mu);
    ByteCount copying LARDER_GUARDED_BY(mu);  // split off it, until their copies are done
    TimePoint deadline;
    uint32_t word = 0;
    bool revoked = false;
    Shares::Ticket charged LARDER_GUARDED_BY(mu);
    size_t slots = 0;  // as reserved
  };
  using Leases = absl::flat_hash_map<LeaseId, LeaseRecord>;
  using Reservations = absl::flat_hash_map<ReservationId, std::shared_ptr<ReservationRecord>>;
  struct SessionVariant {
    VariantIndex index = VariantIndex::kNone;
    uint32_t block_tokens = 0;
    uint32_t layers = 0;
  };

  AttachedSession(SessionDeps& deps, SessionId id, std::optional<AttachedProcess> process,
                  const ShareHolder& holder, std::string peer, SessionSink& sink);

  void Send(wire::Down message) LARDER_EXCLUDES(sink_mu_);
  void End(absl::Status status) LARDER_EXCLUDES(sink_mu_);  // of the stream, after what was sent
  [[nodiscard]] absl::Status Admit(const wire::Up& up) LARDER_REQUIRES(mu_);
  // How many extents were promised.
  size_t HandleWrites(wire::Up& up, wire::Down* down) LARDER_REQUIRES(mu_);
  // `released`: its releases are done; they are once an acquire lacks what they give back.
  void HandleAcquires(const wire::Up& up, bool* released, wire::Down* down) LARDER_REQUIRES(mu_);
  void Count(const wire::Up& up);
  void CountGot(const wire::Acquire& request, const wire::Grant& grant) LARDER_REQUIRES(mu_);
  void CountPut(const SessionVariant& variant, const wire::PublishBlock& block);
  [[nodiscard]] absl::Status Attach(const wire::Hello& hello) LARDER_REQUIRES(mu_);
  [[nodiscard]] static absl::Status CheckAnswerSize(const wire::Up& up);
  [[nodiscard]] wire::WriteMode ChooseWriteMode(wire::WriteMode wanted, std::string* reason) const;
  void ChooseModes(const wire::Hello& hello, wire::Attached* attached);
  [[nodiscard]] wire::Registered Handle(const wire::Register& request) LARDER_REQUIRES(mu_);
  [[nodiscard]] wire::Reserved Handle(const wire::Reserve& request) LARDER_REQUIRES(mu_);
  [[nodiscard]] wire::Grant Handle(const wire::Acquire& request) LARDER_REQUIRES(mu_);
  void Handle(wire::Publish request, wire::Down* down) LARDER_REQUIRES(mu_);
  void Handle(const wire::Abort& request) LARDER_REQUIRES(mu_);
  void Handle(const wire::RevokeAck& ack) LARDER_REQUIRES(mu_);
  void Handle(const wire::DamageReport& report) LARDER_REQUIRES(mu_);
  // InvalidArgument: no such variant, digests that do not follow from parent and tokens.
  [[nodiscard]] absl::Status Handle(const wire::DeviceBlocks& report) LARDER_EXCLUDES(mu_);
  // In a session's share of what many hold: what of it the caller is to keep is in *crowded.
  [[nodiscard]] BlockStore::AcquireResult Hold(const wire::Acquire& request, HoldWhat what,
                                               std::vector<EntryRef>* crowded) LARDER_REQUIRES(mu_);
  void Uncrowd(std::span<const EntryRef> blocks) LARDER_REQUIRES(mu_);
  void Release(std::span<const LeaseId> leases) LARDER_REQUIRES(mu_);
  void CloseReservation(ReservationId id) LARDER_REQUIRES(mu_);
  [[nodiscard]] std::optional<uint32_t> TakeWord(uint64_t value) LARDER_REQUIRES(mu_);

  [[nodiscard]] bool FindContents(wire::Publish* request) const LARDER_REQUIRES(mu_);
  [[nodiscard]] bool FindContent(wire::PublishBlock* block) const LARDER_REQUIRES(mu_);
  [[nodiscard]] BlockStatus CheckBlock(const SessionVariant& variant,
                                       const wire::PublishBlock& block, std::string* message) const;
  [[nodiscard]] BlockStatus PublishMapped(ReservationRecord& record, const SessionVariant& variant,
                                          const wire::PublishBlock& block, std::string* message);
  [[nodiscard]] BlockStatus PublishStaged(ReservationRecord& record, const SessionVariant& variant,
                                          wire::PublishBlock& block, std::string* message);
  [[nodiscard]] BlockStatus CopyInto(ExtentReservation& one, const StagingSegment& staging,
                                     const SessionVariant& variant, wire::PublishBlock& block);
  // What is left of a reservation after a publish; closes it when that is nothing.
  void Recharge(ReservationId id, ReservationRecord& record) LARDER_REQUIRES(mu_);
  void CountPublished(const wire::Published& answer);
  struct StagedPublish;
  [[nodiscard]] bool SubmitStaged(wire::Publish request, const SessionVariant& variant,
                                  std::shared_ptr<ReservationRecord> record) LARDER_REQUIRES(mu_);
  void CopyBlocks(StagedPublish& publish) LARDER_EXCLUDES(mu_);
  void EndStaged(StagedPublish& publish) LARDER_EXCLUDES(mu_);
  void Grants(const wire::Acquire& request, const SessionVariant& variant, LeaseId id,
              BlockStore::AcquireResult& held, Promoter::Prepared promotion, wire::Grant* grant)
      LARDER_REQUIRES(mu_);
  // False: it or its uid holds too much.
  [[nodiscard]] bool ChargeLease(ByteCount bytes, LeaseRecord* record) const;
  // `encoded`: as it is, where the caller accepts that.  kPending: it is on disk, or to be decoded.
  [[nodiscard]] wire::BlockGrant GrantOne(const wire::Acquire& request,
                                          const SessionVariant& variant,
                                          const BlockIndex::Held& held, bool encoded)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] static bool Accepts(const wire::Acquire& request, const BlockMetadata& metadata);
  // Blocks of HOST that are kPending in `grant`: held for that and charged, or kFull.
  void PlanDecoding(const wire::Acquire& request, const SessionVariant& variant,
                    const BlockStore::AcquireResult& held, LeaseId lease, LeaseRecord* record,
                    wire::Grant* grant) LARDER_REQUIRES(mu_);
  [[nodiscard]] std::shared_ptr<Filling> NewFilling(const wire::Acquire& request,
                                                    const SessionVariant& variant, LeaseId lease);
  void StartFillings() LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool SubmitFilling(const std::shared_ptr<Filling>& plan);
  void Decode(const std::shared_ptr<Filling>& plan) LARDER_EXCLUDES(mu_);
  void DecodeNext(Filling& plan, PayloadCodec& codec) LARDER_EXCLUDES(mu_);
  void GiveUp(Filling& plan, BlockStatus status) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool Wanted(LeaseId lease) LARDER_EXCLUDES(mu_);
  // Its place is in `to`; slab 0.
  [[nodiscard]] wire::BlockGrant Decoded(const wire::Acquire& request, const BlockIndex::Held& held,
                                         std::span<std::byte> to, PayloadCodec& codec);
  void AnswerDecoded(const Filling& plan, size_t key, wire::BlockGrant block,
                     ExtentReservation extent) LARDER_EXCLUDES(mu_);

  // ---- reads by copies (session_copies.cc)
  struct FillingBlock;
  [[nodiscard]] bool ByCopies(const wire::Acquire& request) const;
  void PlanCopies(const wire::Acquire& request, const SessionVariant& variant,
                  const BlockStore::AcquireResult& held, LeaseId lease, const LeaseRecord& record,
                  wire::Grant* grant) LARDER_REQUIRES(mu_);
  [[nodiscard]] bool AddToFilling(size_t key, const BlockIndex::Held& held,
                                  const wire::BlockGrant& grant, Filling& plan)
      LARDER_REQUIRES(mu_);
  void StartCopies(std::shared_ptr<Filling> plan) LARDER_EXCLUDES(mu_);
  void RunCopies(std::shared_ptr<Filling> plan) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::shared_ptr<Filling> NextCopies() LARDER_EXCLUDES(mu_);
  void CopyOut(const std::shared_ptr<Filling>& plan) LARDER_EXCLUDES(mu_);
  [[nodiscard]] wire::BlockGrant CopyOne(const Filling& plan, const FillingBlock& block,
                                         PayloadCodec& codec);
  [[nodiscard]] bool CopyTo(const FillingBlock& block, std::span<const std::byte> from,
                            std::span<std::byte> to);
  void CountCopied(const Filling& plan, const FillingBlock& block, const wire::BlockGrant& grant);
  static void AddAnswer(const Filling& plan, size_t key, wire::BlockGrant grant, wire::Down* down);
  void SendAnswers(LeaseId lease, wire::Down down) LARDER_EXCLUDES(mu_);
  void EndCopies(LeaseId lease) LARDER_EXCLUDES(mu_);
  void LetGo(LeaseRecord& record) LARDER_REQUIRES(mu_);
  struct Promotion;
  [[nodiscard]] HoldWhat TiersToHold() const LARDER_REQUIRES(mu_);
  void Offer(VariantIndex variant, const Digest& digest);
  // `prepared`: what is to be read of it; null: nothing.  False: there is something, but too much
  // waits already.
  [[nodiscard]] bool PlanPromotion(const wire::Acquire& request, const SessionVariant& variant,
                                   const BlockStore::AcquireResult& held, LeaseId lease,
                                   Promoter::Prepared* prepared) LARDER_REQUIRES(mu_);
  void CancelReads(std::span<const uint64_t> requests) LARDER_REQUIRES(mu_);
  void StartPromotions() LARDER_EXCLUDES(mu_);
  void OnPromoted(const Promotion& promotion, size_t key, BlockStatus status,
                  const BlockIndex::Held& held) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::shared_ptr<Filling> PlanPromoted(const Promotion& promotion, size_t key,
                                                      const BlockIndex::Held& held,
                                                      std::shared_ptr<CopyRoom> room,
                                                      wire::BlockGrant* block) LARDER_REQUIRES(mu_);
  // It begins nothing new.
  [[nodiscard]] bool Drained() const LARDER_REQUIRES(mu_) {
    return draining_ && deps_.clock.Now() >= drained_from_;
  }
  void FinishIfDrained() LARDER_REQUIRES(mu_);
  void PutInQuarantine(Leases leases,
                       Reservations reservations);  // what the process may still touch

  SessionDeps& deps_;
  const SessionId id_;
  const std::optional<AttachedProcess> process_;
  const Shares::Account account_;  // of the process
  const std::string peer_;
  std::unique_ptr<SessionPage> page_;  // const after Create; empty without a process
  std::string engine_id_;              // const after attached
  BlockWriter writer_;                 // likewise; of what it stores
  std::atomic<wire::WriteMode> write_mode_ = wire::WriteMode::kStream;  // const after attached
  std::atomic<wire::ReadMode> read_mode_ = wire::ReadMode::kStream;     // likewise

  Mutex mu_;
  bool attached_ LARDER_GUARDED_BY(mu_) = false;
  bool tiers_ LARDER_GUARDED_BY(mu_) = false;     // it understands PENDING and Durable
  bool directed_ LARDER_GUARDED_BY(mu_) = false;  // it takes directives beside DRAIN
  bool draining_ LARDER_GUARDED_BY(mu_) = false;
  TimePoint drained_from_ LARDER_GUARDED_BY(mu_);  // when draining
  bool closed_ LARDER_GUARDED_BY(mu_) = false;
  bool bye_ LARDER_GUARDED_BY(mu_) = false;  // nothing of this session is in use any more
  std::vector<SessionVariant> variants_ LARDER_GUARDED_BY(mu_);
  std::vector<Digest> contents_ LARDER_GUARDED_BY(mu_);  // registered, at most kContentsMax
  Leases leases_ LARDER_GUARDED_BY(mu_);
  Reservations reservations_ LARDER_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, uint32_t> crowded_ LARDER_GUARDED_BY(mu_);  // leases by EntryRef
  TimePoint next_deadline_ LARDER_GUARDED_BY(mu_);                          // the hello's first
  size_t copies_ LARDER_GUARDED_BY(mu_) = 0;  // staged publishes that are not answered yet
  ReadSampler sampler_ LARDER_GUARDED_BY(mu_);
  std::vector<Promoter::Prepared> promotions_ LARDER_GUARDED_BY(mu_);      // for after the answer
  std::vector<std::shared_ptr<Filling>> fillings_ LARDER_GUARDED_BY(mu_);  // likewise
  bool copying_ LARDER_GUARDED_BY(mu_) = false;  // a job of it, for a read by copies
  std::deque<std::shared_ptr<Filling>> waiting_copies_ LARDER_GUARDED_BY(mu_);  // for its end
  uint64_t ids_ LARDER_GUARDED_BY(mu_) = 0;  // low half of lease and reservation ids

  // Apart from mu_, so that a copy that ends can answer while a message is handled.
  Mutex sink_mu_;
  SessionSink* sink_ LARDER_GUARDED_BY(sink_mu_);
};

}  // namespace larder
