// What a session reads: its leases.
//
// A lease holds the blocks of one acquire, charged to the session's process, from the grant until
// the client releases it, its deadline passes, all its copies are made, or the session ends.  At
// the deadline a lease whose blocks the client may be reading in place is revoked, but keeps its
// holds until the client acknowledges or releases it; any other lease returns its blocks.  A grant
// answers OK for the blocks that the client can read now, or that a promise holds, and PENDING for
// the other blocks that it can have: the promoter reads those that are only on disk, and a Filling
// (server/sessions/session_fillings.h) decodes or copies blocks.
//
// Ownership: the session owns this object.  Fillings that are jobs keep the session alive.  A read
// from disk does not, and answers only if the session still exists.
// Thread-safety: all methods from any thread; the session calls Acquire under its own lock.
// Locks: mu_ is held while blocks are acquired in the store, released and checked, and while the
// shares, the staging table, the session's page and Promoter::Prepare are called.  Reads are
// submitted, fillings started and answers sent without it.
// Limits: SessionPage::kWords leases and reservations; the shares of leases and of leased bytes;
// kCrowdedMax leases granted on a block that many sessions hold.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/sessions/read_sampler.h"
#include "server/sessions/session_context.h"
#include "server/sessions/session_fillings.h"
#include "server/sessions/session_registrations.h"
#include "storage/mutex.h"
#include "storage/tiering/promoter.h"

namespace larder {

class SessionLeases final : private FillingHost {
 public:
  // The most segment tables that all acquires of one Up may want; a table has up to 1,024 segments.
  static constexpr size_t kTablesPerMessageMax = 512;
  static constexpr uint32_t kRetryAfterFullMs = 20;
  // The most leases of one session that were granted on a block while the block had more than
  // kCrowdedHolds holds.
  static constexpr uint32_t kCrowdedMax = 16;

  SessionLeases(SessionContext& context, const SessionRegistrations& registered);

  // Grants a lease if at least one block can be given, now or later; otherwise the answer has no
  // lease, and each block's status says why.  Reading, decoding and copying for the lease begin
  // with StartReads.
  [[nodiscard]] wire::Grant Acquire(const wire::Acquire& request) LARDER_EXCLUDES(mu_);
  // Counts the hits and misses of a grant that is sent to the client.
  void Count(const wire::Acquire& request, const wire::Grant& grant);
  // Begins the reading, decoding and copying for the leases that were granted since the last call.
  // To be called after the grants have been sent, so that the client gets a grant before the later
  // answers for its PENDING blocks.
  void StartReads() LARDER_EXCLUDES(mu_);
  void Release(std::span<const LeaseId> leases) LARDER_EXCLUDES(mu_);
  // Releases those of the leases that are still held: the client has stopped reading them.
  void Acknowledge(std::span<const LeaseId> leases) LARDER_EXCLUDES(mu_);
  // Stops reading, decoding and copying for the leases of these acquires.  Their PENDING blocks
  // that no thread works on yet are answered CANCELLED.
  void Cancel(std::span<const uint64_t> requests) LARDER_EXCLUDES(mu_);
  // Ends leases and promises whose deadline has passed, and appends those to *revoked of which the
  // client is told: leases that it must stop reading, and all promises.  Returns true if any ended.
  bool Tick(TimePoint now, std::vector<LeaseId>* revoked) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool empty() const LARDER_EXCLUDES(mu_);
  // Ends all leases; none of their PENDING blocks is answered any more.  Returns the blocks of
  // leases that are read by copies to the store, and moves those of all other leases, which the
  // client may be reading in place, to *touchable.
  void End(SessionHoldings* touchable) LARDER_EXCLUDES(mu_);

 private:
  struct Record {
    Record() = default;
    Record(Record&&) = default;
    Record& operator=(Record&&) = default;
    ~Record() {
      if (promotion) Promoter::Cancel(promotion);
    }
    BlockLease lease;
    TimePoint deadline;
    uint32_t word = 0;
    uint64_t request = 0;  // the acquire's id
    bool revoked = false;
    bool cancelled = false;                  // nothing more is decoded or copied for it
    bool promise = false;                    // for a kPromise: the client reads no bytes
    bool copied = false;                     // the client reads copies, not the pool
    std::shared_ptr<CopyWindow> window;      // for the copies, until all are made
    std::vector<ExtentReservation> decoded;  // the lease's own extents, with decoded blocks
    Promoter::Prepared promotion;            // reads from disk for the lease; may be null
    Shares::Ticket place, bytes;             // charges for the lease
    std::vector<EntryRef> crowded;           // the lease's blocks that crowded_ counts
  };
  struct Promotion;
  using Records = absl::flat_hash_map<LeaseId, Record>;

  // FillingHost
  [[nodiscard]] bool Listens(LeaseId lease) override LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool Wants(LeaseId lease) override LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool Keep(LeaseId lease, ExtentReservation* decoded) override LARDER_EXCLUDES(mu_);
  void OnCopied(LeaseId lease) override LARDER_EXCLUDES(mu_);

  [[nodiscard]] bool ByCopies(const wire::Acquire& request) const;
  [[nodiscard]] HoldWhat TiersToHold() const;
  // Acquires the blocks of the request in the store.  Appends to *crowded the blocks whose counts
  // in crowded_ it has incremented.
  [[nodiscard]] BlockStore::AcquireResult Hold(const wire::Acquire& request, VariantIndex variant,
                                               HoldWhat what, std::vector<EntryRef>* crowded)
      LARDER_REQUIRES(mu_);
  void Uncrowd(std::span<const EntryRef> blocks) LARDER_REQUIRES(mu_);
  // Sets the answers in *grant for the held blocks and records the lease.  Grants no lease if no
  // block can be given, or if there is no share or no word for the lease.
  void Grant(const wire::Acquire& request, const SessionVariant& variant, LeaseId id,
             BlockStore::AcquireResult& held, Promoter::Prepared promotion, wire::Grant* grant)
      LARDER_REQUIRES(mu_);
  // Charges a lease to the process.  Returns false if the process, its uid, or all processes
  // together have no share left.
  [[nodiscard]] bool Charge(ByteCount bytes, Record* record) const;
  // Returns the answer for one key of the request.  With `encoded`, an encoded block is given as it
  // is if the client accepts its codec.  The answer is kPending if the block is only on disk or
  // must be decoded, unless the request is a promise, an earlier key names the block, or the client
  // does not understand kPending.
  [[nodiscard]] wire::BlockGrant GrantOne(const wire::Acquire& request,
                                          const SessionVariant& variant,
                                          const BlockIndex::Held& held, bool encoded)
      LARDER_REQUIRES(mu_);
  // Makes a filling of the blocks of HOST that are kPending in *grant.  A block for which the share
  // or the holds do not suffice becomes kFull.
  void PlanDecoding(const wire::Acquire& request, const SessionVariant& variant,
                    const BlockStore::AcquireResult& held, LeaseId lease, Record* record,
                    wire::Grant* grant) LARDER_REQUIRES(mu_);
  // Makes a filling (server/sessions/session_fillings.h) of the blocks that HOST has and *grant
  // gives, and sets their answers to kPending; or to kFull if a block has too many holds, or too
  // many keys name blocks again.
  void PlanCopies(const wire::Acquire& request, const SessionVariant& variant,
                  const BlockStore::AcquireResult& held, LeaseId lease, const Record& record,
                  wire::Grant* grant) LARDER_REQUIRES(mu_);
  // Adds a block to a filling.  Returns false if the block has too many holds.
  [[nodiscard]] bool AddToFilling(size_t key, const BlockIndex::Held& held,
                                  const wire::BlockGrant& grant, Filling& filling)
      LARDER_REQUIRES(mu_);
  // Prepares the reading of held blocks that are only on disk; *prepared is null if there are none.
  // Returns false if there are some, but too many reads wait for the disk already, or a block has
  // too many holds.
  [[nodiscard]] bool PlanPromotion(const wire::Acquire& request, const SessionVariant& variant,
                                   const BlockStore::AcquireResult& held, LeaseId lease,
                                   Promoter::Prepared* prepared);
  // Answers for a block that was read from disk, or that could not be read.  If the block is to be
  // copied, starts a filling, which answers.
  void OnPromoted(const Promotion& promotion, size_t key, BlockStatus status,
                  const BlockIndex::Held& held) LARDER_EXCLUDES(mu_);
  // Makes a filling of a block that was read from disk.  Returns null if there is nothing to copy;
  // *block then says why.
  [[nodiscard]] std::shared_ptr<Filling> PlanPromoted(const Promotion& promotion, size_t key,
                                                      const BlockIndex::Held& held,
                                                      std::shared_ptr<CopyWindow> window,
                                                      wire::BlockGrant* block) LARDER_REQUIRES(mu_);
  // Returns the lease's blocks to the store, and forgets its window and its deadline.  Blocks that
  // are still to be copied stay held by their filling.
  static void LetGo(Record& record);
  void ReleaseLocked(LeaseId id) LARDER_REQUIRES(mu_);

  SessionContext& context_;
  SessionDeps& deps_;
  const SessionRegistrations& registered_;
  SessionFillings fillings_;

  mutable Mutex mu_;
  Records leases_ LARDER_GUARDED_BY(mu_);
  // For each block, by EntryRef: how many of this session's leases were granted on it while it had
  // more than kCrowdedHolds holds.
  absl::flat_hash_map<uint32_t, uint32_t> crowded_ LARDER_GUARDED_BY(mu_);
  TimePoint next_deadline_ LARDER_GUARDED_BY(mu_) = TimePoint::max();
  ReadSampler sampler_ LARDER_GUARDED_BY(mu_);
  // What the next StartReads begins.
  std::vector<Promoter::Prepared> promotions_to_start_ LARDER_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Filling>> fillings_to_start_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
