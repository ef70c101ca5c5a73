// Which blocks there are, where, and in which order they would leave.  One index per tenant.
//
// An entry is one cache line (64 B): digest, variant (interned), state, extent, disk location,
// holds, pins, children, recency links, recency, frequency, metadata.  Entries live in shards by
// digest, each with an open-addressing table of {tag, slot}; a batch is grouped by shard and
// prefetched, so that 500 keys cost a few waves of cache misses and not 1,000 misses one after the
// other.
//
// Does not do I/O, has no threads and no clock (`now_s` comes in), does not touch payload bytes,
// and does not free extents: whatever gives one up hands it to the caller.
// Ownership: made by BlockStore.  Owns the metadata of its blocks.
// Thread-safety: all methods from any thread; a lock per shard, never two at once.  So what several
// keys of one call answer is not one instant's truth; each key's answer is.
// Limits: 16.7 M entries a shard (268 M in all), 65,534 variants, 65,535 children an entry, and
// holds as index_values.h says.
// Memory: 64 B an entry, 4.6 to 9.1 B of table, at most an eighth of unused entries; 10 M blocks:
// 74 B each.  It does not shrink: what eviction frees is used again.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "storage/index/block_metadata.h"
#include "storage/index/block_state.h"
#include "storage/index/event_ring.h"
#include "storage/index/eviction.h"
#include "storage/index/index_shard.h"
#include "storage/index/index_values.h"
#include "storage/index/variant_table.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

class BlockIndex {
  static constexpr uint32_t kShards = 16;
  static constexpr uint32_t kShardBits = 4;

 public:
  // Keeps so many of the latest events.
  explicit BlockIndex(size_t events_max = 0);
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // ---- variants
  // ResourceExhausted when there are too many.
  [[nodiscard]] absl::StatusOr<VariantIndex> InternVariant(const Digest& variant_id);
  [[nodiscard]] std::optional<VariantIndex> FindVariant(const Digest& variant_id) const;
  [[nodiscard]] Digest VariantId(VariantIndex variant) const;
  using VariantTotals = larder::VariantTotals;
  // Blocks in HOST and the bytes of their extents.
  [[nodiscard]] VariantTotals TotalsOf(VariantIndex variant) const;
  // Those of which there are blocks in HOST or on DISK, ascending.
  [[nodiscard]] std::vector<VariantIndex> StoredVariants() const;

  // ---- entering
  using NewBlock = IndexedBlock;
  enum class InsertResult { kInserted, kDuplicate, kFull, kBusy };  // kBusy: InsertOnDisk alone
  // absent -> host.  The first writer of a name wins: kDuplicate for one that is taken, also where
  // the block is on disk alone, being read from there, or claimed.  On kDuplicate and kFull the
  // extent stays the caller's.  REQUIRES: the variant is interned.
  [[nodiscard]] InsertResult Insert(NewBlock block, uint32_t now_s, EntryRef* ref = nullptr);
  // absent -> reserved; then exactly one of Fill (reserved -> host) or Abandon (reserved ->
  // absent).  Nothing else ends a claim: Drop does not see it.
  [[nodiscard]] InsertResult Claim(VariantIndex variant, const Digest& digest, EntryRef* ref);
  void Fill(EntryRef claimed, Extent extent, std::unique_ptr<const BlockMetadata> metadata,
            uint32_t now_s);
  void Abandon(EntryRef claimed);

  // ---- reading
  using Held = HeldBlock;
  // Holds every key that is in HOST (host or host+disk), touches it, answers in key order.  A held
  // entry keeps its extent and metadata until Unhold. REQUIRES: out.size() == digests.size().
  // Of HoldWhat::kAnyTier also what is on disk alone, or under way from there: it keeps its place
  // on disk until Unhold.
  void Hold(VariantIndex variant, std::span<const Digest> digests, uint32_t now_s,
            std::span<Held> out, HoldWhat what = HoldWhat::kHost);
  // One more hold on entries that the caller already holds, on behalf of a client.
  // False: one of them has kClientHoldsMax already, and none was held again.
  [[nodiscard]] bool HoldAgain(std::span<const EntryRef> refs);
  // Ends holds.  Extents of doomed entries whose last hold this was are appended to `freed`.
  // Recency: earlier refs count as more recent, so that tails leave first.  REQUIRES: each ref is
  // held (CHECKed as far as it can be seen).
  // `rooms` likewise has what they leave on disk; may be null where nothing is put there.
  void Unhold(std::span<const EntryRef> refs, std::vector<Extent>* freed,
              std::vector<FreedExtent>* on_disk = nullptr);

  // Presence without holding, in key order; does not touch recency.
  // REQUIRES: spans of equal size.
  using Presence = BlockPresence;
  void Lookup(VariantIndex variant, std::span<const Digest> digests, std::span<Presence> out) const;

  // ---- leaving
  // Takes the name away at once.  The extent (and `room`, the place on disk) is handed out when
  // nothing holds it; else it follows with the last Unhold.  False: no such name.
  bool Drop(VariantIndex variant, const Digest& digest, std::optional<Extent>* freed,
            FreedExtent* on_disk = nullptr);
  // As Drop, by a held or owner-word reference; false when its slot is empty or nameless.
  bool Drop(EntryRef ref, std::optional<Extent>* freed, FreedExtent* on_disk = nullptr);
  // As Drop, of a held block in HOST whose bytes are wrong there.  Of one that is on disk too the
  // name stays with that copy, in an entry that nobody holds; who holds `held` has neither any
  // more.  The owner word of the copy is the old one until the block is promoted.  False: it has
  // left HOST, or a rewrite of its copy on disk has begun and not finished: a later check finds the
  // damage again.
  bool DropHostCopy(EntryRef held, std::optional<Extent>* freed, FreedExtent* on_disk);
  // Takes a block from these tiers, and from the index where it is in no other: then as Drop, also
  // while it is held.  Not while it is pinned, or held in a tier that it is to leave for another.
  [[nodiscard]] ClearedBlock Clear(VariantIndex variant, const Digest& digest, TierSet tiers,
                                   ClearHow how, std::optional<Extent>* freed,
                                   FreedExtent* on_disk);
  // What eviction took: the block is gone from HOST, and from the index unless it is on disk.
  using Evicted = EvictedBlock;
  // The least worthy (EvictionPolicy) of the coldest evictable blocks of every class in two shards,
  // in turn over all, and in a third where neither has any that is on disk too: never held or
  // pinned.  A child leaves the index before its parent; of those that stay in it a parent goes
  // only where a look at its class met no other, and one that is in HOST alone only when that is so
  // in every shard.
  // nullopt: nothing is evictable.
  [[nodiscard]] std::optional<Evicted> EvictOne(uint32_t now_s);
  // Evicts exactly this entry if it is evictable (children do not protect here: the caller needs
  // its place).  A stale ref may have met a newer block: then Evicted::extent is another than the
  // caller knew.
  [[nodiscard]] std::optional<Evicted> EvictRef(EntryRef ref);
  // What a byte of it is worth in HOST (EvictionPolicy); nullopt: held, pinned or not there.
  [[nodiscard]] std::optional<double> WorthInHost(EntryRef ref, uint32_t now_s) const;
  // Of HOST, that evictions may take now; a little more where some is held for a moment.  Cheap.
  [[nodiscard]] uint64_t evictable_pages() const;
  // What an eviction took a moment ago is in HOST again, in the extent that it had, as the most
  // recent of its class.  False: its name was taken or has gone meanwhile; the extent is the
  // caller's.  *held, where it is not {}, is the caller's to unhold.
  [[nodiscard]] bool PutBack(Evicted gone, EntryRef* ref, EntryRef* held);

  // ---- disk (where, in the words of the tier; 0 is nowhere)
  // absent -> disk, as found at a start; or host -> host+disk of `same`, where it was published
  // meanwhile and the caller has seen that its bytes are the record's.  kBusy: it is claimed now,
  // or in HOST with bytes that are not known to be those; ask again.  REQUIRES: the variant is
  // interned, location != 0; `same` is held, or {}.
  using BlockOnDisk = larder::BlockOnDisk;
  [[nodiscard]] InsertResult InsertOnDisk(const BlockOnDisk& block, EntryRef same, uint32_t now_s,
                                          EntryRef* ref);
  // A start may find blocks, or hear of new ones, before their parents: counts those by their
  // parents that are not counted yet.  When all is found; until then a parent may leave before its
  // child.  `stop` is asked often.
  void CountChildren(absl::FunctionRef<bool()> stop);
  // host -> host+disk of a held entry, or from one place on disk to another.  Where it was there
  // until now (0: nowhere), which is the caller's to erase; nullopt: it has left HOST meanwhile, so
  // the new location is.
  [[nodiscard]] std::optional<uint64_t> SetOnDisk(EntryRef held, uint64_t location);
  // A held entry whose copy on disk, at this place, is to be written anew: nobody else reads that
  // until FinishRewrite, exactly once.  False: somebody else holds it, so may be reading; or it is
  // not there any more.  One on disk alone is `promoting` meanwhile.
  [[nodiscard]] bool BeginRewrite(EntryRef held, uint64_t location);
  // Where it was written; 0: it was not.  False: it is where it was, or its name has gone, so the
  // new place is the caller's to erase; else the old one.
  [[nodiscard]] bool FinishRewrite(EntryRef held, uint64_t location);
  // A held entry's bytes of HOST lie elsewhere now, encoded or decoded: *metadata says how, and
  // becomes what it was before.  The former extent is the caller's.  False: somebody else holds it,
  // or it has left HOST.
  [[nodiscard]] bool ReplaceInHost(EntryRef held, Extent extent,
                                   std::unique_ptr<const BlockMetadata>* metadata);
  // disk -> promoting of a held entry; then exactly one of FinishPromote (host+disk) or FailPromote
  // (disk).  False: it is in HOST, or somebody else promotes it.
  [[nodiscard]] bool BeginPromote(EntryRef held);
  // False: the name was dropped meanwhile, so the extent is the caller's.
  [[nodiscard]] bool FinishPromote(EntryRef held, Extent extent,
                                   std::unique_ptr<const BlockMetadata> metadata, uint32_t now_s);
  void FailPromote(EntryRef held);
  // A held entry as it is now; state kDoomed or kAbsent: its name is gone.
  [[nodiscard]] Held LookAt(EntryRef held) const;
  // The least worthy of those on disk alone, never held or pinned, in turn over the shards, a child
  // before its parent; where there is none, the disk copy of a block of HOST.  nullopt: nothing can
  // go.
  using EvictedFromDisk = larder::EvictedFromDisk;
  [[nodiscard]] std::optional<EvictedFromDisk> EvictOneFromDisk(uint32_t now_s);
  // The disk copy of this one, unless it is held or pinned.
  [[nodiscard]] std::optional<FreedExtent> EvictRefFromDisk(EntryRef ref);
  [[nodiscard]] std::optional<double> WorthOnDisk(EntryRef ref, uint32_t now_s) const;

  // Whether blocks of HOST are being written to a disk now, as they are published.
  void SetSpilling(bool spilling) { policy_.SetSpilling(spilling); }

  // ---- pins (PinTable has their owners)
  // One of HOST keeps a block there, and its copy on disk, by which it outlives a restart; one of
  // DISK keeps that copy, and the block in HOST until there is one.  They go with the name.  False:
  // no such block in any tier.  REQUIRES: tier is one of the two.
  bool SetPinned(VariantIndex variant, const Digest& digest, Tier tier, bool pinned);
  // Bytes of blocks that pins keep in that tier: in HOST those that are pinned there, though some
  // may still be on disk, and those that are pinned on disk and are not there yet.  Cheap.
  [[nodiscard]] ByteCount PinnedBytes(Tier tier) const;

  // ---- events: every block that comes to a tier or leaves one
  [[nodiscard]] const EventRing& events() const { return events_; }
  // For what happens in DEVICE, of which the index knows nothing.
  [[nodiscard]] EventRing& events() { return events_; }

  // ---- totals
  [[nodiscard]] uint64_t blocks() const;         // named, claims included
  [[nodiscard]] uint64_t doomed() const;         // nameless, still held
  [[nodiscard]] uint64_t disk_only() const;      // on disk and not in HOST
  [[nodiscard]] ByteCount memory_bytes() const;  // entries and tables
  [[nodiscard]] ByteCount metadata_bytes() const;

  // Calls visit(const View&) for named blocks, without a lock, from copies that are taken a bounded
  // number of entries at a time: for dumps, Clear and snapshots.  `visit` may call the index.
  // Blocks that enter or leave meanwhile may be seen or not.
  using View = BlockView;
  // Where such a walk is; one of another index, or made anew, begins at its beginning.
  struct Cursor {
    uint32_t shard = 0, slot = 1;
    [[nodiscard]] bool done() const { return shard >= kShards; }
  };
  // The next of them; fewer than there is room for, or none, says nothing of what is left.
  [[nodiscard]] size_t Views(Cursor* cursor, std::span<View> out) const;
  template <class Visit>
  void ForEach(Visit visit) const {
    ForEachCopy<View>(&IndexShard::Views, visit);
  }
  // Likewise visit(const ChainLink&), for blocks that are in a tier.
  template <class Visit>
  void ForEachLink(Visit visit) const {
    ForEachCopy<ChainLink>(&IndexShard::Links, visit);
  }

  // O(n); tests and debug dumps.  REQUIRES: no other call is under way (variant totals are
  // compared).
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kSlotBits = 32 - kShardBits;

  [[nodiscard]] static uint32_t ShardOf(uint64_t hash) {
    return static_cast<uint32_t>(hash >> (64 - kShardBits));
  }
  [[nodiscard]] static uint32_t ShardOf(EntryRef ref) { return (ref.value - 1) >> kSlotBits; }
  [[nodiscard]] static uint32_t SlotOf(EntryRef ref) {
    return (ref.value - 1) & ((1u << kSlotBits) - 1);
  }
  [[nodiscard]] static EntryRef MakeRef(uint32_t shard, uint32_t slot) {
    return EntryRef{(shard << kSlotBits | slot) + 1};
  }
  template <class Copy, class Visit>
  void ForEachCopy(uint32_t (IndexShard::*take)(uint32_t, std::span<Copy>, size_t*) const,
                   Visit& visit) const {
    std::array<Copy, 256> copies;
    for (const auto& shard : shards_) {
      for (uint32_t from = 1; from != 0;) {
        size_t count = 0;
        from = ((*shard).*take)(from, copies, &count);
        for (size_t i = 0; i < count; ++i) visit(copies[i]);
      }
    }
  }
  // Calls visit(shard, group, at) for the shards that have keys among digests [at, at + a window).
  template <class Visit>
  void ForGroups(VariantIndex variant, std::span<const Digest> digests, Visit visit) const;
  // Calls visit(shard, slots), order kept within a shard.
  template <class Visit>
  void ForSlots(std::span<const EntryRef> refs, Visit visit) const;

  // Parents by their IndexHash.
  [[nodiscard]] IndexShard::Raised RaiseParent(VariantIndex variant, const Digest& child,
                                               uint64_t parent);
  // As the child's metadata says, which may be null.
  [[nodiscard]] IndexShard::Raised RaiseParent(VariantIndex variant, const Digest& child,
                                               const BlockMetadata* metadata);
  void MarkShared(VariantIndex variant, uint64_t parent);
  void LowerParent(VariantIndex variant, std::optional<uint64_t> parent,
                   std::optional<uint32_t> child_last_use_s);
  using ShardSet = std::bitset<kShards>;
  static constexpr uint32_t kOddStep = 7;  // so that a turn comes to every shard
  // How worthy the least of each shard was when it was looked at last; 0: that says nothing.  A
  // hint, of an eviction that must not look at all of them.
  struct LeastSeen {
    std::array<std::atomic<double>, kShards> worth{};
    std::atomic<uint32_t> turn{0};
    // Of others than these, the first of equals from a shard on: else one would give for all.
    [[nodiscard]] uint32_t Least(uint32_t from, const ShardSet& but) const;
  };
  template <class LeastOf>
  [[nodiscard]] uint32_t ShardToEvictFrom(LeastSeen& seen, LeastOf least_of) const;
  // What is left to do without the shard's lock when a block has left.
  [[nodiscard]] Evicted Finish(IndexShard::Departure gone);
  bool FinishDrop(std::optional<IndexShard::Departure> gone, std::optional<Extent>* freed,
                  FreedExtent* on_disk);

  EventRing events_;
  VariantTable variants_;
  std::array<std::unique_ptr<IndexShard>, kShards> shards_;
  EvictionPolicy policy_;
  LeastSeen host_seen_, disk_seen_;
};

}  // namespace larder
