// A tenant's blocks: pool, extents, index, eviction and metadata behind one door.  The one class
// the server calls.
//
// Bytes are not its business: writers put them into the extents of an ExtentReservation, readers
// take them from the extents of a BlockLease; it only says who may, and that nothing is reused
// meanwhile.
//
// Ownership: made by server/main, one per tenant.  Outlives every handle that it returned.
// Thread-safety: BlockStore from any thread; a handle from one thread at a time.
// Lifecycle of a block: Reserve -> (filled) -> Publish -> Acquire ... -> evicted or dropped.
// Limits, exact: the pool's bytes; `lease_share` of the pool per session, for leases and for
// reservations alike (the caller passes what is left of its share).
// Locks: `mu_` guards the allocator; the index has its own.  Order: mu_, then a shard.  Acquire and
// release take no lock of the store unless an extent comes free.  `disk_mu_` is a leaf; that of
// pins() lies between mu_ and a shard.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "storage/clock.h"
#include "storage/format/block_key.h"
#include "storage/index/block_index.h"
#include "storage/memory/extent_allocator.h"
#include "storage/memory/slab_pool.h"
#include "storage/mutex.h"
#include "storage/store/block_pins.h"
#include "storage/types.h"

namespace larder {

class BlockStore;
class DiskTier;  // storage/disk/disk_tier.h

// Extents promised to a writer.  What was not published is returned when this is dropped.
class ExtentReservation {
 public:
  ExtentReservation() = default;
  ExtentReservation(ExtentReservation&& other) noexcept { *this = std::move(other); }
  ExtentReservation& operator=(ExtentReservation&& other) noexcept;
  ~ExtentReservation() { Reset(); }

  [[nodiscard]] size_t size() const { return slots_.size(); }
  // True while slot i waits for its publish.
  [[nodiscard]] bool open(size_t i) const {
    return i < slots_.size() && slots_[i].extent.pages != 0;
  }
  [[nodiscard]] const Extent& extent(size_t i) const { return slots_[i].extent; }
  [[nodiscard]] ByteCount bytes(size_t i) const { return slots_[i].bytes; }
  [[nodiscard]] ByteCount held_bytes() const { return held_; }  // of the open extents
  [[nodiscard]] size_t open_count() const { return open_count_; }
  void Return(size_t i);  // gives slot i back; no-op when not open
  // Slot i alone, as a reservation of its own, so that it can be filled without this one's lock.
  // Without slots when it is not open.
  [[nodiscard]] ExtentReservation Split(size_t i);
  void Reset();  // all of them

 private:
  friend class BlockStore;
  struct Slot {
    Extent extent;
    ByteCount bytes;  // as asked
  };
  Extent Take(size_t i);

  BlockStore* store_ = nullptr;
  std::vector<Slot> slots_;
  ByteCount held_;
  size_t open_count_ = 0;
};

// Blocks held for reading: they keep bytes and metadata until this is dropped, whatever happens to
// their names.
class BlockLease {
 public:
  BlockLease() = default;
  BlockLease(BlockLease&& other) noexcept { *this = std::move(other); }
  BlockLease& operator=(BlockLease&& other) noexcept;
  ~BlockLease() { Reset(); }

  [[nodiscard]] ByteCount held_bytes() const { return held_; }
  [[nodiscard]] size_t size() const { return refs_.size(); }
  [[nodiscard]] std::span<const EntryRef> refs() const { return refs_; }
  void Reset();

 private:
  friend class BlockStore;
  BlockStore* store_ = nullptr;
  std::vector<EntryRef> refs_;
  ByteCount held_;
};

class BlockStore {
 public:
  struct Options {
    double lease_share = 0.25;     // of the pool, per session
    double free_watermark = 0.04;  // background eviction starts below this share of the pool
    double pin_share = 0.5;        // of the pool, and of the disk, that pins may keep
    ByteCount disk_limit;          // whatever is there when it is 0
    size_t pins_max = 131'072;
    size_t events_max = 65'536;  // kept for who watches
  };

  // REQUIRES: pool and clock outlive the store.
  BlockStore(const Options& options, SlabPool& pool, const Clock& clock);
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  // The pool calls this as each slab comes online, in order.
  void AddSlab(SlabId slab) LARDER_EXCLUDES(mu_);

  // ---- writing
  struct ReserveResult {
    BlockStatus status = BlockStatus::kOk;  // kOk, kFull, kInvalid (a size is 0 or over a slab)
    Duration retry_after{};                 // when kFull
    ExtentReservation reservation;
  };
  // All or nothing; evicts as needed; never waits.  kFull when more than `budget` or when the rest
  // is held: then nothing was evicted for it, but a block whose name another writer took in that
  // very instant.
  [[nodiscard]] ReserveResult Reserve(std::span<const ByteCount> sizes, ByteCount budget)
      LARDER_EXCLUDES(mu_);

  // What a writer says of a block.
  struct NewBlock {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    Digest parent;
    std::span<const uint32_t> tokens;
    const SegmentTable* table = nullptr;
    Digest content = {};  // whose chain it is of; Digest{}: unknown
    BlockWriter writer = {};
  };
  // Makes slot i of the reservation visible under the name.  kOk, kDuplicate (the extent goes
  // back), kNotHeld, kInvalid (the table's payload is not the bytes reserved), kFull (index full,
  // or a disk that has yet to tell what it has cannot say now whether it has the name; the extent
  // goes back).
  // The first writer of a name wins, by whichever road and tier: kDuplicate while the name is
  // stored, also where its block is on disk alone and cannot be read now, or is claimed; an Acquire
  // brings it back.  A name that has left all tiers is free for other bytes.
  BlockStatus Publish(ExtentReservation& reservation, size_t i, const NewBlock& block)
      LARDER_EXCLUDES(mu_);

  // The same in two steps, for a daemon-side copy: claim the name, copy, then Fill or Abandon.
  // The claim must not outlive the reservation.
  BlockStatus Claim(const ExtentReservation& reservation, size_t i, const NewBlock& block,
                    EntryRef* claim);
  // Ends the claim.  kOk; else the extent stays in the reservation.  kDuplicate: a disk that has
  // yet to tell what it has turned out to have other bytes under this name.  kFull: it cannot say
  // now.
  BlockStatus Fill(ExtentReservation& reservation, size_t i, const NewBlock& block, EntryRef claim)
      LARDER_EXCLUDES(mu_);
  void Abandon(EntryRef claim);

  // ---- reading
  struct AcquireResult {
    BlockLease lease;
    std::vector<BlockIndex::Held>
        blocks;  // per key; metadata valid while the lease holds; ref 0 = missing or full
  };
  // Holds what is in HOST, in key order, up to `budget` bytes; keys beyond it come back `full`.
  // Of HoldWhat::kAnyTier also what is on disk alone: its bytes count as those of HOST, and they
  // become readable by a promotion (Promoter).
  // A lease holds a block once, however often its keys name it: the later ones are `repeated`.
  // `may_crowd` is asked of a block that many hold already whether this caller may, too; if not,
  // the key comes back `full`.
  [[nodiscard]] AcquireResult Acquire(
      VariantIndex variant, std::span<const Digest> digests, ByteCount budget,
      HoldWhat what = HoldWhat::kHost,
      absl::FunctionRef<bool(EntryRef)> may_crowd = [](EntryRef) { return true; });

  // ---- leaving
  // A held block was found damaged, where it is said: its name goes at once, its bytes with the
  // last lease.  What is damaged in HOST alone is on disk still, under its name.
  void DropDamaged(EntryRef held, Tier where = Tier::kHost) LARDER_EXCLUDES(mu_);
  bool Drop(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);
  // As BlockIndex::Clear says.
  ClearedBlock Clear(VariantIndex variant, const Digest& digest, TierSet tiers, ClearHow how)
      LARDER_EXCLUDES(mu_);
  // Eviction ahead of need: up to `blocks_max` blocks until the watermark holds.  Answers how many
  // left.  For whoever just reserved, after his answer, and for the background.
  size_t EvictToWatermark(size_t blocks_max) LARDER_EXCLUDES(mu_);

  // ---- disk.  Who moves bytes between the tiers (Spiller, Promoter) says here what became of
  // them.
  // `disk` has blocks whose names the index does not know yet (TierWorker, from a start until none
  // is unplaced): until this is called with nullptr, Publish and Fill ask it, and may wait for it.
  // A name that it has is a duplicate unless the new bytes, hashed here, are the record's.  A part
  // of the disk that is closed says nothing, so who brings its blocks compares (EnterFromDisk).
  // It outlives the store's callers.
  void AskBeforeNaming(DiskTier* disk) { untold_.store(disk, std::memory_order_release); }
  [[nodiscard]] bool asks_disk() const {
    return untold_.load(std::memory_order_acquire) != nullptr;
  }
  // The variant's index, and what records of its blocks say of it.  ResourceExhausted: too many.
  [[nodiscard]] absl::StatusOr<VariantIndex> RegisterVariant(const VariantSpec& spec)
      LARDER_EXCLUDES(disk_mu_);
  // nullptr: only its id is known (found on disk, not registered since).
  [[nodiscard]] std::shared_ptr<const VariantSpec> SpecOf(VariantIndex variant) const
      LARDER_EXCLUDES(disk_mu_);
  // What a former process left on disk.  {}: its name has a copy on disk already.  kNotNow: the
  // name is claimed, or no room in memory is left to name it; later it may work.  Or the block is
  // in HOST: it has this copy, too, where the caller says by `same`, which it holds, that it has
  // found that block's bytes to be the record's.
  static constexpr EntryRef kNotNow{UINT32_MAX};
  [[nodiscard]] EntryRef EnterFromDisk(const Digest& variant_id, const Digest& digest,
                                       const Digest& parent, uint64_t location, uint32_t pages,
                                       EntryRef same = {});
  // A held block is durable there.  To be erased now: where it was on disk until then (0: nowhere);
  // nullopt: what was just written, for it has left meanwhile.
  [[nodiscard]] std::optional<uint64_t> SetOnDisk(EntryRef held, uint64_t location);
  // A held block's bytes are in slot 0 of the reservation, which this takes.  False: its name was
  // dropped meanwhile.
  [[nodiscard]] bool FinishPromote(EntryRef held, ExtentReservation& reservation,
                                   std::unique_ptr<const BlockMetadata> metadata)
      LARDER_EXCLUDES(mu_);
  // A held block's bytes of HOST, encoded or decoded, are in slot 0 of the reservation, which this
  // takes.  False: somebody else holds the block, or it has left HOST.
  [[nodiscard]] bool ReplaceInHost(EntryRef held, ExtentReservation& reservation,
                                   std::unique_ptr<const BlockMetadata> metadata)
      LARDER_EXCLUDES(mu_);
  // Takes blocks, or only their copies, from disk until these bytes are free there; answers what
  // was asked for in vain.  The rooms follow by TakeFreedExtents.
  ByteCount EvictFromDisk(ByteCount bytes) LARDER_EXCLUDES(disk_mu_);
  void EvictFromDisk(std::span<const EntryRef> blocks) LARDER_EXCLUDES(disk_mu_);
  // Of a byte of it there; nullopt: it may not leave the disk now.
  [[nodiscard]] std::optional<double> WorthOnDisk(EntryRef block) const {
    return index_.WorthOnDisk(block, NowSeconds());
  }
  // Rooms on disk that blocks have left since, for the disk tier's Erase; at most `count`.
  [[nodiscard]] std::vector<FreedExtent> TakeFreedExtents(size_t count) LARDER_EXCLUDES(disk_mu_);
  [[nodiscard]] bool has_disk_rooms() const LARDER_EXCLUDES(disk_mu_);
  // A block of any tier, held; that is no use of it.
  // ref 0: not there.
  [[nodiscard]] BlockIndex::Held HoldUntouched(VariantIndex variant, const Digest& digest);
  // More holds on what the caller holds already; false: one of them has too many.
  [[nodiscard]] bool HoldAgain(std::span<const EntryRef> held) { return index_.HoldAgain(held); }
  void Unhold(std::span<const EntryRef> held) { ReleaseHolds(held); }

  // Hashes a held block whose writer left that to the daemon; then checks `range`.  False: damaged.
  [[nodiscard]] bool EnsureHashed(const BlockIndex::Held& held) const;
  [[nodiscard]] bool Check(const BlockIndex::Held& held, const SegmentRange& range) const;

  [[nodiscard]] std::span<std::byte> Bytes(const Extent& extent) const {
    return pool_.Bytes(extent);
  }
  [[nodiscard]] BlockIndex& index() { return index_; }
  [[nodiscard]] const BlockIndex& index() const { return index_; }
  [[nodiscard]] BlockPins& pins() { return pins_; }
  [[nodiscard]] SlabPool& pool() { return pool_; }
  [[nodiscard]] ByteCount lease_budget() const;  // of a process
  [[nodiscard]] double lease_share() const { return options_.lease_share; }

  struct Stats {
    ByteCount pool_limit, pool_online, pool_free, pool_stored, pool_reserved, pool_leased;
    uint64_t blocks = 0, disk_only = 0, reservations = 0, leases = 0;
    uint64_t evicted_demand = 0, evicted_watermark = 0, duplicates = 0, damaged = 0, full = 0;
    uint64_t evicted_disk = 0, evicted_unspilled = 0;
    ByteCount index_bytes, metadata_bytes;
    uint64_t pins = 0;
    ByteCount pinned_host, pinned_disk;  // as BlockIndex::PinnedBytes says
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);
  void CheckInvariants() const LARDER_EXCLUDES(mu_);

 private:
  friend class ExtentReservation;
  friend class BlockLease;

  [[nodiscard]] uint32_t NowSeconds() const;
  // What it evicts is appended to `gone`, its extents free.
  [[nodiscard]] std::optional<Extent> AllocateEvicting(uint32_t pages,
                                                       std::vector<BlockIndex::Evicted>* gone)
      LARDER_REQUIRES(mu_);
  bool EvictWindow(uint32_t pages, std::vector<BlockIndex::Evicted>* gone) LARDER_REQUIRES(mu_);
  void FreeAll(ExtentReservation& reservation) LARDER_REQUIRES(mu_);
  // Evicted under this hold of the lock, in vain.  The holds are the caller's to end, without it.
  [[nodiscard]] std::vector<EntryRef> PutBack(std::vector<BlockIndex::Evicted> gone)
      LARDER_REQUIRES(mu_);
  void FreeExtents(std::span<const Extent> extents) LARDER_EXCLUDES(mu_);
  void GiveBack(const std::optional<Extent>& freed, const FreedExtent& on_disk)
      LARDER_EXCLUDES(mu_);
  void KeepFreedExtents(std::span<const FreedExtent> on_disk) LARDER_EXCLUDES(disk_mu_);
  void CountEviction(const BlockIndex::Evicted& gone);
  // Of a disk that has yet to tell what it has.  kOk: the name is free, or its record has the bytes
  // that lie there; kDuplicate: it has others; kFull: it cannot say.
  [[nodiscard]] BlockStatus AskDisk(const NewBlock& block, const Extent& extent);
  void ReleaseHolds(std::span<const EntryRef> refs) LARDER_EXCLUDES(mu_);

  const Options options_;
  SlabPool& pool_;
  const Clock& clock_;
  const TimePoint start_;
  std::atomic<DiskTier*> untold_{nullptr};
  BlockIndex index_;
  BlockPins pins_;

  mutable Mutex mu_;
  ExtentAllocator allocator_ LARDER_GUARDED_BY(mu_);
  uint64_t window_cursor_ LARDER_GUARDED_BY(mu_) = 0;
  uint64_t reserved_pages_ LARDER_GUARDED_BY(mu_) = 0;

  mutable Mutex disk_mu_;
  std::deque<FreedExtent> freed_extents_ LARDER_GUARDED_BY(disk_mu_);
  absl::flat_hash_map<VariantIndex, std::shared_ptr<const VariantSpec>> specs_
      LARDER_GUARDED_BY(disk_mu_);

  std::atomic<uint64_t> reservations_{0}, leases_{0}, leased_bytes_{0};
  std::atomic<uint64_t> evicted_disk_{0}, evicted_unspilled_{0};
  std::atomic<uint64_t> evicted_demand_{0}, evicted_watermark_{0}, duplicates_{0}, damaged_{0},
      full_{0};
};

}  // namespace larder
