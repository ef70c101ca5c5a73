// A tenant's blocks.  The server uses them through BlockStore, which joins pool, extents, index,
// eviction, pins and metadata.
//
// The store does not copy bytes: writers write them into the extents of an ExtentReservation, and
// readers read them from the extents of a BlockLease.  The store only decides which callers may do
// so, and keeps those extents from being reused meanwhile.
//
// Ownership: one per tenant.  Outlives every handle that it returned (ExtentReservation,
// BlockLease).
// Thread-safety: BlockStore from any thread; a handle from one thread at a time.
// Lifecycle of a block: Reserve -> (filled) -> Publish -> Acquire ... -> evicted or dropped.
// Limits: the pool's bytes.  What one process may reserve and lease is limited by the budget that
// the caller passes.
// Locks: `mu_` guards the allocator; the index has its own locks.  Order: mu_, then the lock of
// pins(), then that of an index shard.  `disk_mu_` is a leaf.  Acquiring and releasing blocks takes
// neither mu_ nor disk_mu_ unless it frees bytes or a record.
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

// Extents that are allocated for a writer, one in each slot.  Destroying the reservation returns
// the extents of open slots to the pool.
class ExtentReservation {
 public:
  ExtentReservation() = default;
  ExtentReservation(ExtentReservation&& other) noexcept { *this = std::move(other); }
  ExtentReservation& operator=(ExtentReservation&& other) noexcept;
  ~ExtentReservation() { Reset(); }

  [[nodiscard]] size_t size() const { return slots_.size(); }
  // Whether slot i exists and still has its extent.
  [[nodiscard]] bool open(size_t i) const {
    return i < slots_.size() && slots_[i].extent.pages != 0;
  }
  [[nodiscard]] const Extent& extent(size_t i) const { return slots_[i].extent; }
  [[nodiscard]] ByteCount bytes(size_t i) const { return slots_[i].bytes; }
  // The size of the extents of the open slots, in whole pages.
  [[nodiscard]] ByteCount held_bytes() const { return held_; }
  void Return(size_t i);  // returns slot i to the pool; no-op if slot i is not open
  // Moves slot i into a new reservation, so that the caller can fill it without the lock that
  // guards this reservation.  Returns a reservation without slots if slot i is not open.
  [[nodiscard]] ExtentReservation Split(size_t i);
  void Reset();  // returns all open slots

 private:
  friend class BlockStore;
  struct Slot {
    Extent extent;
    ByteCount bytes;  // the size that the writer asked for, not rounded to pages
  };
  Extent Take(size_t i);

  BlockStore* store_ = nullptr;
  std::vector<Slot> slots_;
  ByteCount held_;
};

// Blocks that are held for reading.  Until the lease is destroyed or Reset, the blocks keep their
// bytes, and blocks in HOST their metadata, even if their names are removed meanwhile.
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
    double lease_share = 0.25;     // of the pool, per process
    double free_watermark = 0.04;  // EvictToWatermark tries to keep this share of the pool free
    double pin_share = 0.5;        // of the pool, and of the disk, that pins may keep
    ByteCount disk_limit;          // the size of the disk tier; 0: pins on disk have no byte limit
    size_t pins_max = 131'072;
    size_t events_max = 65'536;  // how many events are kept for watchers (EventRing)
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
    BlockStatus status = BlockStatus::kOk;  // kOk, kFull, or kInvalid (a size is 0 or above a slab)
    Duration retry_after{};                 // if kFull: the writer should ask again after this
    ExtentReservation reservation;
  };
  // Reserves all sizes or none, and evicts blocks for them if necessary.  Does not wait for memory
  // to become free.  Returns kFull if the sizes, in whole pages, exceed `budget` in all, or if it
  // finds no extents for them now.  Then it puts back, where possible, the blocks that it evicted.
  [[nodiscard]] ReserveResult Reserve(std::span<const ByteCount> sizes, ByteCount budget)
      LARDER_EXCLUDES(mu_);

  // What the writer of a block states about it.
  struct NewBlock {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    Digest parent;
    std::span<const uint32_t> tokens;
    const SegmentTable* table = nullptr;
    Digest content = {};  // the content whose chain this is; Digest{} if unknown
    BlockWriter writer = {};
  };
  // Publishes slot i of the reservation under the block's name.  Returns kOk if the block is
  // published.  kDuplicate: the name is taken; the extent is returned to the pool.  kFull: the
  // block cannot enter the index now; the extent is returned to the pool.  kNotHeld: the slot is
  // not open.  kInvalid: the table's payload is not as long as the bytes reserved; the slot stays
  // open.
  // The first writer of a name wins.  A name is taken while the index has it, stored or claimed,
  // even if its block is only on disk, or if a disk that has not reported the name yet
  // (AskBeforeNaming) has a record of it with other bytes.  A name that has left all tiers may be
  // published with other bytes.
  BlockStatus Publish(ExtentReservation& reservation, size_t i, const NewBlock& block)
      LARDER_EXCLUDES(mu_);

  // Claim and Fill publish in two steps, for a copy that the daemon makes: the caller claims the
  // name of the block, copies the bytes into the extent of slot i, and then calls Fill or Abandon.
  // Claim returns kOk if it has set *claim; otherwise the status means what it means for Publish.
  // The extent stays in the reservation, which the claim must not outlive.
  BlockStatus Claim(const ExtentReservation& reservation, size_t i, const NewBlock& block,
                    EntryRef* claim);
  // Ends the claim, whatever it returns.  On kOk the block is published.  Otherwise the status
  // means what it means for Publish, but the extent stays in the reservation.
  // REQUIRES: slot i is open.
  BlockStatus Fill(ExtentReservation& reservation, size_t i, const NewBlock& block, EntryRef claim)
      LARDER_EXCLUDES(mu_);
  void Abandon(EntryRef claim);

  // ---- reading
  struct AcquireResult {
    BlockLease lease;
    // For each key; ref 0: not held.  Metadata of a block in HOST is valid until the lease ends.
    std::vector<BlockIndex::Held> blocks;
  };
  // Holds the blocks that are in HOST, in key order, up to `budget` bytes; a block that would
  // exceed the budget is marked `full`.  HoldWhat::kAnyTier also holds blocks that are only on
  // disk.  They count with the bytes that they would need in HOST, and a promotion makes them
  // readable (Promoter).  A lease holds each block once: later keys of a held block are marked
  // `repeated`.  A block that would then have more than kCrowdedHolds holds is also marked `full`
  // if may_crowd(ref) returns false.  A block that is marked `full` is not held.
  [[nodiscard]] AcquireResult Acquire(
      VariantIndex variant, std::span<const Digest> digests, ByteCount budget,
      HoldWhat what = HoldWhat::kHost,
      absl::FunctionRef<bool(EntryRef)> may_crowd = [](EntryRef) { return true; });

  // ---- leaving
  // The caller has found a held block damaged in tier `where`.  If that is HOST, does what
  // BlockIndex::DropHostCopy does, so a copy on disk may stay; otherwise the block leaves all
  // tiers.  Bytes that leave HOST are freed when the last hold ends.
  void DropDamaged(EntryRef held, Tier where = Tier::kHost) LARDER_EXCLUDES(mu_);
  bool Drop(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);
  // Removes the block from `tiers` (BlockIndex::Clear).  The store frees an extent that leaves
  // HOST, and TakeFreedExtents returns a record that leaves the disk, each after the last hold.
  ClearedBlock Clear(VariantIndex variant, const Digest& digest, TierSet tiers, ClearHow how)
      LARDER_EXCLUDES(mu_);
  // Evicts up to `blocks_max` blocks from HOST until Options::free_watermark of the online part of
  // the pool is free, or it finds no block to evict, so that later reservations need not evict.
  // Returns how many blocks it evicted.
  size_t EvictToWatermark(size_t blocks_max) LARDER_EXCLUDES(mu_);

  // ---- The disk: for the threads that move bytes between the tiers (Spiller, Promoter).

  // TierWorker calls this when `disk` may have blocks whose names the index does not know yet, and
  // later with nullptr.  In between, Publish and Fill ask the disk for the name, and may wait for
  // the answer (DiskTier::FindUntold).  If the disk finds a record, the new block is a duplicate,
  // unless its bytes, which Publish and Fill hash, are those of the record.
  // REQUIRES: `disk` outlives all calls of the store.
  void AskBeforeNaming(DiskTier* disk) { untold_.store(disk, std::memory_order_release); }
  [[nodiscard]] bool asks_disk() const {
    return untold_.load(std::memory_order_acquire) != nullptr;
  }
  // Returns the variant's number, and keeps the spec that is registered first for it (SpecOf).
  // Returns ResourceExhausted if there are too many variants.
  [[nodiscard]] absl::StatusOr<VariantIndex> RegisterVariant(const VariantSpec& spec)
      LARDER_EXCLUDES(disk_mu_);
  // Returns the spec that RegisterVariant has kept, or nullptr if there is none: blocks on disk or
  // pins may name the id of a variant that is not registered.
  [[nodiscard]] std::shared_ptr<const VariantSpec> SpecOf(VariantIndex variant) const
      LARDER_EXCLUDES(disk_mu_);
  // What EnterFromDisk returns if the block cannot enter now but may later.
  static constexpr EntryRef kNotNow{UINT32_MAX};
  // Enters a block that was stored on disk before the daemon started, and returns its entry.
  // Returns {} if the name already has a copy on disk, kNotNow if the name is claimed or the index
  // has no capacity for it.  If the block is in HOST only, the record becomes its disk copy if the
  // block is `same`, which the caller holds and whose bytes the caller has found to be the
  // record's; otherwise returns kNotNow.
  [[nodiscard]] EntryRef EnterFromDisk(const Digest& variant_id, const Digest& digest,
                                       const Digest& parent, uint64_t location, uint32_t pages,
                                       EntryRef same = {});
  // The caller calls this when a held block has become durable at `location`.  Returns the block's
  // former location on disk, which the caller must erase, or 0 if it was not on disk.  Returns
  // nullopt if the block has left HOST meanwhile; the caller must then erase the new record.
  [[nodiscard]] std::optional<uint64_t> SetOnDisk(EntryRef held, uint64_t location);
  // The caller has read a held block, for which BeginPromote returned true, into slot 0 of the
  // reservation.  The extent becomes the block's, which is then in HOST.  Returns false, and leaves
  // the extent in the reservation, if the block's name was dropped meanwhile.
  [[nodiscard]] bool FinishPromote(EntryRef held, ExtentReservation& reservation,
                                   std::unique_ptr<const BlockMetadata> metadata)
      LARDER_EXCLUDES(mu_);
  // The caller has written a held block's bytes, encoded or decoded, into slot 0 of the
  // reservation.  The extent replaces the block's extent in HOST, which is freed.  Returns false,
  // and leaves the extent in the reservation, if there is another hold on the block or it has left
  // HOST.
  [[nodiscard]] bool ReplaceInHost(EntryRef held, ExtentReservation& reservation,
                                   std::unique_ptr<const BlockMetadata> metadata)
      LARDER_EXCLUDES(mu_);
  // Evicts blocks from disk, or only the disk copies of blocks in HOST, until they have at least
  // `bytes` bytes in all, by EvictedFromDisk::pages, or it finds none to evict.  TakeFreedExtents
  // then returns their records.  Returns how many of the bytes it could not evict.
  ByteCount EvictFromDisk(ByteCount bytes) LARDER_EXCLUDES(disk_mu_);
  // Evicts the disk copies of these blocks, except of blocks that are held or pinned.
  // TakeFreedExtents then returns their records.
  void EvictFromDisk(std::span<const EntryRef> blocks) LARDER_EXCLUDES(disk_mu_);
  // Returns the worth of the block on disk, per byte; nullopt if the disk copy may not be evicted.
  [[nodiscard]] std::optional<double> WorthOnDisk(EntryRef block) const {
    return index_.WorthOnDisk(block, NowSeconds());
  }
  // Removes and returns up to `count` of the records on disk that blocks have left.  The caller
  // must erase them in the disk tier.
  [[nodiscard]] std::vector<FreedExtent> TakeFreedExtents(size_t count) LARDER_EXCLUDES(disk_mu_);
  // Whether TakeFreedExtents would return any record.
  [[nodiscard]] bool has_freed_extents() const LARDER_EXCLUDES(disk_mu_);
  // Holds a block that is in HOST or on disk, without counting a use.  The result's ref is 0 if no
  // tier has the block or it has kHoldsMax holds; otherwise the caller must Unhold it.
  [[nodiscard]] BlockIndex::Held HoldUntouched(VariantIndex variant, const Digest& digest);
  // Adds a hold to each of these blocks, which the caller already holds.  Returns false, and adds
  // no hold, if one of the blocks already has kClientHoldsMax holds.
  [[nodiscard]] bool HoldAgain(std::span<const EntryRef> held) { return index_.HoldAgain(held); }
  void Unhold(std::span<const EntryRef> held) { ReleaseHolds(held); }

  // Hashes a held block if it is not hashed yet.  Returns false if `held` has no metadata, as for a
  // block on disk only.
  [[nodiscard]] bool EnsureHashed(const BlockIndex::Held& held) const;
  // Checks the segments of `range` of a held block against their hashes.  If the block is not
  // hashed yet, hashes it instead and returns true.  Returns false if a segment is damaged or there
  // is no metadata.
  [[nodiscard]] bool Check(const BlockIndex::Held& held, const SegmentRange& range) const;

  [[nodiscard]] std::span<std::byte> Bytes(const Extent& extent) const {
    return pool_.Bytes(extent);
  }
  [[nodiscard]] BlockIndex& index() { return index_; }
  [[nodiscard]] const BlockIndex& index() const { return index_; }
  [[nodiscard]] BlockPins& pins() { return pins_; }
  [[nodiscard]] SlabPool& pool() { return pool_; }
  // How many bytes of the pool one process may lease (Options::lease_share).
  [[nodiscard]] ByteCount lease_budget() const;
  [[nodiscard]] double lease_share() const { return options_.lease_share; }

  struct Stats {
    ByteCount pool_limit, pool_online, pool_free, pool_stored, pool_reserved, pool_leased;
    uint64_t blocks = 0, disk_only = 0, reservations = 0, leases = 0;
    uint64_t evicted_demand = 0, evicted_watermark = 0, duplicates = 0, damaged = 0, full = 0;
    uint64_t evicted_disk = 0, evicted_unspilled = 0;
    ByteCount index_bytes, metadata_bytes;
    uint64_t pins = 0;
    ByteCount pinned_host, pinned_disk;  // from BlockIndex::PinnedBytes
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);
  void CheckInvariants() const LARDER_EXCLUDES(mu_);

 private:
  friend class ExtentReservation;
  friend class BlockLease;

  [[nodiscard]] uint32_t NowSeconds() const;
  // Allocates `pages` pages, and evicts blocks if necessary.  Appends the evicted blocks to *gone,
  // and frees their extents.  Returns nullopt if it finds no extent even then; *gone still has what
  // it evicted.
  [[nodiscard]] std::optional<Extent> AllocateEvicting(uint32_t pages,
                                                       std::vector<BlockIndex::Evicted>* gone)
      LARDER_REQUIRES(mu_);
  // Evicts the blocks of one window (ExtentAllocator::FindWindow), appends them to *gone, and frees
  // their extents.  Returns false if it freed no page.
  bool EvictWindow(uint32_t pages, std::vector<BlockIndex::Evicted>* gone) LARDER_REQUIRES(mu_);
  void FreeAll(ExtentReservation& reservation) LARDER_REQUIRES(mu_);
  // Puts back, as far as possible, the blocks that a reservation evicted before it failed, under
  // the same lock of mu_.  Returns holds that the caller must end after it has unlocked mu_.
  [[nodiscard]] std::vector<EntryRef> PutBack(std::vector<BlockIndex::Evicted> gone)
      LARDER_REQUIRES(mu_);
  void FreeExtents(std::span<const Extent> extents) LARDER_EXCLUDES(mu_);
  void GiveBack(const std::optional<Extent>& freed, const FreedExtent& on_disk)
      LARDER_EXCLUDES(mu_);
  void KeepFreedExtents(std::span<const FreedExtent> on_disk) LARDER_EXCLUDES(disk_mu_);
  void CountEviction(const BlockIndex::Evicted& gone);
  // Asks the disk of AskBeforeNaming, if any, for this name.  kOk: the block may have the name.
  // kDuplicate: the disk has a record of this name with other bytes.  kFull: the disk cannot say
  // now.
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
