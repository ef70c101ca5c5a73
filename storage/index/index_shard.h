// A sixteenth of a BlockIndex: the entries whose hash begins with its number, and their lock.
//
// BlockIndex alone uses it, and documents what the operations mean; here is what differs.  A shard
// moves entries from state to state (block_state.h) and keeps four parts in step with them, all
// under its lock: ShardEntries finds entries by name, EvictionLists has the order in which they may
// leave, ChildCounts counts the blocks that continue each, GhostTable remembers those that left.
// A change goes: off the list and out of the sums, the change, back in
// (EvictionLists::ChangeState). An entry that leaves is unnamed first; its slot is freed when no
// reader holds it. Ownership: made by BlockIndex; owns the blocks' metadata.  The VariantTable must
// outlive it. Thread-safety: all methods from any thread.  Locks: `mu_` is a leaf, except
// EventRing's. Limits: `entries_max`, at most kEntriesMax.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "storage/index/child_counts.h"
#include "storage/index/event_ring.h"
#include "storage/index/eviction_lists.h"
#include "storage/index/eviction_policy.h"
#include "storage/index/ghost_table.h"
#include "storage/index/index_values.h"
#include "storage/index/shard_entries.h"
#include "storage/index/variant_table.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class IndexShard {
 public:
  static constexpr size_t kKeysMax = ShardEntries::kKeysMax;
  static constexpr uint32_t kEvictionLook = EvictionLists::kEvictionLook;
  // Beyond those that blocks enter by: a block whose copy in HOST is damaged needs a second entry
  // for its copy on disk, also when the shard is full (DropHostCopy).
  static constexpr uint32_t kSpareEntries = 64;
  static constexpr uint32_t kEntriesMax = EntrySlots::kSlotsMax - kSpareEntries;

  using Group = ShardEntries::Group;
  using Raised = ChildCounts::Raised;
  using Uncounted = ChildCounts::Uncounted;
  using Candidate = EvictionLists::Candidate;
  using PinnedPages = EvictionLists::PinnedPages;

  // `events`, if not null, gets an event for each block that comes to a tier or leaves one.
  IndexShard(VariantTable& variants, uint32_t entries_max = kEntriesMax,
             EventRing* events = nullptr);
  ~IndexShard();
  IndexShard(const IndexShard&) = delete;
  IndexShard& operator=(const IndexShard&) = delete;

  // ---- finding and holding

  // BlockIndex prefetches a whole batch, in all shards, before it takes the first lock.
  void Prefetch(uint64_t hash) const LARDER_NO_THREAD_SAFETY_ANALYSIS { entries_.Prefetch(hash); }
  // Answers out[order[i]].  Refs of Hold are slots.
  void Lookup(const Group& group, std::span<BlockPresence> out) const LARDER_EXCLUDES(mu_);
  void Hold(const Group& group, HoldWhat what, uint32_t now_s, std::span<HeldBlock> out)
      LARDER_EXCLUDES(mu_);
  // Returns how many of `slots`, from the first, it held; the next one has kClientHoldsMax already.
  [[nodiscard]] size_t HoldAgain(std::span<const uint32_t> slots) LARDER_EXCLUDES(mu_);
  void Unhold(std::span<const uint32_t> slots, std::vector<Extent>* freed,
              std::vector<FreedExtent>* on_disk) LARDER_EXCLUDES(mu_);
  // REQUIRES: held.
  [[nodiscard]] HeldBlock LookAt(uint32_t slot) const LARDER_EXCLUDES(mu_);

  // ---- entering

  // kBusy, of InsertOnDisk: another writer claims the name just now, or HOST has it with bytes that
  // were not compared with the record's; the caller asks again.
  enum class EnterResult { kEntered, kDuplicate, kFull, kBusy };
  // absent -> host.  Takes block.metadata on kEntered only.  kDuplicate: the name is taken, in any
  // state.
  [[nodiscard]] EnterResult Insert(uint64_t hash, IndexedBlock& block, Raised& raised,
                                   uint32_t now_s, uint32_t* slot) LARDER_EXCLUDES(mu_);
  // absent -> reserved
  [[nodiscard]] EnterResult Claim(uint64_t hash, VariantIndex variant, const Digest& digest,
                                  uint32_t* slot) LARDER_EXCLUDES(mu_);
  struct Name {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
  };
  [[nodiscard]] Name NameOf(uint32_t slot) const LARDER_EXCLUDES(mu_);
  // reserved -> host
  void Fill(uint32_t slot, const Extent& extent, std::unique_ptr<const BlockMetadata> metadata,
            Raised& raised, uint32_t now_s) LARDER_EXCLUDES(mu_);
  // reserved -> absent
  void Abandon(uint32_t slot) LARDER_EXCLUDES(mu_);
  // absent -> disk, or host -> host+disk of slot `same` (kNone: of no slot), whose bytes are those
  // of the record.  REQUIRES: the caller holds `same`.
  [[nodiscard]] EnterResult InsertOnDisk(uint64_t hash, const BlockOnDisk& block, uint32_t same,
                                         Raised& raised, uint32_t now_s, uint32_t* slot)
      LARDER_EXCLUDES(mu_);

  // ---- moving between the tiers; all of held entries

  // host -> host+disk, or host+disk at another place.  Returns where it was on disk until now (0:
  // nowhere), or nullopt if the entry has left HOST meanwhile.
  [[nodiscard]] std::optional<uint64_t> SetOnDisk(uint32_t slot, uint64_t location)
      LARDER_EXCLUDES(mu_);
  // As BlockIndex says of them.  Between the two DropHostCopy leaves the entry alone.
  [[nodiscard]] bool BeginRewrite(uint32_t slot, uint64_t location) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool FinishRewrite(uint32_t slot, uint64_t location) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool ReplaceInHost(uint32_t slot, const Extent& extent,
                                   std::unique_ptr<const BlockMetadata>* metadata)
      LARDER_EXCLUDES(mu_);
  // disk -> promoting.  Returns false if the block is not on disk alone or is being promoted.
  [[nodiscard]] bool BeginPromote(uint32_t slot) LARDER_EXCLUDES(mu_);
  // promoting -> host+disk; the entry stays held.  Returns false if it has left meanwhile.
  [[nodiscard]] bool FinishPromote(uint32_t slot, const Extent& extent,
                                   std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                                   uint32_t now_s) LARDER_EXCLUDES(mu_);
  // promoting -> disk
  void FailPromote(uint32_t slot) LARDER_EXCLUDES(mu_);

  // ---- leaving

  // What left HOST, or the index.
  struct Departure {
    EvictedBlock block;
    bool doomed = false;                 // held: extent and metadata follow with the last Unhold
    std::optional<uint64_t> counted_by;  // hash of the parent whose `children` still counts it
  };
  [[nodiscard]] std::optional<Departure> Drop(uint64_t hash, VariantIndex variant,
                                              const Digest& digest) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<Departure> Drop(uint32_t slot) LARDER_EXCLUDES(mu_);
  // As BlockIndex says.
  [[nodiscard]] std::optional<Departure> DropHostCopy(uint32_t slot) LARDER_EXCLUDES(mu_);
  struct Clearance {
    ClearedBlock block;
    uint32_t held = 0;              // the slot that block.held is of
    std::optional<Departure> gone;  // from HOST, or the index
    FreedExtent on_disk;            // of the copy that left alone
  };
  // As BlockIndex::Clear says.
  [[nodiscard]] Clearance Clear(uint64_t hash, VariantIndex variant, const Digest& digest,
                                TierSet tiers, ClearHow how) LARDER_EXCLUDES(mu_);

  // What left the disk tier.
  struct DiskDeparture {
    EvictedFromDisk block;
    std::optional<uint64_t> counted_by;  // as in Departure; the block may still be in HOST
    uint32_t last_use_s = 0;
  };
  // What EvictColdest, or EvictColdestFromDisk, would take without `parents_too`.
  [[nodiscard]] Candidate Least(const EvictionPolicy& policy, uint32_t now_s) LARDER_EXCLUDES(mu_);
  [[nodiscard]] Candidate LeastOnDisk(const EvictionPolicy& policy, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  // From HOST, and from those on disk alone (EvictionLists::LeastInHost, LeastOnDiskAlone).
  [[nodiscard]] std::optional<Departure> EvictColdest(const EvictionPolicy& policy,
                                                      bool parents_too, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<DiskDeparture> EvictColdestFromDisk(const EvictionPolicy& policy,
                                                                  bool parents_too, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  // host+disk -> host, of the least worthy.
  [[nodiscard]] std::optional<EvictedFromDisk> DropDiskCopy(const EvictionPolicy& policy,
                                                            uint32_t now_s) LARDER_EXCLUDES(mu_);
  // This block, if it is neither held nor pinned there: from HOST; and its copy on disk, alone or
  // beside HOST.
  [[nodiscard]] std::optional<Departure> Evict(uint32_t slot) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<DiskDeparture> EvictFromDisk(uint32_t slot) LARDER_EXCLUDES(mu_);
  // Its worth there, per byte (EvictionPolicy).  Returns nullopt if Evict, or EvictFromDisk, would
  // not take it.
  [[nodiscard]] std::optional<double> WorthInHost(uint32_t slot, const EvictionPolicy& policy,
                                                  uint32_t now_s) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<double> WorthOnDisk(uint32_t slot, const EvictionPolicy& policy,
                                                  uint32_t now_s) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool SetPinned(uint64_t hash, VariantIndex variant, const Digest& digest, Tier tier,
                               bool pinned) LARDER_EXCLUDES(mu_);
  // These three take no lock (EvictionLists).
  [[nodiscard]] uint64_t evictable_pages() const LARDER_NO_THREAD_SAFETY_ANALYSIS {
    return lists_.evictable_pages();
  }
  [[nodiscard]] bool has_copies() const LARDER_NO_THREAD_SAFETY_ANALYSIS {
    return lists_.has_copies();
  }
  [[nodiscard]] const PinnedPages& pinned_pages() const LARDER_NO_THREAD_SAFETY_ANALYSIS {
    return lists_.pinned_pages();
  }

  // ---- children (ChildCounts)

  [[nodiscard]] Raised RaiseChildren(VariantIndex variant, uint64_t parent, const Digest& child)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<uint64_t> MarkShared(VariantIndex variant, uint64_t parent)
      LARDER_EXCLUDES(mu_);
  void LowerChildren(VariantIndex variant, uint64_t parent,
                     std::optional<uint32_t> child_last_use_s) LARDER_EXCLUDES(mu_);
  [[nodiscard]] uint32_t UncountedFrom(uint32_t from, std::span<Uncounted> out, size_t* count) const
      LARDER_EXCLUDES(mu_);
  void CountInParent(const Uncounted& block, Raised& raised) LARDER_EXCLUDES(mu_);

  // ---- reports

  struct Totals {
    uint64_t named = 0;
    uint64_t doomed = 0;
    uint64_t disk_only = 0;
    ByteCount memory, metadata;
  };
  [[nodiscard]] Totals totals() const LARDER_EXCLUDES(mu_);
  // Writes named entries from slot `from` (1 at first) on until `out` is full.  Returns the slot to
  // continue with, 0 at the end.
  [[nodiscard]] uint32_t Views(uint32_t from, std::span<BlockView> out, size_t* count) const
      LARDER_EXCLUDES(mu_);
  // Likewise the links of blocks that are in a tier.
  [[nodiscard]] uint32_t Links(uint32_t from, std::span<ChainLink> out, size_t* count) const
      LARDER_EXCLUDES(mu_);
  // Adds the shard's blocks to `sums` by variant.  REQUIRES: sums.size() covers every variant.
  void CheckInvariants(std::span<VariantTotals> sums) const LARDER_EXCLUDES(mu_);

 private:
  void SetState(IndexEntry& entry, BlockState to) LARDER_REQUIRES(mu_);
  void ChangeState(uint32_t slot, BlockState to) LARDER_REQUIRES(mu_);
  void HoldOne(uint32_t slot, HoldWhat what, uint32_t now_s, HeldBlock* out) LARDER_REQUIRES(mu_);
  void UnholdOne(uint32_t slot, std::vector<Extent>* freed, std::vector<FreedExtent>* on_disk)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] EnterResult Enter(uint64_t hash, VariantIndex variant, const Digest& digest,
                                  uint32_t* slot) LARDER_REQUIRES(mu_);
  void BecomeHost(uint32_t slot, const Extent& extent,
                  std::unique_ptr<const BlockMetadata> metadata, Raised& raised, uint32_t now_s)
      LARDER_REQUIRES(mu_);
  // REQUIRES: the entry has its location on disk and is on no list.
  void BecomeDisk(uint32_t slot, uint32_t pages, uint64_t parent_hash) LARDER_REQUIRES(mu_);
  // Gives a block that enters the history that is known of it.
  void Remember(IndexEntry& entry, const Raised& raised, uint32_t now_s) LARDER_REQUIRES(mu_);
  // The block leaves the index.
  [[nodiscard]] Departure Leave(uint32_t slot) LARDER_REQUIRES(mu_);
  // The block leaves HOST; a block that is on disk too stays in the index.
  [[nodiscard]] Departure LeaveHost(uint32_t slot) LARDER_REQUIRES(mu_);
  // A block that is on disk alone leaves the index.
  [[nodiscard]] DiskDeparture LeaveDisk(uint32_t slot) LARDER_REQUIRES(mu_);
  // host+disk -> host.
  [[nodiscard]] FreedExtent DropCopy(uint32_t slot) LARDER_REQUIRES(mu_);
  // Moves what HOST has of the block into `gone`; the entry keeps its number of pages.
  void TakeFromHost(uint32_t slot, Departure* gone) LARDER_REQUIRES(mu_);
  [[nodiscard]] std::unique_ptr<const BlockMetadata> TakeMetadata(IndexEntry& entry)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] bool MayLeaveHost(uint32_t slot) const LARDER_REQUIRES(mu_);
  [[nodiscard]] bool MayLeaveDisk(uint32_t slot) const LARDER_REQUIRES(mu_);
  void CheckEntry(uint32_t slot) const LARDER_REQUIRES(mu_);

  VariantTable& variants_;
  EventRing* const events_;
  const uint32_t entries_max_;
  mutable Mutex mu_;
  ShardEntries entries_ LARDER_GUARDED_BY(mu_);
  EvictionLists lists_ LARDER_GUARDED_BY(mu_);
  ChildCounts children_ LARDER_GUARDED_BY(mu_);
  GhostTable ghosts_ LARDER_GUARDED_BY(mu_);
  // Slots between BeginRewrite and FinishRewrite.
  absl::flat_hash_set<uint32_t> rewritten_ LARDER_GUARDED_BY(mu_);
  uint64_t disk_only_ LARDER_GUARDED_BY(mu_) = 0;  // promoting ones included
  uint64_t doomed_ LARDER_GUARDED_BY(mu_) = 0;
  uint64_t metadata_bytes_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder
