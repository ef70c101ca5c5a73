// A sixteenth of a BlockIndex: the entries whose hash begins with its number, their table, their
// recency by class of reuse, their lock.
//
// BlockIndex alone uses it, and documents what the operations mean; here is what differs.  A shard
// does not know of other shards: what concerns a parent (which may lie in any) BlockIndex does
// before or after, never under this lock.
// Ownership: made by BlockIndex; owns metadata.  The VariantTable must outlive it.
// Thread-safety: all methods from any thread.
// Limits: `entries_max`, at most kEntriesMax.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "storage/index/event_ring.h"
#include "storage/index/eviction.h"
#include "storage/index/ghost_table.h"
#include "storage/index/index_entry.h"
#include "storage/index/index_values.h"
#include "storage/index/recency_list.h"
#include "storage/index/slot_table.h"
#include "storage/index/variant_table.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class IndexShard {
 public:
  static constexpr size_t kKeysMax = 1024;       // in a group
  static constexpr uint32_t kEvictionLook = 16;  // coldest of a class that one eviction looks at
  // Beyond those that blocks enter by: a block whose copy in HOST is damaged needs a second entry
  // for its copy on disk, also when the shard is full (DropHostCopy).
  static constexpr uint32_t kSpareEntries = 64;
  static constexpr uint32_t kEntriesMax = EntrySlots::kSlotsMax - kSpareEntries;

  // `events`: hears of all that comes to a tier or leaves one; may be null.
  IndexShard(VariantTable& variants, uint32_t entries_max = kEntriesMax,
             EventRing* events = nullptr);
  ~IndexShard();
  IndexShard(const IndexShard&) = delete;
  IndexShard& operator=(const IndexShard&) = delete;

  // Keys of one call that fall to this shard: keys[order[i]], whose IndexHash is hashes[order[i]].
  // REQUIRES: order.size() <= kKeysMax.
  struct Group {
    VariantIndex variant = VariantIndex::kNone;
    std::span<const Digest> keys;
    std::span<const uint64_t> hashes;
    std::span<const uint16_t> order;
  };
  // Starts the first miss of a later search for this hash.  BlockIndex does so for a whole batch,
  // all shards, before it takes the first lock.
  void Prefetch(uint64_t hash) const LARDER_NO_THREAD_SAFETY_ANALYSIS {
    table_.PrefetchUnlocked(hash);
  }
  // Answers out[order[i]].  Refs of Hold are slots.
  void Lookup(const Group& group, std::span<BlockPresence> out) const LARDER_EXCLUDES(mu_);
  void Hold(const Group& group, HoldWhat what, uint32_t now_s, std::span<HeldBlock> out)
      LARDER_EXCLUDES(mu_);
  // How many of `slots`, from the first, it held; the next one has kClientHoldsMax already.
  [[nodiscard]] size_t HoldAgain(std::span<const uint32_t> slots) LARDER_EXCLUDES(mu_);
  void Unhold(std::span<const uint32_t> slots, std::vector<Extent>* freed,
              std::vector<FreedExtent>* on_disk) LARDER_EXCLUDES(mu_);

  // kBusy, of InsertOnDisk: the name is claimed just now, or in HOST with bytes that nobody has
  // compared, so ask again.
  enum class EnterResult { kEntered, kDuplicate, kFull, kBusy };
  // What a block that enters has from its parent (RaiseChildren).  Whoever it enters by takes the
  // count, and leaves instead that of the parent that counted it until now: what is in there
  // afterwards, whether it entered or not, is to be lowered again (LowerChildren).
  struct Raised {
    std::optional<uint64_t> counted_by;  // hash of the parent whose `children` counts it
    ReuseHistory history;                // the parent's, where this alone follows it; else nothing
    bool forked = false;  // another has followed the parent, which is not known to be shared
  };
  // absent -> host.  Takes block.metadata on kEntered only.  kDuplicate: the name is taken, in
  // whatever state.
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
  void Fill(uint32_t slot, const Extent& extent, std::unique_ptr<const BlockMetadata> metadata,
            Raised& raised, uint32_t now_s) LARDER_EXCLUDES(mu_);
  void Abandon(uint32_t slot) LARDER_EXCLUDES(mu_);

  // absent -> disk, or host -> host+disk of slot `same` (kNone: of none), whose bytes are those of
  // the record.  REQUIRES: the caller holds it.
  [[nodiscard]] EnterResult InsertOnDisk(uint64_t hash, const BlockOnDisk& block, uint32_t same,
                                         Raised& raised, uint32_t now_s, uint32_t* slot)
      LARDER_EXCLUDES(mu_);
  // host -> host+disk of a held entry, or host+disk elsewhere; where it was until now (0: nowhere).
  // nullopt: it has left meanwhile.
  [[nodiscard]] std::optional<uint64_t> SetOnDisk(uint32_t slot, uint64_t location)
      LARDER_EXCLUDES(mu_);
  // As BlockIndex says of them.  Between the two DropHostCopy leaves the entry alone.
  [[nodiscard]] bool BeginRewrite(uint32_t slot, uint64_t location) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool FinishRewrite(uint32_t slot, uint64_t location) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool ReplaceInHost(uint32_t slot, const Extent& extent,
                                   std::unique_ptr<const BlockMetadata>* metadata)
      LARDER_EXCLUDES(mu_);
  // A block of any tier that no parent counts.
  struct Uncounted {
    uint32_t slot = 0;
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    uint64_t parent = 0;  // its hash
  };
  // Those from slot `from` (1 at first) on, until `out` is full; where to go on, 0 at the end.
  [[nodiscard]] uint32_t UncountedFrom(uint32_t from, std::span<Uncounted> out, size_t* count) const
      LARDER_EXCLUDES(mu_);
  // Counted from now on, if it is that block still, as one that enters.
  void CountInParent(const Uncounted& block, Raised& raised) LARDER_EXCLUDES(mu_);
  // disk -> promoting of a held entry; false: it is not on disk alone, or somebody promotes it.
  [[nodiscard]] bool BeginPromote(uint32_t slot) LARDER_EXCLUDES(mu_);
  // promoting -> host+disk; false: it has left meanwhile.  The entry stays held.
  [[nodiscard]] bool FinishPromote(uint32_t slot, const Extent& extent,
                                   std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                                   uint32_t now_s) LARDER_EXCLUDES(mu_);
  // promoting -> disk
  void FailPromote(uint32_t slot) LARDER_EXCLUDES(mu_);
  // REQUIRES: held.
  [[nodiscard]] HeldBlock LookAt(uint32_t slot) const LARDER_EXCLUDES(mu_);

  // What left HOST, or the index.
  struct Departure {
    EvictedBlock block;
    bool doomed = false;                 // held: extent and metadata follow with the last Unhold
    std::optional<uint64_t> counted_by;  // hash of the parent whose `children` counts it still
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
    FreedExtent on_disk;            // of the copy that went alone
  };
  // As BlockIndex::Clear says.
  [[nodiscard]] Clearance Clear(uint64_t hash, VariantIndex variant, const Digest& digest,
                                TierSet tiers, ClearHow how) LARDER_EXCLUDES(mu_);
  // Of the kEvictionLook coldest of each class.  Parents that it passes over go to the hot end,
  // lest they hide the rest for ever; LowerChildren brings them back.  A parent that is on disk too
  // goes where it met no other: it stays in the index, so its children keep their prefix.
  [[nodiscard]] std::optional<Departure> EvictColdest(const EvictionPolicy& policy,
                                                      bool parents_too, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<Departure> Evict(uint32_t slot) LARDER_EXCLUDES(mu_);
  // Of a byte there, as EvictionPolicy has it; nullopt: it is held, pinned, or not there.
  [[nodiscard]] std::optional<double> WorthInHost(uint32_t slot, const EvictionPolicy& policy,
                                                  uint32_t now_s) const LARDER_EXCLUDES(mu_);
  // Of HOST, that evictions may take; some of it may be held, untouched.  Takes no lock.
  [[nodiscard]] uint64_t evictable_pages() const {
    return listed_pages_.load(std::memory_order_relaxed);
  }

  // What an eviction may take.
  struct Candidate {
    static constexpr double kNothing = std::numeric_limits<double>::infinity();
    uint32_t slot = EntrySlots::kNone;
    double worth = kNothing;
    uint32_t among = 0;  // so many of its history and more recent
    // Of equals, such as all that were published within a second, one of many: whoever has few of
    // them would lose the newest.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.worth < b.worth || (a.worth == b.worth && a.among > b.among);
    }
  };
  // What EvictColdest (without parents), or EvictColdestFromDisk, would take.
  [[nodiscard]] Candidate Least(const EvictionPolicy& policy, uint32_t now_s) LARDER_EXCLUDES(mu_);
  [[nodiscard]] Candidate LeastOnDisk(const EvictionPolicy& policy, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  struct DiskDeparture {
    EvictedFromDisk block;
    std::optional<uint64_t> counted_by;  // as in Departure; it may be in HOST still
    uint32_t last_use_s = 0;
  };
  // As EvictColdest, of those on disk alone.
  [[nodiscard]] std::optional<DiskDeparture> EvictColdestFromDisk(const EvictionPolicy& policy,
                                                                  bool parents_too, uint32_t now_s)
      LARDER_EXCLUDES(mu_);
  // What pins keep, or will when it is where they want it; without the lock.
  struct PinnedPages {
    // Of pins of HOST, and of DISK as long as a block is in HOST alone.
    std::atomic<uint64_t> host{0};
    std::atomic<uint64_t> disk{0};  // of pins of DISK
  };
  [[nodiscard]] const PinnedPages& pinned_pages() const { return pinned_pages_; }

  // host+disk -> host, of the least worthy.
  [[nodiscard]] std::optional<EvictedFromDisk> DropDiskCopy(const EvictionPolicy& policy,
                                                            uint32_t now_s) LARDER_EXCLUDES(mu_);
  // Some block in HOST is on disk too, and may leave.  Without the lock: a hint.
  [[nodiscard]] bool has_copies() const { return copies_.load(std::memory_order_relaxed) > 0; }
  // This one's disk copy, whichever of the two it takes; neither held nor pinned.
  [[nodiscard]] std::optional<DiskDeparture> EvictFromDisk(uint32_t slot) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<double> WorthOnDisk(uint32_t slot, const EvictionPolicy& policy,
                                                  uint32_t now_s) const LARDER_EXCLUDES(mu_);

  [[nodiscard]] bool SetPinned(uint64_t hash, VariantIndex variant, const Digest& digest, Tier tier,
                               bool pinned) LARDER_EXCLUDES(mu_);

  // Parents are known by variant and hash.  Two of one hash, which a client may make up, mix up
  // what is a hint in any case.
  // Not counted: it is not there.
  [[nodiscard]] Raised RaiseChildren(VariantIndex variant, uint64_t parent, const Digest& child)
      LARDER_EXCLUDES(mu_);
  // The hash of its own parent, if that is to be marked too; nullopt: unknown, or it was marked
  // already.
  [[nodiscard]] std::optional<uint64_t> MarkShared(VariantIndex variant, uint64_t parent)
      LARDER_EXCLUDES(mu_);
  // A parent whose last child has left, and which was used no later than that child, is next to
  // leave.  nullopt: the child never entered, or did not leave for its worth.
  void LowerChildren(VariantIndex variant, uint64_t parent,
                     std::optional<uint32_t> child_last_use_s) LARDER_EXCLUDES(mu_);

  struct Totals {
    uint64_t named = 0;
    uint64_t doomed = 0;
    uint64_t disk_only = 0;
    ByteCount memory, metadata;
  };
  [[nodiscard]] Totals totals() const LARDER_EXCLUDES(mu_);

  // Writes named entries from slot `from` (1 at first) on until `out` is full; where to go on, 0 at
  // the end.
  [[nodiscard]] uint32_t Views(uint32_t from, std::span<BlockView> out, size_t* count) const
      LARDER_EXCLUDES(mu_);

  // Likewise the links of blocks that are in a tier.
  [[nodiscard]] uint32_t Links(uint32_t from, std::span<ChainLink> out, size_t* count) const
      LARDER_EXCLUDES(mu_);

  // Adds the shard's blocks to `sums` by variant.  REQUIRES: sums.size() covers every variant.
  void CheckInvariants(std::span<VariantTotals> sums) const LARDER_EXCLUDES(mu_);

 private:
  [[nodiscard]] static uint64_t HashOf(const IndexEntry& entry) {
    return IndexHash(entry.variant, entry.digest);
  }
  [[nodiscard]] static bool Is(const IndexEntry& entry, VariantIndex variant,
                               const Digest& digest) {
    return entry.digest == digest && entry.variant == variant;
  }
  void SetState(IndexEntry& entry, BlockState to) LARDER_REQUIRES(mu_);
  // A listed entry may be held, untouched.
  [[nodiscard]] static bool MayLeave(const IndexEntry& entry) {
    return entry.listed && entry.holds == 0;
  }
  // No eviction takes it from the tier that its list is of.
  [[nodiscard]] static bool PinnedHere(const IndexEntry& entry) {
    return entry.pinned_host || (entry.pinned_disk && entry.state != BlockState::kHostDisk);
  }

  [[nodiscard]] uint32_t Find(uint64_t hash, VariantIndex variant, const Digest& digest) const
      LARDER_REQUIRES(mu_);
  // Not what is claimed only.
  [[nodiscard]] uint32_t FindParent(VariantIndex variant, uint64_t hash) const LARDER_REQUIRES(mu_);
  [[nodiscard]] static std::optional<uint64_t> ParentHash(const IndexEntry& entry);
  [[nodiscard]] static std::optional<uint64_t> CountedBy(const IndexEntry& entry) {
    return entry.counted_in_parent ? ParentHash(entry) : std::nullopt;
  }
  // Find of a whole group, whose cells were prefetched, in waves of misses on the entries.
  // slots[i] belongs to order[i].
  void FindAll(const Group& group, std::span<uint32_t> slots) const LARDER_REQUIRES(mu_);
  [[nodiscard]] bool InUse(uint32_t slot) const LARDER_REQUIRES(mu_);
  [[nodiscard]] bool EvictableLocked(uint32_t slot) const LARDER_REQUIRES(mu_);
  [[nodiscard]] bool EvictableFromDiskLocked(uint32_t slot) const LARDER_REQUIRES(mu_);
  [[nodiscard]] EnterResult Enter(uint64_t hash, VariantIndex variant, const Digest& digest,
                                  uint32_t* slot) LARDER_REQUIRES(mu_);
  // kNone: no entry is left, the spare ones included.  REQUIRES: no entry has the name.
  [[nodiscard]] uint32_t AddNamed(uint64_t hash, VariantIndex variant, const Digest& digest)
      LARDER_REQUIRES(mu_);
  void BecomeHost(uint32_t slot, const Extent& extent,
                  std::unique_ptr<const BlockMetadata> metadata, Raised& raised, uint32_t now_s)
      LARDER_REQUIRES(mu_);
  // An entry that has its location, and what is remembered of it.
  void BecomeDisk(uint32_t slot, uint32_t pages, uint64_t parent_hash) LARDER_REQUIRES(mu_);
  // What is known of a block that enters the index.
  void Remember(IndexEntry& entry, const Raised& raised, uint32_t now_s) LARDER_REQUIRES(mu_);
  // It leaves the index.
  void Forget(const IndexEntry& entry) LARDER_REQUIRES(mu_);
  void HoldOne(uint32_t slot, HoldWhat what, uint32_t now_s, HeldBlock* out) LARDER_REQUIRES(mu_);
  void UnholdOne(uint32_t slot, std::vector<Extent>* freed, std::vector<FreedExtent>* on_disk)
      LARDER_REQUIRES(mu_);
  using Lists = std::array<RecencyList, kReuseClasses>;
  // The list of an entry that may leave the tier that its state names; nullptr: of none.
  [[nodiscard]] RecencyList* ListFor(const IndexEntry& entry) LARDER_REQUIRES(mu_);
  // Of a tier that has lists; a listed entry comes to the hot end of its new one.
  void ChangeState(uint32_t slot, BlockState to) LARDER_REQUIRES(mu_);
  // Lists or unlists an entry as its holds, pins and state say.
  void Relist(uint32_t slot) LARDER_REQUIRES(mu_);
  void List(uint32_t slot) LARDER_REQUIRES(mu_);
  void Unlist(uint32_t slot) LARDER_REQUIRES(mu_);
  // Written under the lock alone, so it need not be one step.
  void CountCopies(int32_t more) LARDER_REQUIRES(mu_) {
    copies_.store(copies_.load(std::memory_order_relaxed) + static_cast<uint32_t>(more),
                  std::memory_order_relaxed);
  }
  [[nodiscard]] static ClearedBlock WhatClearTakes(const IndexEntry& entry, TierSet tiers,
                                                   ClearHow how);
  void Unname(uint32_t slot) LARDER_REQUIRES(mu_);
  [[nodiscard]] Departure Leave(uint32_t slot) LARDER_REQUIRES(mu_);
  // By eviction: what has a disk copy stays in the index.
  [[nodiscard]] Departure LeaveHost(uint32_t slot) LARDER_REQUIRES(mu_);
  void CountListed(uint32_t pages, bool more) LARDER_REQUIRES(mu_) {
    const uint64_t before = listed_pages_.load(std::memory_order_relaxed);
    listed_pages_.store(more ? before + pages : before - pages, std::memory_order_relaxed);
  }
  // Of one on disk alone.
  [[nodiscard]] DiskDeparture LeaveDisk(uint32_t slot) LARDER_REQUIRES(mu_);
  // host+disk -> host of one that is listed.
  [[nodiscard]] FreedExtent DropCopy(uint32_t slot) LARDER_REQUIRES(mu_);
  // Of a block in HOST, as it comes back from disk: what was encoded here comes back decoded.
  [[nodiscard]] static uint32_t PagesFromDisk(const IndexEntry& entry);
  // Takes out of HOST what is kept for it there; the entry keeps its pages' number.
  void TakeFromHost(uint32_t slot, Departure* gone) LARDER_REQUIRES(mu_);
  // The least worthy of what `choose(list)` answers for each class; the first of equals.
  template <class Choose>
  [[nodiscard]] Candidate LeastWorthy(Lists& lists, const EvictionPolicy& policy, uint32_t now_s,
                                      Choose choose) LARDER_REQUIRES(mu_);
  [[nodiscard]] Candidate LeastWorthyOfCopied(const EvictionPolicy& policy, uint32_t now_s)
      LARDER_REQUIRES(mu_);
  // Of both.
  [[nodiscard]] Candidate LeastWorthyOfAll(const EvictionPolicy& policy, bool parents_too,
                                           uint32_t now_s) LARDER_REQUIRES(mu_);
  [[nodiscard]] Candidate LeastWorthyOf(Lists& lists, const EvictionPolicy& policy,
                                        bool parents_too, uint32_t now_s) LARDER_REQUIRES(mu_);
  // The coldest that may leave, and is no parent unless they count too; what is before it goes to
  // the hot end.  kNone: not one of kEvictionLook.
  [[nodiscard]] uint32_t Coldest(RecencyList& list, bool parents_too) LARDER_REQUIRES(mu_);
  // The coldest whose copy on disk is not pinned; what is before it goes to the hot end.  kNone: as
  // above.
  [[nodiscard]] uint32_t ColdestUnpinnedCopy(RecencyList& list) LARDER_REQUIRES(mu_);
  // The first leaf of the kEvictionLook coldest that may leave, or else the coldest of these.
  [[nodiscard]] uint32_t ColdestOfCopied(const RecencyList& list) const LARDER_REQUIRES(mu_);
  [[nodiscard]] std::unique_ptr<const BlockMetadata> TakeMetadata(IndexEntry& entry)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] static double WorthOf(const IndexEntry& entry, const EvictionPolicy& policy,
                                      uint32_t now_s);
  // Around each change of what decides: 1 after it, -1 before.
  void CountPinned(const IndexEntry& entry, int64_t more) LARDER_REQUIRES(mu_);
  [[nodiscard]] static bool TakesHostForPins(const IndexEntry& entry) {
    return InATier(entry.state) &&
           (entry.pinned_host || (entry.pinned_disk && entry.state == BlockState::kHost));
  }
  void CheckEntry(uint32_t slot) const LARDER_REQUIRES(mu_);

  VariantTable& variants_;
  EventRing* const events_;
  const uint32_t entries_max_;
  mutable Mutex mu_;
  EntrySlots entries_ LARDER_GUARDED_BY(mu_);
  // Slots between BeginRewrite and FinishRewrite.
  absl::flat_hash_set<uint32_t> rewritten_ LARDER_GUARDED_BY(mu_);
  SlotTable table_ LARDER_GUARDED_BY(mu_);
  // By class: what is in HOST alone, on disk too, on disk alone.
  Lists host_lists_ LARDER_GUARDED_BY(mu_);
  Lists copied_lists_ LARDER_GUARDED_BY(mu_);
  Lists disk_lists_ LARDER_GUARDED_BY(mu_);
  GhostTable departed_ LARDER_GUARDED_BY(mu_);
  std::atomic<uint32_t> copies_{0};                // listed in copied_lists_
  std::atomic<uint64_t> listed_pages_{0};          // of what is listed and in HOST
  uint64_t disk_only_ LARDER_GUARDED_BY(mu_) = 0;  // promoting ones included
  uint64_t doomed_ LARDER_GUARDED_BY(mu_) = 0;
  uint64_t metadata_bytes_ LARDER_GUARDED_BY(mu_) = 0;
  PinnedPages pinned_pages_;  // written under the lock alone
};

template <class Choose>
IndexShard::Candidate IndexShard::LeastWorthy(Lists& lists, const EvictionPolicy& policy,
                                              uint32_t now_s, Choose choose) {
  Candidate least;
  for (RecencyList& list : lists) {
    const uint32_t slot = choose(list);
    if (slot == EntrySlots::kNone) continue;
    const Candidate here = {slot, WorthOf(entries_[slot], policy, now_s), list.size()};
    if (here < least) least = here;
  }
  return least;
}

}  // namespace larder
