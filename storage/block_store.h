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
// release take no lock of the store unless an extent comes free.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/block_index.h"
#include "storage/clock.h"
#include "storage/eviction.h"
#include "storage/extent_allocator.h"
#include "storage/mutex.h"
#include "storage/slab_pool.h"
#include "storage/types.h"

namespace larder {

class BlockStore;

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
  // is held.
  [[nodiscard]] ReserveResult Reserve(std::span<const ByteCount> sizes, ByteCount budget)
      LARDER_EXCLUDES(mu_);

  // What a writer says of a block.
  struct NewBlock {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    Digest parent;
    std::span<const uint32_t> tokens;
    const SegmentTable* table = nullptr;
  };
  // Makes slot i of the reservation visible under the name.  kOk, kDuplicate (the extent goes
  // back), kNotHeld, kInvalid (the table's payload is not the bytes reserved), kFull (index full).
  BlockStatus Publish(ExtentReservation& reservation, size_t i, const NewBlock& block)
      LARDER_EXCLUDES(mu_);

  // The same in two steps, for a daemon-side copy: claim the name, copy, then Fill or Abandon.
  // The claim must not outlive the reservation.
  BlockStatus Claim(const ExtentReservation& reservation, size_t i, const NewBlock& block,
                    EntryRef* claim);
  void Fill(ExtentReservation& reservation, size_t i, const NewBlock& block, EntryRef claim)
      LARDER_EXCLUDES(mu_);
  void Abandon(EntryRef claim);

  // ---- reading
  struct AcquireResult {
    BlockLease lease;
    std::vector<BlockIndex::Held>
        blocks;  // per key; metadata valid while the lease holds; ref 0 = missing or full
  };
  // Holds what is in HOST, in key order, up to `budget` bytes; keys beyond it come back `full`.
  [[nodiscard]] AcquireResult Acquire(VariantIndex variant, std::span<const Digest> digests,
                                      ByteCount budget);

  // ---- leaving
  // A block was found damaged: its name goes at once, its bytes with the last lease.
  void DropDamaged(EntryRef held) LARDER_EXCLUDES(mu_);
  bool Drop(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);
  // Eviction ahead of need: up to `blocks_max` blocks until the watermark holds.  Answers how many
  // left.  For whoever just reserved, after his answer, and for the background.
  size_t EvictToWatermark(size_t blocks_max) LARDER_EXCLUDES(mu_);

  // Hashes a held block whose writer left that to the daemon; then checks `range`.  False: damaged.
  [[nodiscard]] bool EnsureHashed(const BlockIndex::Held& held) const;
  [[nodiscard]] bool Check(const BlockIndex::Held& held, const SegmentRange& range) const;

  [[nodiscard]] std::span<std::byte> Bytes(const Extent& extent) const {
    return pool_.Bytes(extent);
  }
  [[nodiscard]] BlockIndex& index() { return index_; }
  [[nodiscard]] const BlockIndex& index() const { return index_; }
  [[nodiscard]] SlabPool& pool() { return pool_; }
  [[nodiscard]] ByteCount lease_budget() const;  // of a session

  struct Stats {
    ByteCount pool_limit, pool_online, pool_free, pool_stored, pool_reserved, pool_leased;
    uint64_t blocks = 0, reservations = 0, leases = 0;
    uint64_t evicted_demand = 0, evicted_watermark = 0, duplicates = 0, damaged = 0, full = 0;
    ByteCount index_bytes, metadata_bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);
  void CheckInvariants() const LARDER_EXCLUDES(mu_);

 private:
  friend class ExtentReservation;
  friend class BlockLease;

  [[nodiscard]] uint32_t NowSeconds() const;
  [[nodiscard]] std::optional<Extent> AllocateEvicting(uint32_t pages) LARDER_REQUIRES(mu_);
  bool EvictWindow(uint32_t pages) LARDER_REQUIRES(mu_);
  void FreeExtents(std::span<const Extent> extents) LARDER_EXCLUDES(mu_);
  void ReleaseHolds(std::span<const EntryRef> refs) LARDER_EXCLUDES(mu_);

  const Options options_;
  SlabPool& pool_;
  const Clock& clock_;
  const TimePoint start_;
  const EvictionPolicy policy_;
  BlockIndex index_;

  mutable Mutex mu_;
  ExtentAllocator allocator_ LARDER_GUARDED_BY(mu_);
  uint64_t window_cursor_ LARDER_GUARDED_BY(mu_) = 0;
  uint64_t reserved_pages_ LARDER_GUARDED_BY(mu_) = 0;

  std::atomic<uint64_t> reservations_{0}, leases_{0}, leased_bytes_{0};
  std::atomic<uint64_t> evicted_demand_{0}, evicted_watermark_{0}, duplicates_{0}, damaged_{0},
      full_{0};
};

}  // namespace larder
