// What a session reads: its leases.
//
// A lease holds the blocks of one acquire, charged to the session's process, from the grant until
// the client releases it or its deadline passes.  At the deadline a lease whose blocks the client
// may be reading in place is revoked, and keeps its holds until the client acknowledges; any other
// lease ends.  Of a lease's blocks the grant gives those that the client can read at once.  The
// others are PENDING: those that are on disk alone are read by the promoter, and what must be
// decoded or copied first becomes a Filling (server/sessions/session_fillings.h).
//
// Ownership: the session owns it.  Fillings that are jobs keep the session alive.  A read from disk
// does not, and answers only if the session still exists.
// Thread-safety: all methods from any thread; the session calls Acquire under its own lock.
// Locks: mu_ is held while blocks are acquired in the store, released and checked, and while the
// shares, the staging table, the session's page and Promoter::Prepare are called.  Reads are
// submitted, fillings started and answers sent without it.
// Limits: SessionPage::kWords leases and reservations; the shares of leases and of leased bytes;
// kCrowdedMax leases on a block that many sessions hold.
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
  // Segment tables that all acquires of one Up may want; each may have 1,024 segments.
  static constexpr size_t kTablesPerMessageMax = 512;
  static constexpr uint32_t kRetryAfterFullMs = 20;
  // Leases of one session on a block that many sessions hold (kCrowdedHolds).
  static constexpr uint32_t kCrowdedMax = 16;

  SessionLeases(SessionContext& context, const SessionRegistrations& registered);

  // Grants a lease, if anything of it can be given.  What it left to be read, decoded or copied
  // begins with StartReads.
  [[nodiscard]] wire::Grant Acquire(const wire::Acquire& request) LARDER_EXCLUDES(mu_);
  // Counts what the client hears by a grant.
  void Count(const wire::Acquire& request, const wire::Grant& grant);
  // To be called after the grants have been sent, so that what becomes ready follows its grant.
  void StartReads() LARDER_EXCLUDES(mu_);
  void Release(std::span<const LeaseId> leases) LARDER_EXCLUDES(mu_);
  // Releases those of the leases that are still held: the client has stopped reading them.
  void Acknowledge(std::span<const LeaseId> leases) LARDER_EXCLUDES(mu_);
  // Stops reading, decoding and copying for these acquires.
  void Cancel(std::span<const uint64_t> requests) LARDER_EXCLUDES(mu_);
  // Ends leases whose deadline has passed, and appends those that the client must stop reading to
  // *revoked.  Returns true if any ended.
  bool Tick(TimePoint now, std::vector<LeaseId>* revoked) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool empty() const LARDER_EXCLUDES(mu_);
  // Ends all leases, and answers for none any more.  Moves what the client may be reading in place
  // to *touchable, and returns the rest to the store.
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
    bool promise = false;                    // the client reads nothing by it
    bool copied = false;                     // the client reads copies, and nothing in the pool
    std::shared_ptr<CopyWindow> window;      // for those, until they are made
    std::vector<ExtentReservation> decoded;  // extents of its own, of blocks that HOST has encoded
    Promoter::Prepared promotion;            // what is read from disk for it; may be null
    Shares::Ticket place, bytes;             // what is charged for it
    std::vector<EntryRef> crowded;           // blocks for which it is counted in crowded_
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
  // Acquires in the store.  The blocks that this session counts in crowded_ now are in *crowded.
  [[nodiscard]] BlockStore::AcquireResult Hold(const wire::Acquire& request, VariantIndex variant,
                                               HoldWhat what, std::vector<EntryRef>* crowded)
      LARDER_REQUIRES(mu_);
  void Uncrowd(std::span<const EntryRef> blocks) LARDER_REQUIRES(mu_);
  // Answers for what is held and records the lease, or gives nothing.
  void Grant(const wire::Acquire& request, const SessionVariant& variant, LeaseId id,
             BlockStore::AcquireResult& held, Promoter::Prepared promotion, wire::Grant* grant)
      LARDER_REQUIRES(mu_);
  // Returns false if the process or its uid has no share left.
  [[nodiscard]] bool Charge(ByteCount bytes, Record* record) const;
  // Answers for one held block.  `encoded`: an encoded block may be given as it is, where the
  // client accepts that.  kPending: the block is on disk alone, or must be decoded.
  [[nodiscard]] wire::BlockGrant GrantOne(const wire::Acquire& request,
                                          const SessionVariant& variant,
                                          const BlockIndex::Held& held, bool encoded)
      LARDER_REQUIRES(mu_);
  // Makes a filling of the blocks of HOST that are kPending in *grant.
  void PlanDecoding(const wire::Acquire& request, const SessionVariant& variant,
                    const BlockStore::AcquireResult& held, LeaseId lease, Record* record,
                    wire::Grant* grant) LARDER_REQUIRES(mu_);
  // Changes the answer for every block that *grant gives to kPending, and adds the block to a
  // filling (server/sessions/session_fillings.h).
  void PlanCopies(const wire::Acquire& request, const SessionVariant& variant,
                  const BlockStore::AcquireResult& held, LeaseId lease, const Record& record,
                  wire::Grant* grant) LARDER_REQUIRES(mu_);
  // Returns false if the block has too many holds.
  [[nodiscard]] bool AddToFilling(size_t key, const BlockIndex::Held& held,
                                  const wire::BlockGrant& grant, Filling& filling)
      LARDER_REQUIRES(mu_);
  // Prepares the reading of held blocks that are on disk alone; *prepared is null if there are
  // none.  Returns false if there are some, but too much waits for the disk already.
  [[nodiscard]] bool PlanPromotion(const wire::Acquire& request, const SessionVariant& variant,
                                   const BlockStore::AcquireResult& held, LeaseId lease,
                                   Promoter::Prepared* prepared);
  // Answers for a block that was read from disk, or could not be.
  void OnPromoted(const Promotion& promotion, size_t key, BlockStatus status,
                  const BlockIndex::Held& held) LARDER_EXCLUDES(mu_);
  // Makes a filling of such a block.  Returns null if there is nothing to copy: *block says why.
  [[nodiscard]] std::shared_ptr<Filling> PlanPromoted(const Promotion& promotion, size_t key,
                                                      const BlockIndex::Held& held,
                                                      std::shared_ptr<CopyWindow> window,
                                                      wire::BlockGrant* block) LARDER_REQUIRES(mu_);
  // Returns the lease's blocks to the store, and forgets its window; what is being copied is held
  // for that.
  static void LetGo(Record& record);
  void ReleaseLocked(LeaseId id) LARDER_REQUIRES(mu_);

  SessionContext& context_;
  SessionDeps& deps_;
  const SessionRegistrations& registered_;
  SessionFillings fillings_;

  mutable Mutex mu_;
  Records leases_ LARDER_GUARDED_BY(mu_);
  // How many of them hold a block that many sessions hold; by EntryRef.
  absl::flat_hash_map<uint32_t, uint32_t> crowded_ LARDER_GUARDED_BY(mu_);
  TimePoint next_deadline_ LARDER_GUARDED_BY(mu_) = TimePoint::max();
  ReadSampler sampler_ LARDER_GUARDED_BY(mu_);
  // For StartReads.
  std::vector<Promoter::Prepared> promotions_to_start_ LARDER_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Filling>> fillings_to_start_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
