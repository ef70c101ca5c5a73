// A sixteenth of a BlockIndex: the entries whose hash begins with the shard's number, and the lock
// that guards them.
//
// A part of BlockIndex, whose comments say what the operations mean; the comments in this file only
// add to them.  A shard moves entries from state to state (block_state.h), and keeps four parts
// under the same lock: ShardEntries finds entries by name, EvictionLists has the order in which
// entries may be evicted, ChildCounts counts the blocks that continue each block, GhostTable has
// the ghost entries of blocks that left.
// A change of an entry's tiers, pages or pins keeps the invariants of EvictionLists.  An entry that
// leaves the index loses its name; its slot is freed once it has no hold.
// Ownership: made by BlockIndex; owns the blocks' metadata.  The VariantTable and the EventRing
// must outlive it.
// Thread-safety: all methods from any thread.
// Locks: under `mu_` a shard takes no lock except EventRing's, which is a leaf.
// Limits: `entries_max` entries, at most kEntriesMax, and kSpareEntries more.
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
  // Entries in addition to `entries_max`, for DropHostCopy only: if a block's copy in HOST is
  // damaged, its copy on disk needs a second entry even if the shard is full.
  static constexpr uint32_t kSpareEntries = 64;
  static constexpr uint32_t kEntriesMax = EntrySlots::kSlotsMax - kSpareEntries;

  using Group = ShardEntries::Group;
  using Raised = ChildCounts::Raised;
  using Uncounted = ChildCounts::Uncounted;
  using Candidate = EvictionLists::Candidate;
  using PinnedPages = EvictionLists::PinnedPages;

  // `events`, if not null, gets an event for each block that enters or leaves a tier.
  IndexShard(VariantTable& variants, uint32_t entries_max = kEntriesMax,
             EventRing* events = nullptr);
  ~IndexShard();
  IndexShard(const IndexShard&) = delete;
  IndexShard& operator=(const IndexShard&) = delete;

  // ---- finding and holding

  // Takes no lock, so that BlockIndex can prefetch keys of several shards before it locks one.
  void Prefetch(uint64_t hash) const LARDER_NO_THREAD_SAFETY_ANALYSIS { entries_.Prefetch(hash); }
  // Lookup and Hold set out[k] for each k in group.order.  The refs that Hold returns are slots of
  // this shard, which BlockIndex converts.
  void Lookup(const Group& group, std::span<BlockPresence> out) const LARDER_EXCLUDES(mu_);
  void Hold(const Group& group, HoldWhat what, uint32_t now_s, std::span<HeldBlock> out)
      LARDER_EXCLUDES(mu_);
  // Adds holds in order.  Returns slots.size(), or the index of the first slot that already has
  // kClientHoldsMax holds; that slot and the slots after it get no hold.  REQUIRES: the caller
  // holds each slot (CHECKed as far as that is detectable).
  [[nodiscard]] size_t HoldAgain(std::span<const uint32_t> slots) LARDER_EXCLUDES(mu_);
  void Unhold(std::span<const uint32_t> slots, std::vector<Extent>* freed,
              std::vector<FreedExtent>* on_disk) LARDER_EXCLUDES(mu_);
  // REQUIRES: the caller holds the entry.
  [[nodiscard]] HeldBlock LookAt(uint32_t slot) const LARDER_EXCLUDES(mu_);

  // ---- entering

  // Only InsertOnDisk returns kBusy: a writer has claimed the name, or the block is in HOST only
  // and is not the caller's `same`; the caller should try again.
  enum class EnterResult { kEntered, kDuplicate, kFull, kBusy };
  // absent -> host.  Moves block.metadata into the entry only on kEntered.  Returns kDuplicate if
  // there is an entry of this name, even a claimed one.
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
  // absent -> disk; or host -> host+disk, if the block's slot is `same`: the caller has found the
  // bytes of `same` to be those of the record.  REQUIRES: the caller holds `same`, or `same` is
  // kNone.
  [[nodiscard]] EnterResult InsertOnDisk(uint64_t hash, const BlockOnDisk& block, uint32_t same,
                                         Raised& raised, uint32_t now_s, uint32_t* slot)
      LARDER_EXCLUDES(mu_);

  // ---- moving between the tiers; the caller holds each of these entries

  // host -> host+disk, or a new location for an entry in host+disk.  Returns the former location
  // (0: the block was not on disk), or nullopt if the entry has left HOST meanwhile.
  [[nodiscard]] std::optional<uint64_t> SetOnDisk(uint32_t slot, uint64_t location)
      LARDER_EXCLUDES(mu_);
  // BeginRewrite and FinishRewrite enclose a rewrite of an entry's disk copy; ReplaceInHost changes
  // an entry's extent and metadata in HOST.  BlockIndex says when they return false.  From
  // BeginRewrite to FinishRewrite, DropHostCopy does not change the entry.
  [[nodiscard]] bool BeginRewrite(uint32_t slot, uint64_t location) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool FinishRewrite(uint32_t slot, uint64_t location) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool ReplaceInHost(uint32_t slot, const Extent& extent,
                                   std::unique_ptr<const BlockMetadata>* metadata)
      LARDER_EXCLUDES(mu_);
  // disk -> promoting.  Returns false if the block is not on disk only, or is being promoted or
  // rewritten.
  [[nodiscard]] bool BeginPromote(uint32_t slot) LARDER_EXCLUDES(mu_);
  // promoting -> host+disk; the caller's hold remains.  Returns false if the block was dropped
  // meanwhile.
  [[nodiscard]] bool FinishPromote(uint32_t slot, const Extent& extent,
                                   std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                                   uint32_t now_s) LARDER_EXCLUDES(mu_);
  // promoting -> disk
  void FailPromote(uint32_t slot) LARDER_EXCLUDES(mu_);

  // ---- leaving

  // A block that has left HOST or the index.
  struct Departure {
    EvictedBlock block;
    bool doomed = false;                 // still held: the last Unhold returns what it has
    std::optional<uint64_t> counted_by;  // hash of the parent whose `children` still counts it
  };
  [[nodiscard]] std::optional<Departure> Drop(uint64_t hash, VariantIndex variant,
                                              const Digest& digest) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<Departure> Drop(uint32_t slot) LARDER_EXCLUDES(mu_);
  // Removes a held block from HOST because its bytes there are wrong (BlockIndex::DropHostCopy).
  [[nodiscard]] std::optional<Departure> DropHostCopy(uint32_t slot) LARDER_EXCLUDES(mu_);
  struct Clearance {
    ClearedBlock block;
    uint32_t held = 0;              // the slot of the hold that BlockIndex puts into block.held
    std::optional<Departure> gone;  // set if the block left HOST or the index
    FreedExtent on_disk;            // set if only the disk copy was removed
  };
  // Removes the block from `tiers`, as `how` says (BlockIndex::Clear).
  [[nodiscard]] Clearance Clear(uint64_t hash, VariantIndex variant, const Digest& digest,
                                TierSet tiers, ClearHow how) LARDER_EXCLUDES(mu_);

  // A block that has left the disk tier; it may still be in HOST.
  struct DiskDeparture {
    EvictedFromDisk block;
    // Hash of the parent whose `children` still counts the block, for the caller to lower, if any.
    std::optional<uint64_t> counted_by;
    uint32_t last_use_s = 0;
  };
  // Least returns a candidate for EvictColdest with `parents_too` false, LeastOnDisk one for
  // EvictColdestFromDisk.  Both return a Candidate without slot if they find none.
  [[nodiscard]] Candidate Least(const EvictionPolicy& policy, uint32_t now_s) LARDER_EXCLUDES(mu_);
  [[nodiscard]] Candidate LeastOnDisk(const EvictionPolicy& policy, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  // EvictColdest removes from HOST the entry that EvictionLists::LeastInHost chooses,
  // EvictColdestFromDisk from the index the one that LeastOnDiskAlone chooses.  Both return nullopt
  // if there is none.
  [[nodiscard]] std::optional<Departure> EvictColdest(const EvictionPolicy& policy,
                                                      bool parents_too, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<DiskDeparture> EvictColdestFromDisk(const EvictionPolicy& policy,
                                                                  bool parents_too, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  // host+disk -> host, for the entry that EvictionLists::LeastCopied chooses.  Returns nullopt if
  // there is none.
  [[nodiscard]] std::optional<EvictedFromDisk> DropDiskCopy(const EvictionPolicy& policy,
                                                            uint32_t now_s) LARDER_EXCLUDES(mu_);
  // Evict removes this block from HOST; EvictFromDisk removes its copy on disk, whether or not the
  // block is also in HOST.  Both return nullopt if the block is not in that tier or is held, or if
  // a pin keeps it there.
  [[nodiscard]] std::optional<Departure> Evict(uint32_t slot) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<DiskDeparture> EvictFromDisk(uint32_t slot) LARDER_EXCLUDES(mu_);
  // WorthInHost and WorthOnDisk return the block's worth in that tier, per byte (EvictionPolicy),
  // or nullopt if Evict, or EvictFromDisk, would not evict it now.
  [[nodiscard]] std::optional<double> WorthInHost(uint32_t slot, const EvictionPolicy& policy,
                                                  uint32_t now_s) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<double> WorthOnDisk(uint32_t slot, const EvictionPolicy& policy,
                                                  uint32_t now_s) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool SetPinned(uint64_t hash, VariantIndex variant, const Digest& digest, Tier tier,
                               bool pinned) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool IsPinned(uint64_t hash, VariantIndex variant, const Digest& digest,
                              Tier tier) const LARDER_EXCLUDES(mu_);
  // evictable_pages, has_copies and pinned_pages take no lock (EvictionLists).
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
  // Looks at up to out.size() slots from slot `from` (1 at first) on.  Writes named entries among
  // them to `out`, their number to *count.  Returns the slot to continue with, 0 at the end.
  [[nodiscard]] uint32_t Views(uint32_t from, std::span<BlockView> out, size_t* count) const
      LARDER_EXCLUDES(mu_);
  // As Views, but writes the ChainLinks of blocks that are in a tier.
  [[nodiscard]] uint32_t Links(uint32_t from, std::span<ChainLink> out, size_t* count) const
      LARDER_EXCLUDES(mu_);
  // Checks the shard, and adds each of its blocks to the element of `sums` for the block's variant.
  // REQUIRES: sums.size() covers every variant.
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
  // Sets the history of a block that enters: raised.history, or one from its ghost entry.
  void Remember(IndexEntry& entry, const Raised& raised, uint32_t now_s) LARDER_REQUIRES(mu_);
  // Removes the block from the index.  If it is held, its entry becomes doomed.
  [[nodiscard]] Departure Leave(uint32_t slot) LARDER_REQUIRES(mu_);
  // Removes the block from HOST; if it is also on disk, it stays in the index.
  [[nodiscard]] Departure LeaveHost(uint32_t slot) LARDER_REQUIRES(mu_);
  // Removes a block that is on disk alone from the index.
  [[nodiscard]] DiskDeparture LeaveDisk(uint32_t slot) LARDER_REQUIRES(mu_);
  // host+disk -> host.
  [[nodiscard]] FreedExtent DropCopy(uint32_t slot) LARDER_REQUIRES(mu_);
  // Copies the block's extent in HOST to `gone`, and subtracts the block from its variant's totals.
  // The entry keeps the extent.
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
  // Slots between a BeginRewrite that succeeded and its FinishRewrite.
  absl::flat_hash_set<uint32_t> rewritten_ LARDER_GUARDED_BY(mu_);
  uint64_t disk_only_ LARDER_GUARDED_BY(mu_) = 0;  // promoting ones included
  uint64_t doomed_ LARDER_GUARDED_BY(mu_) = 0;
  uint64_t metadata_bytes_ LARDER_GUARDED_BY(mu_) = 0;
};

}  // namespace larder
