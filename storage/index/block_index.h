// Which blocks exist, in which of the tiers HOST and DISK, and which of them are evicted first.
// One index per tenant.
//
// An entry is one cache line (IndexEntry).  Entries are spread over shards by the hash of their
// key; each shard has a hash table over its entries (SlotTable).  The keys of one call are grouped
// by shard, and their places in the tables prefetched, so that cache misses overlap.
//
// The index does no I/O, has no threads and no clock (callers pass `now_s`, in seconds), does not
// touch payload bytes, and does not free extents: an extent that an operation releases is then the
// caller's.
//
// The name of a block is its variant and digest.  If a block is removed from all tiers while it is
// held, it loses its name at once, so that no lookup finds it; its entry is doomed, and the Unhold
// that ends the last hold returns its extent and its disk location.
//
// Ownership: made by BlockStore.  Owns the metadata of its blocks.
// Thread-safety: all methods from any thread.
// Locks: one per shard; no operation holds two.  So the results for several keys of one call are
// not a snapshot of one instant, although each key's result is.
// Limits: 16.7 M entries per shard (268 M in all), 65,534 variants, and kHoldsMax holds of an
// entry; more than 65,535 children of an entry are not counted.
// Memory without metadata: 64 B per entry and 4.6 to 9.1 B of table; 10 M blocks: 74 B each.  Once
// blocks have left, ghost entries take up to about 16 B more per entry.  The index does not shrink:
// freed entries are used again.
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
  // `events_max`: how many events each ring of the EventRing keeps; 0 disables events.
  explicit BlockIndex(size_t events_max = 0);
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // ---- variants
  // Returns the variant's number, and gives the variant one if it has none.  Returns
  // ResourceExhausted if VariantTable::kVariantsMax variants have one already.
  [[nodiscard]] absl::StatusOr<VariantIndex> InternVariant(const Digest& variant_id);
  [[nodiscard]] std::optional<VariantIndex> FindVariant(const Digest& variant_id) const;
  [[nodiscard]] Digest VariantId(VariantIndex variant) const;
  using VariantTotals = larder::VariantTotals;
  // Returns the number of the variant's blocks in HOST, the bytes of their extents, and the number
  // of its blocks that are on disk only.
  [[nodiscard]] VariantTotals TotalsOf(VariantIndex variant) const;
  // Returns the variants that have blocks in HOST or on disk, in ascending order.
  [[nodiscard]] std::vector<VariantIndex> StoredVariants() const;

  // ---- entering
  using NewBlock = IndexedBlock;
  enum class InsertResult { kInserted, kDuplicate, kFull, kBusy };  // kBusy: InsertOnDisk only
  // absent -> host.  The first writer of a name wins: returns kDuplicate if the name is taken, even
  // if its block is on disk only or being promoted, or if the name is only claimed.  On kDuplicate
  // and kFull the extent remains the caller's.  REQUIRES: the variant is interned.
  [[nodiscard]] InsertResult Insert(NewBlock block, uint32_t now_s, EntryRef* ref = nullptr);
  // absent -> reserved.  If Claim returns kInserted, the caller then calls exactly one of Fill
  // (reserved -> host) and Abandon (reserved -> absent).  No other call ends a claim.
  [[nodiscard]] InsertResult Claim(VariantIndex variant, const Digest& digest, EntryRef* ref);
  void Fill(EntryRef claimed, Extent extent, std::unique_ptr<const BlockMetadata> metadata,
            uint32_t now_s);
  void Abandon(EntryRef claimed);

  // ---- reading
  using Held = HeldBlock;
  // Holds blocks that are in HOST and counts that as a use; sets out[i] (HeldBlock) for digests[i].
  // Other threads do not replace the extent and metadata of a held entry in HOST.
  // HoldWhat::kAnyTier and kUntouched also hold blocks that are on disk only or being promoted.
  // Such a block keeps its record, but a rewrite that began before the hold (BeginRewrite) may
  // still change its disk location.  kUntouched does not count as a use.
  // REQUIRES: out.size() == digests.size().
  void Hold(VariantIndex variant, std::span<const Digest> digests, uint32_t now_s,
            std::span<Held> out, HoldWhat what = HoldWhat::kHost);
  // Adds a hold to each of these entries, which the caller already holds.  Returns false, and adds
  // no hold, if one of the entries already has kClientHoldsMax holds.
  [[nodiscard]] bool HoldAgain(std::span<const EntryRef> refs);
  // Ends a hold of each entry.  If it was the last hold of a doomed entry, appends the entry's
  // extent, if any, to `freed`, and its disk location, if any, to `on_disk`, which may be null if
  // there is no disk tier.  In each shard ends the holds of later refs first, so that the tails of
  // chains tend to be evicted first.
  // REQUIRES: each ref is held (CHECKed as far as that is detectable).
  void Unhold(std::span<const EntryRef> refs, std::vector<Extent>* freed,
              std::vector<FreedExtent>* on_disk = nullptr);

  // Sets out[i] to the presence of the block digests[i], without holding it or counting a use.
  // REQUIRES: out.size() == digests.size().
  using Presence = BlockPresence;
  void Lookup(VariantIndex variant, std::span<const Digest> digests, std::span<Presence> out) const;

  // ---- leaving
  // Removes the block's name at once.  If the block is not held, *freed is set to its extent, if it
  // is in HOST, and *on_disk to its disk location, if it is on disk; otherwise the last Unhold
  // returns them.  Returns false if there is no such name or it is only claimed.
  bool Drop(VariantIndex variant, const Digest& digest, std::optional<Extent>* freed,
            FreedExtent* on_disk = nullptr);
  // Removes the block of this entry, like Drop of a name.  The caller holds `ref`, or has it from
  // the owner word of an extent; a `ref` that is not held may stand for another block by now.
  // Returns false if there is no such entry, or if it has lost its name or is only claimed.
  bool Drop(EntryRef ref, std::optional<Extent>* freed, FreedExtent* on_disk = nullptr);
  // Removes a held block from HOST, because its bytes there are wrong.  If the block is in HOST
  // only, it loses its name.  If it is also on disk, its name and disk copy move to a second entry,
  // which has no holds, and the disk tier's owner word for the copy still names the old entry; only
  // if the shard has no free entry does the block lose its name.  The last Unhold of `held` returns
  // what the old entry has, so *freed becomes nullopt.  Returns false, and drops nothing, if the
  // block has left HOST, or if a rewrite of its disk copy is under way.
  bool DropHostCopy(EntryRef held, std::optional<Extent>* freed, FreedExtent* on_disk);
  // Removes a block from `tiers`; with kKeepLastCopy only if it stays in another tier, and with
  // kDryRun only returns what kAll would do.  A block that is then in no tier leaves the index,
  // even while it is held: it loses its name at once.  Clear removes nothing if a pin or a hold
  // prevents it (ClearedBlock::Status).  If the block is not held, *freed and *on_disk are set to
  // what the caller must free, the extent in HOST and the record on disk; otherwise the last Unhold
  // returns them.
  [[nodiscard]] ClearedBlock Clear(VariantIndex variant, const Digest& digest, TierSet tiers,
                                   ClearHow how, std::optional<Extent>* freed,
                                   FreedExtent* on_disk);
  // An evicted block.  It has left HOST, and also the index unless it is on disk.
  using Evicted = EvictedBlock;
  // Evicts a block of little worth (EvictionPolicy) from HOST.  A block that is held, or that a pin
  // keeps in HOST, is not evicted.  Prefers blocks without children, so that a chain usually leaves
  // from its end: a block with children that is in HOST only is evicted only if no other was found
  // in any shard.
  // Returns nullopt if no block was found.
  [[nodiscard]] std::optional<Evicted> EvictOne(uint32_t now_s);
  // Evicts exactly this entry from HOST; returns nullopt if it is not evictable now.  Children do
  // not protect it, because the caller needs its extent.  A stale ref may name a newer block, with
  // another extent.
  [[nodiscard]] std::optional<Evicted> EvictRef(EntryRef ref);
  // Returns the worth of the block in HOST, per byte (EvictionPolicy); nullopt if it is not in
  // HOST, is held, or is kept in HOST by a pin.
  [[nodiscard]] std::optional<double> WorthInHost(EntryRef ref, uint32_t now_s) const;
  // Returns how many pages of HOST evictions may free.  This may include blocks that the daemon
  // holds for a moment (HoldWhat::kUntouched).  Takes no lock.
  [[nodiscard]] uint64_t evictable_pages() const;
  // Puts a block that was evicted a moment ago back into HOST, in its former extent.  Returns false
  // if that is not possible any more, for example because its name was taken or removed meanwhile;
  // the extent is then the caller's.  If *held is not {} afterwards, the caller must end that hold.
  [[nodiscard]] bool PutBack(Evicted gone, EntryRef* ref, EntryRef* held);

  // ---- disk (a location is a DiskLocation of the disk tier; 0 is none)
  // absent -> disk, for a block that an earlier run of the daemon left on disk; or host ->
  // host+disk of `same`, if the block was published meanwhile and the caller has checked that its
  // bytes are the record's.  Returns kDuplicate if the name already has a disk copy, kFull if its
  // shard of the index is full, and kBusy if the name is claimed now, or its block is in HOST only
  // and is not `same`; after kBusy the caller should try again.  REQUIRES: the variant is interned,
  // location != 0; `same` is held or {}.
  using BlockOnDisk = larder::BlockOnDisk;
  [[nodiscard]] InsertResult InsertOnDisk(const BlockOnDisk& block, EntryRef same, uint32_t now_s,
                                          EntryRef* ref);
  // Counts blocks in the `children` of their parents, if they are not counted yet, for example
  // because they entered before their parents.  The caller calls this after blocks that were found
  // on disk have entered.  Returns early if stop() returns true.
  void CountChildren(absl::FunctionRef<bool()> stop);
  // host -> host+disk of a held entry, or a change of its disk location.  Returns the former
  // location (0: none), whose record the caller must erase; or nullopt if the block has left HOST
  // meanwhile, so that the caller must erase the record at the new location.
  [[nodiscard]] std::optional<uint64_t> SetOnDisk(EntryRef held, uint64_t location);
  // Begins a rewrite of an entry's disk copy, which lies at `location`.  On success the caller must
  // call FinishRewrite exactly once; until then a block that is on disk only cannot be promoted.
  // Returns false if the entry has another hold than the caller's, whose holder may be reading the
  // copy, if the copy no longer lies at `location`, or if the block is being promoted or has lost
  // its name.
  [[nodiscard]] bool BeginRewrite(EntryRef held, uint64_t location);
  // `location`: where the new copy was written; 0 if writing it failed.  Returns true if the entry
  // now has the new location, so that the caller must erase the old copy; false if it keeps the old
  // location or its name was removed, so that the caller must erase the new copy, if there is one.
  [[nodiscard]] bool FinishRewrite(EntryRef held, uint64_t location);
  // Replaces the extent of a held entry in HOST by `extent`, which has the same bytes encoded or
  // decoded, and exchanges the entry's metadata with *metadata, which describes the bytes in
  // `extent`.  The former extent is then the caller's.  Returns false, and changes nothing, if the
  // entry has another hold than the caller's or has left HOST.
  [[nodiscard]] bool ReplaceInHost(EntryRef held, Extent extent,
                                   std::unique_ptr<const BlockMetadata>* metadata);
  // disk -> promoting of a held entry.  After it has returned true, the caller calls FinishPromote
  // (promoting -> host+disk) or FailPromote (promoting -> disk), or drops the block.  Returns false
  // if the block is in HOST or has lost its name, or if another thread promotes or rewrites it.
  [[nodiscard]] bool BeginPromote(EntryRef held);
  // promoting -> host+disk of a held entry, with the block's bytes in `extent`.  Returns false if
  // the name was dropped meanwhile; the extent is then the caller's.
  [[nodiscard]] bool FinishPromote(EntryRef held, Extent extent,
                                   std::unique_ptr<const BlockMetadata> metadata, uint32_t now_s);
  void FailPromote(EntryRef held);
  // Returns a held entry as it is now.  State kDoomed means that the entry has lost its name.
  [[nodiscard]] Held LookAt(EntryRef held) const;
  // Evicts a block of little worth (EvictionPolicy) that is on disk only, neither held nor pinned;
  // prefers blocks without children.  If it finds no such block, drops the disk copy of a block in
  // HOST.  Returns nullopt if it finds no such copy either.
  using EvictedFromDisk = larder::EvictedFromDisk;
  [[nodiscard]] std::optional<EvictedFromDisk> EvictOneFromDisk(uint32_t now_s);
  // Evicts the disk copy of this block; a block that is on disk only then leaves the index.
  // Returns nullopt if the block is not on disk or is held, or if a pin keeps its disk copy.
  [[nodiscard]] std::optional<FreedExtent> EvictRefFromDisk(EntryRef ref);
  [[nodiscard]] std::optional<double> WorthOnDisk(EntryRef ref, uint32_t now_s) const;

  // Sets whether new blocks in HOST are being written to disk at present
  // (EvictionPolicy::SetSpilling).
  void SetSpilling(bool spilling) { policy_.SetSpilling(spilling); }

  // ---- pins (PinTable has their owners)
  // Sets or removes the mark of a pin.  Eviction and Clear do not remove a block with a mark of
  // HOST from HOST, nor its disk copy, by which the block outlives a restart.  They do not remove
  // the disk copy of a block with a mark of DISK, nor the block from HOST until it has a disk copy.
  // Marks end with the block's name.  Returns false if no tier has the block.
  // REQUIRES: tier is kHost or kDisk.
  bool SetPinned(VariantIndex variant, const Digest& digest, Tier tier, bool pinned);
  // Returns whether the block has the mark of that tier; false if no tier has the block.
  // REQUIRES: tier is kHost or kDisk.
  [[nodiscard]] bool IsPinned(VariantIndex variant, const Digest& digest, Tier tier) const;
  // Returns the bytes of the blocks that pins keep in that tier, by the size that they have in HOST
  // or would need there.  For HOST these are the blocks with a mark of HOST, even those that are on
  // disk only, and the blocks with a mark of DISK that are not on disk yet.  Takes no lock.
  [[nodiscard]] ByteCount PinnedBytes(Tier tier) const;

  // ---- events: each block that enters or leaves a tier
  [[nodiscard]] const EventRing& events() const { return events_; }
  // For a caller that appends events of DEVICE to the ring: the index does not know that tier.
  [[nodiscard]] EventRing& events() { return events_; }

  // ---- totals
  [[nodiscard]] uint64_t blocks() const;         // named, claims included
  [[nodiscard]] uint64_t doomed() const;         // without a name, still held
  [[nodiscard]] uint64_t disk_only() const;      // on disk and not in HOST
  [[nodiscard]] ByteCount memory_bytes() const;  // all except metadata
  [[nodiscard]] ByteCount metadata_bytes() const;

  // ---- walking
  // A walk visits copies of the named entries.  A bounded number of copies at a time is taken under
  // the lock of a shard.  Blocks that enter, leave or move to another entry (DropHostCopy)
  // meanwhile may be missed or visited twice.
  using View = BlockView;
  // The position of a walk; a default-constructed one is at the beginning.
  struct Cursor {
    uint32_t shard = 0, slot = 1;
    [[nodiscard]] bool done() const { return shard >= kShards; }
  };
  // Writes the next entries to `out` and returns their number.  Fewer than out.size(), even 0, does
  // not mean that the walk is done (Cursor::done).
  [[nodiscard]] size_t Views(Cursor* cursor, std::span<View> out) const;
  // Calls visit(const View&) for each named entry, without a lock, so that `visit` may call the
  // index.
  template <class Visit>
  void ForEach(Visit visit) const {
    ForEachCopy<View>(&IndexShard::Views, visit);
  }
  // Calls visit(const ChainLink&) for each block that is in a tier, without a lock, so that `visit`
  // may call the index.
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
  // Divides `digests` into windows of at most IndexShard::kKeysMax, and for each window calls
  // visit(shard, group, at) for each shard that has keys in the window, which begins at
  // digests[at].
  template <class Visit>
  void ForGroups(VariantIndex variant, std::span<const Digest> digests, Visit visit) const;
  // Divides `refs` into windows of at most IndexShard::kKeysMax, and for each window, the last one
  // first, calls visit(shard, slots) for each shard that has refs in the window.  `slots` are in
  // the order of the refs.
  template <class Visit>
  void ForSlots(std::span<const EntryRef> refs, Visit visit) const;

  // Counts `child` in its parent, whose IndexHash is `parent` (ChildCounts::Raise).  Calls
  // MarkShared if the result says `forked`.
  [[nodiscard]] IndexShard::Raised RaiseParent(VariantIndex variant, const Digest& child,
                                               uint64_t parent);
  // Counts `child` in the parent that `metadata` names; does nothing if `metadata` is null.
  [[nodiscard]] IndexShard::Raised RaiseParent(VariantIndex variant, const Digest& child,
                                               const BlockMetadata* metadata);
  void MarkShared(VariantIndex variant, uint64_t parent);
  void LowerParent(VariantIndex variant, std::optional<uint64_t> parent,
                   std::optional<uint32_t> child_last_use_s);
  using ShardSet = std::bitset<kShards>;
  static constexpr uint32_t kOddStep = 7;  // odd, so that a rotation reaches every shard
  // For each shard, the least worth of a block to evict when an eviction last looked at that shard;
  // 0 before the first look.  A hint, since looking at all shards would take too long.
  struct LeastSeen {
    std::array<std::atomic<double>, kShards> worth{};
    std::atomic<uint32_t> turn{0};
    // Returns the shard outside `but` whose `worth` is least; of several, the first one at or after
    // `from`, so that evictions do not all choose the same shard.  Returns shard `from` (modulo
    // kShards) if no shard outside `but` seems to have a block to evict.
    [[nodiscard]] uint32_t Least(uint32_t from, const ShardSet& but) const;
  };
  template <class LeastOf>
  [[nodiscard]] uint32_t ShardToEvictFrom(LeastSeen& seen, LeastOf least_of) const;
  // Completes the departure of a block: lowers the `children` of its parent.  The parent may be in
  // another shard, so this is not done under the lock of the block's shard.
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
