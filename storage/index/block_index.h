// Which blocks exist, in which tiers, and in which order they would be evicted.  One index per
// tenant.
//
// An entry is one cache line (64 B): digest, variant (interned), state, extent, disk location,
// holds, pins, children, recency links, last use, reuse history, metadata.  Entries are spread over
// shards by the hash of their key; each shard has an open-addressing table of {tag, slot}.  A batch
// is grouped by shard and prefetched, so that 500 keys cost a few waves of cache misses and not
// 1,000 misses one after the other.
//
// The index does no I/O, has no threads and no clock (callers pass `now_s`, in seconds), does not
// touch payload bytes, and does not free extents: an operation that releases an extent returns it
// to the caller.
//
// The name of a block is its variant and digest.  A block that is dropped or cleared while it is
// held loses its name at once, so that no lookup finds it; its entry is doomed, and its extent is
// returned by the Unhold that ends the last hold.
//
// Ownership: made by BlockStore.  Owns the metadata of its blocks.
// Thread-safety: all methods from any thread.
// Locks: one per shard; no operation holds two.  So the results for several keys of one call are
// not a snapshot of one instant, although each key's result is.
// Limits: 16.7 M entries per shard (268 M in all), 65,534 variants, 65,535 children per entry, and
// holds as in index_values.h.
// Memory: 64 B per entry, 4.6 to 9.1 B of table, and unused entries that take at most a quarter of
// the used ones; 10 M blocks: 74 B each.  Once blocks have left, ghost entries take 8 to 16 B more.
// The index does not shrink: entries that eviction frees are used again.
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
#include "storage/index/eviction_policy.h"
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
  // `events_max`: how many of the latest events are kept (EventRing).
  explicit BlockIndex(size_t events_max = 0);
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // ---- variants
  // Returns ResourceExhausted if there are VariantTable::kVariantsMax already.
  [[nodiscard]] absl::StatusOr<VariantIndex> InternVariant(const Digest& variant_id);
  [[nodiscard]] std::optional<VariantIndex> FindVariant(const Digest& variant_id) const;
  [[nodiscard]] Digest VariantId(VariantIndex variant) const;
  using VariantTotals = larder::VariantTotals;
  // The blocks in HOST, the bytes of their extents, and the blocks that are on disk only.
  [[nodiscard]] VariantTotals TotalsOf(VariantIndex variant) const;
  // The variants that have blocks in HOST or on DISK, ascending.
  [[nodiscard]] std::vector<VariantIndex> StoredVariants() const;

  // ---- entering
  using NewBlock = IndexedBlock;
  enum class InsertResult { kInserted, kDuplicate, kFull, kBusy };  // kBusy: InsertOnDisk only
  // absent -> host.  The first writer of a name wins: returns kDuplicate if the name is taken, even
  // if its block is on disk only or being promoted, or if the name is only claimed.  On kDuplicate
  // and kFull the extent remains the caller's.  REQUIRES: the variant is interned.
  [[nodiscard]] InsertResult Insert(NewBlock block, uint32_t now_s, EntryRef* ref = nullptr);
  // absent -> reserved; the caller then calls exactly one of Fill (reserved -> host) and Abandon
  // (reserved -> absent).  No other call ends a claim; Drop ignores claimed names.
  [[nodiscard]] InsertResult Claim(VariantIndex variant, const Digest& digest, EntryRef* ref);
  void Fill(EntryRef claimed, Extent extent, std::unique_ptr<const BlockMetadata> metadata,
            uint32_t now_s);
  void Abandon(EntryRef claimed);

  // ---- reading
  using Held = HeldBlock;
  // Holds each block that is in HOST (host or host+disk) and counts that as a use; sets out[i] for
  // digests[i].  A held entry keeps its extent and metadata until Unhold.
  // HoldWhat::kAnyTier and kUntouched also hold blocks that are on disk only or being promoted, and
  // these keep their disk location until Unhold.  kUntouched does not count as a use.
  // REQUIRES: out.size() == digests.size().
  void Hold(VariantIndex variant, std::span<const Digest> digests, uint32_t now_s,
            std::span<Held> out, HoldWhat what = HoldWhat::kHost);
  // Adds a hold, on behalf of a client, to entries that the caller already holds.  Returns false,
  // and adds no hold, if one of the entries already has kClientHoldsMax.
  [[nodiscard]] bool HoldAgain(std::span<const EntryRef> refs);
  // Ends a hold of each entry.  If it was the last hold of a doomed entry, appends the extent to
  // `freed` and the disk location to `on_disk`, which may be null if there is no disk tier.
  // Earlier refs become more recent than later ones, so that the tails of chains are evicted first.
  // REQUIRES: each ref is held (CHECKed as far as that is detectable).
  void Unhold(std::span<const EntryRef> refs, std::vector<Extent>* freed,
              std::vector<FreedExtent>* on_disk = nullptr);

  // Sets out[i] to the presence of digests[i], without holding the block or counting a use.
  // REQUIRES: spans of equal size.
  using Presence = BlockPresence;
  void Lookup(VariantIndex variant, std::span<const Digest> digests, std::span<Presence> out) const;

  // ---- leaving
  // Removes the block's name at once.  If the block is not held, *freed is set to its extent and
  // *on_disk to its disk location; otherwise the last Unhold returns them.  Returns false if there
  // is no such name or it is only claimed.
  bool Drop(VariantIndex variant, const Digest& digest, std::optional<Extent>* freed,
            FreedExtent* on_disk = nullptr);
  // As above; `ref` is held or is an owner word.  Returns false if the slot is empty, or if the
  // entry has lost its name or is only claimed.
  bool Drop(EntryRef ref, std::optional<Extent>* freed, FreedExtent* on_disk = nullptr);
  // As Drop, for a held block whose bytes in HOST are wrong.  If the block is also on disk, its
  // name and disk copy move to a second entry, which has no holds; the entry of `held` then has
  // neither.  The disk tier's owner word for the copy remains the old reference until the block is
  // promoted.  Returns false if the block has left HOST, or if a rewrite of its disk copy is under
  // way: a later check finds the damage again.
  bool DropHostCopy(EntryRef held, std::optional<Extent>* freed, FreedExtent* on_disk);
  // Removes a block from these tiers.  If it is in no other tier, it leaves the index as by Drop,
  // even while it is held.  Clear does not remove a block that a pin keeps in one of these tiers,
  // nor a held block that is to stay in another tier.
  [[nodiscard]] ClearedBlock Clear(VariantIndex variant, const Digest& digest, TierSet tiers,
                                   ClearHow how, std::optional<Extent>* freed,
                                   FreedExtent* on_disk);
  // An evicted block: it has left HOST, and also the index unless it is on disk.
  using Evicted = EvictedBlock;
  // Evicts the block with the least worth (EvictionPolicy) among the coldest evictable blocks of
  // every class (kEvictionLook of each) in a few shards: two shards, which rotate; if neither has
  // blocks that are also on disk, a third that has some; and up to two whose least worth was the
  // lowest when an eviction last looked at them.  Blocks that are held or pinned are not evictable.
  // A child leaves the index before its parent.  A block with children that is also on disk, and so
  // stays in the index, is evicted only if there is no block without children among those looked at
  // in its class.  A block with children that is in HOST only is evicted only if there is no other
  // block among those looked at in any shard.
  // Returns nullopt if no block is evictable.
  [[nodiscard]] std::optional<Evicted> EvictOne(uint32_t now_s);
  // Evicts exactly this entry if it is evictable.  Children do not protect it, because the caller
  // needs its extent.  A stale ref may name a newer block: Evicted::extent then differs from the
  // extent that the caller knew.
  [[nodiscard]] std::optional<Evicted> EvictRef(EntryRef ref);
  // Returns the worth of the block in HOST, per byte (EvictionPolicy); nullopt if it is held,
  // pinned or not in HOST.
  [[nodiscard]] std::optional<double> WorthInHost(EntryRef ref, uint32_t now_s) const;
  // Returns how many pages of HOST evictions may free now.  Includes blocks that a thread of the
  // daemon holds for a moment (HoldWhat::kUntouched) and that cannot be evicted now.  Takes no
  // lock.
  [[nodiscard]] uint64_t evictable_pages() const;
  // Puts a block that was evicted a moment ago back into HOST, in its former extent, as the most
  // recent of its class.  Returns false if its name was taken or removed meanwhile; the extent is
  // then the caller's.  If *held is not {} afterwards, the caller must end that hold.
  [[nodiscard]] bool PutBack(Evicted gone, EntryRef* ref, EntryRef* held);

  // ---- disk (a location is a DiskLocation of the disk tier; 0 is none)
  // absent -> disk, for a block that the disk tier found when the daemon started; or host ->
  // host+disk of `same`, if the block was published meanwhile and the caller has checked that its
  // bytes are the record's.  Returns kDuplicate if the name already has a disk copy, and kBusy if
  // the name is claimed now, or its block is in HOST and not `same`; the caller should then try
  // again.  REQUIRES: the variant is interned, location != 0; `same` is held or {}.
  using BlockOnDisk = larder::BlockOnDisk;
  [[nodiscard]] InsertResult InsertOnDisk(const BlockOnDisk& block, EntryRef same, uint32_t now_s,
                                          EntryRef* ref);
  // Counts each block in its parent if it is not counted yet, because it was found on disk or
  // published before its parent was in the index.  The caller calls this when all blocks on disk
  // are in the index; until then a parent may be evicted before its child.  Returns early if stop()
  // returns true.
  void CountChildren(absl::FunctionRef<bool()> stop);
  // host -> host+disk of a held entry, or a change of its disk location.  Returns the former
  // location (0: none), which the caller must erase; or nullopt if the block has left HOST
  // meanwhile, so that the caller must erase the new location.
  [[nodiscard]] std::optional<uint64_t> SetOnDisk(EntryRef held, uint64_t location);
  // Begins a rewrite of an entry's disk copy, which lies at `location`.  On success the caller must
  // call FinishRewrite exactly once, and no other thread reads the disk copy until then; a block
  // that is on disk only is `promoting` until then.  Returns false if the entry has another hold
  // than the caller's, whose holder may be reading the copy, or if the copy no longer lies at
  // `location`.
  [[nodiscard]] bool BeginRewrite(EntryRef held, uint64_t location);
  // `location`: where the new copy was written; 0 if writing it failed.  Returns true if the entry
  // now has the new location, so that the caller must erase the old copy; false if it keeps the old
  // location or its name was removed, so that the caller must erase the new copy, if there is one.
  [[nodiscard]] bool FinishRewrite(EntryRef held, uint64_t location);
  // Replaces the extent of a held entry in HOST by `extent`, which has the same bytes encoded or
  // decoded, and exchanges the entry's metadata with *metadata, which describes them.  The former
  // extent is then the caller's.  Returns false, and changes nothing, if the entry has another hold
  // than the caller's or has left HOST.
  [[nodiscard]] bool ReplaceInHost(EntryRef held, Extent extent,
                                   std::unique_ptr<const BlockMetadata>* metadata);
  // disk -> promoting of a held entry; the caller then calls exactly one of FinishPromote
  // (promoting -> host+disk) and FailPromote (promoting -> disk).  Returns false if the block is in
  // HOST or has lost its name, or if another thread promotes or rewrites it.
  [[nodiscard]] bool BeginPromote(EntryRef held);
  // Returns false if the name was dropped meanwhile, so that the extent is the caller's.
  [[nodiscard]] bool FinishPromote(EntryRef held, Extent extent,
                                   std::unique_ptr<const BlockMetadata> metadata, uint32_t now_s);
  void FailPromote(EntryRef held);
  // Returns a held entry as it is now.  State kDoomed means that the block has lost its name.
  [[nodiscard]] Held LookAt(EntryRef held) const;
  // Evicts the block with the least worth among the coldest that are on disk only and neither held
  // nor pinned, a child before its parent; looks at a few shards, as EvictOne does.  If there is no
  // such block, drops the disk copy of a block in HOST.  Returns nullopt if no disk copy can be
  // dropped either.
  using EvictedFromDisk = larder::EvictedFromDisk;
  [[nodiscard]] std::optional<EvictedFromDisk> EvictOneFromDisk(uint32_t now_s);
  // Evicts the disk copy of this block, unless the block is held or pinned.
  [[nodiscard]] std::optional<FreedExtent> EvictRefFromDisk(EntryRef ref);
  [[nodiscard]] std::optional<double> WorthOnDisk(EntryRef ref, uint32_t now_s) const;

  // Sets whether blocks in HOST are being written to disk at present, soon after they are
  // published.
  void SetSpilling(bool spilling) { policy_.SetSpilling(spilling); }

  // ---- pins (PinTable has their owners)
  // A pin of HOST keeps a block in HOST, and its disk copy, by which the block outlives a restart.
  // A pin of DISK keeps the disk copy, and the block in HOST until there is a disk copy.  Pins are
  // removed with the name.  Returns false if no tier has the block.
  // REQUIRES: tier is kHost or kDisk.
  bool SetPinned(VariantIndex variant, const Digest& digest, Tier tier, bool pinned);
  // Returns the bytes of the blocks that pins keep in that tier.  For HOST these are the blocks
  // with a pin of HOST, even those that are still on disk only, and the blocks with a pin of DISK
  // that are not on disk yet.  Takes no lock.
  [[nodiscard]] ByteCount PinnedBytes(Tier tier) const;

  // ---- events: each block that enters or leaves a tier
  [[nodiscard]] const EventRing& events() const { return events_; }
  // The caller appends events of DEVICE to the ring, since the index does not know that tier.
  [[nodiscard]] EventRing& events() { return events_; }

  // ---- totals
  [[nodiscard]] uint64_t blocks() const;         // named, claims included
  [[nodiscard]] uint64_t doomed() const;         // without a name, still held
  [[nodiscard]] uint64_t disk_only() const;      // on disk and not in HOST
  [[nodiscard]] ByteCount memory_bytes() const;  // entries and tables
  [[nodiscard]] ByteCount metadata_bytes() const;

  // ---- walking
  // A walk visits the named blocks from copies, which are taken under the lock a bounded number of
  // entries at a time: for dumps, Clear and snapshots.  Blocks that enter or leave meanwhile may be
  // visited or not.
  using View = BlockView;
  // The position of a walk; a default-constructed one is at the beginning.
  struct Cursor {
    uint32_t shard = 0, slot = 1;
    [[nodiscard]] bool done() const { return shard >= kShards; }
  };
  // Writes the next blocks to `out` and returns their number.  Fewer than out.size(), even 0, does
  // not mean that the walk is done (Cursor::done).
  [[nodiscard]] size_t Views(Cursor* cursor, std::span<View> out) const;
  // Calls visit(const View&) for each block, without a lock, so that `visit` may call the index.
  template <class Visit>
  void ForEach(Visit visit) const {
    ForEachCopy<View>(&IndexShard::Views, visit);
  }
  // Likewise calls visit(const ChainLink&) for each block that is in a tier.
  template <class Visit>
  void ForEachLink(Visit visit) const {
    ForEachCopy<ChainLink>(&IndexShard::Links, visit);
  }

  // O(n); for tests and debug dumps.  REQUIRES: no other call is under way, because variant totals
  // are compared.
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
  // Divides `digests` into windows, and for each window calls visit(shard, group, at) for each
  // shard that has keys in it.  `at` is the index in `digests` at which the window begins.
  template <class Visit>
  void ForGroups(VariantIndex variant, std::span<const Digest> digests, Visit visit) const;
  // Divides `refs` into windows, and for each window, the last one first, calls visit(shard, slots)
  // for each shard that has refs in it.  `slots` are in the order of the refs.
  template <class Visit>
  void ForSlots(std::span<const EntryRef> refs, Visit visit) const;

  // Counts a block that is about to enter in its parent (ChildCounts::Raise), and marks the parent
  // as shared if it forks.  `parent` is the parent's IndexHash.
  [[nodiscard]] IndexShard::Raised RaiseParent(VariantIndex variant, const Digest& child,
                                               uint64_t parent);
  // As above, with the parent that the child's metadata names; `metadata` may be null.
  [[nodiscard]] IndexShard::Raised RaiseParent(VariantIndex variant, const Digest& child,
                                               const BlockMetadata* metadata);
  void MarkShared(VariantIndex variant, uint64_t parent);
  void LowerParent(VariantIndex variant, std::optional<uint64_t> parent,
                   std::optional<uint32_t> child_last_use_s);
  using ShardSet = std::bitset<kShards>;
  static constexpr uint32_t kOddStep = 7;  // odd, so that a rotation reaches every shard
  // The least worth in each shard when it was last looked at; 0 before the first look.  A hint for
  // evictions, which must not look at all shards.
  struct LeastSeen {
    std::array<std::atomic<double>, kShards> worth{};
    std::atomic<uint32_t> turn{0};
    // Returns the shard with the least worth, except those in `but`.  If several are equal, returns
    // the first from shard `from` on: otherwise all evictions would choose the same shard.
    [[nodiscard]] uint32_t Least(uint32_t from, const ShardSet& but) const;
  };
  template <class LeastOf>
  [[nodiscard]] uint32_t ShardToEvictFrom(LeastSeen& seen, LeastOf least_of) const;
  // Completes the departure of a block: lowers its parent's count, which may be in another shard,
  // and so is not done under the lock of the block's shard.
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
