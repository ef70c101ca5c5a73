// What a session reads: its leases.
//
// A lease holds the blocks that one acquire found, charged to the session's account.  At its
// deadline a lease whose blocks the client may be reading in place is revoked, but keeps its holds,
// usually until the client acknowledges or releases it.  Other leases do not wait for the client
// then.  The answer to a client that wants to read has the status OK for blocks that it can read
// now, and PENDING for blocks that must first be read from disk (Promoter), or be decoded or copied
// (SessionFillings).
//
// Ownership: the session owns this object.  Jobs that decode or copy keep the session alive.  A
// read from disk does not, and is answered only if the session still exists.
// Thread-safety: all methods from any thread; the session calls Acquire under its own lock.
// Locks: mu_ is held while blocks are acquired in the store, released and checked, and while the
// shares, the staging table, the session's page and Promoter::Prepare are called.  Reads, decoding
// and copying are started, and later answers sent, without it.
// Limits: the words of the session's page; the shares of leases and of leased bytes; kCrowdedMax
// leases on one block that has many holds.
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
  static constexpr uint32_t kRetryAfterFullMs = 20;
  // The most open leases of one session on the same block that were granted while the block had
  // more than kCrowdedHolds holds.
  static constexpr uint32_t kCrowdedMax = 16;

  SessionLeases(SessionContext& context, const SessionRegistrations& registered);

  // Grants a lease if possible.  An answer without a lease gives no block, and each block's status
  // says why.  Reading, decoding and copying for the lease begin with StartReads.
  [[nodiscard]] wire::Grant Acquire(const wire::Acquire& request) LARDER_EXCLUDES(mu_);
  // Counts hits and misses of a grant that is sent to the client.
  void Count(const wire::Acquire& request, const wire::Grant& grant);
  // Begins the reading, decoding and copying for the leases that were granted since the last call.
  // To be called after the grants have been sent, so that the client gets a grant before the later
  // answers for its PENDING blocks.
  void StartReads() LARDER_EXCLUDES(mu_);
  void Release(std::span<const LeaseId> leases) LARDER_EXCLUDES(mu_);
  // Releases those of the leases that are still held: the client has acknowledged their revocation.
  void Acknowledge(std::span<const LeaseId> leases) LARDER_EXCLUDES(mu_);
  // Stops reading, decoding and copying for the leases of the acquires with these ids.  Their
  // PENDING blocks that no thread works on yet are usually answered CANCELLED.
  void Cancel(std::span<const uint64_t> requests) LARDER_EXCLUDES(mu_);
  // Handles leases whose deadline has passed, and appends to *revoked those of which the client
  // must learn.  Returns true if it handled any lease.
  bool Tick(TimePoint now, std::vector<LeaseId>* revoked) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool empty() const LARDER_EXCLUDES(mu_);
  // Ends all leases.  Moves what they hold to *touchable, except for leases whose blocks the client
  // reads by copies.
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
    LedgerHold under_promise;                // for its blocks that a promise's ledger has
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
  // Sets the answers in *grant for the held blocks and, if a lease can be granted, records it.
  void Grant(const wire::Acquire& request, const SessionVariant& variant, LeaseId id,
             BlockStore::AcquireResult& held, Promoter::Prepared promotion, wire::Grant* grant)
      LARDER_REQUIRES(mu_);
  // Charges a lease to the session's account, except for what the ledger of the request's promise
  // has.  Returns false if there is no share left for it.
  [[nodiscard]] bool Charge(const wire::Acquire& request, const BlockStore::AcquireResult& held,
                            Record* record) const;
  // Returns the ledger of the promise that the request names; null if there is none.
  [[nodiscard]] std::shared_ptr<HoldLedger> LedgerOf(const wire::Acquire& request) const;
  // Returns the answer for one key of the request.  Without `encoded`, an encoded block is not
  // given as it is, even to a client that accepts its codec.
  [[nodiscard]] wire::BlockGrant GrantOne(const wire::Acquire& request,
                                          const SessionVariant& variant,
                                          const BlockIndex::Held& held, bool encoded)
      LARDER_REQUIRES(mu_);
  // Plans to decode the blocks in HOST that are kPending in *grant.  A block becomes kFull if the
  // share of leased bytes is used up or the block has too many holds.
  void PlanDecoding(const wire::Acquire& request, const SessionVariant& variant,
                    const BlockStore::AcquireResult& held, LeaseId lease, Record* record,
                    wire::Grant* grant) LARDER_REQUIRES(mu_);
  // Plans to copy the blocks in HOST that *grant gives, and sets their answers to kPending, or to
  // kFull at a limit.
  void PlanCopies(const wire::Acquire& request, const SessionVariant& variant,
                  const BlockStore::AcquireResult& held, LeaseId lease, const Record& record,
                  wire::Grant* grant) LARDER_REQUIRES(mu_);
  // Adds a block to `filling`.  Returns false if the block has too many holds.
  [[nodiscard]] bool AddToFilling(size_t key, const BlockIndex::Held& held,
                                  const wire::BlockGrant& grant, Filling& filling)
      LARDER_REQUIRES(mu_);
  // Prepares the reading of held blocks that are only on disk; *prepared is null if there are none.
  // Returns false if there are some, but the promoter does not take them now (Promoter::Prepare).
  [[nodiscard]] bool PlanPromotion(const wire::Acquire& request, const SessionVariant& variant,
                                   const BlockStore::AcquireResult& held, LeaseId lease,
                                   Promoter::Prepared* prepared);
  // Handles a block that was read from disk, or that could not be read: if the client waits for it,
  // sends the answer, or starts copying the block.
  void OnPromoted(const Promotion& promotion, size_t key, BlockStatus status,
                  const BlockIndex::Held& held) LARDER_EXCLUDES(mu_);
  // Plans to copy a block that was read from disk.  Returns null if it cannot be copied; the status
  // of *block then says why.
  [[nodiscard]] std::shared_ptr<Filling> PlanPromoted(const Promotion& promotion, size_t key,
                                                      const BlockIndex::Held& held,
                                                      std::shared_ptr<CopyWindow> window,
                                                      wire::BlockGrant* block) LARDER_REQUIRES(mu_);
  // Ends the lease's holds on its blocks, and forgets its window and its deadline.  Jobs that
  // decode or copy, and reads from disk, have holds of their own.
  static void LetGo(Record& record);
  void ReleaseLocked(LeaseId id) LARDER_REQUIRES(mu_);

  SessionContext& context_;
  SessionDeps& deps_;
  const SessionRegistrations& registered_;
  SessionFillings fillings_;

  mutable Mutex mu_;
  Records leases_ LARDER_GUARDED_BY(mu_);
  // For each block, by EntryRef: how many of this session's open leases were granted on it while it
  // had more than kCrowdedHolds holds.
  absl::flat_hash_map<uint32_t, uint32_t> crowded_ LARDER_GUARDED_BY(mu_);
  TimePoint next_deadline_ LARDER_GUARDED_BY(mu_) = TimePoint::max();
  ReadSampler sampler_ LARDER_GUARDED_BY(mu_);
  // What the next StartReads begins.
  std::vector<Promoter::Prepared> promotions_to_start_ LARDER_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Filling>> fillings_to_start_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
