#include "storage/store/block_store.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "storage/check.h"
#include "storage/disk/disk_tier.h"

namespace larder {
namespace {

// How long a writer should wait after kFull before it asks again.
constexpr Duration kRetryAfterFull = std::chrono::milliseconds(20);
// For an extent, AllocateEvicting first evicts at most this many blocks of little worth.  If that
// is not enough, it evicts the blocks of one window (EvictWindow).  This bounds the time under mu_.
constexpr int kEvictionsPerAllocation = 64;
// After this many evictions EvictToWatermark unlocks mu_, so that other threads can lock it.
constexpr size_t kEvictionBatch = 32;

// The set of entries that one call of Acquire holds: an open-addressing table.
class HeldOnce {
 public:
  explicit HeldOnce(size_t keys) : places_(std::bit_ceil(2 * keys)) {}
  // Returns the cell for `ref`: ref.value if `ref` is in the set, otherwise 0; the caller adds
  // `ref` by writing ref.value there.  The daemon chooses the references, so no client can choose
  // which of them collide.
  [[nodiscard]] uint32_t& PlaceOf(EntryRef ref) {
    size_t at = (ref.value * uint64_t{0x9E3779B97F4A7C15}) >> 32;
    while (places_[at &= places_.size() - 1] != 0 && places_[at] != ref.value) ++at;
    return places_[at];
  }

 private:
  std::vector<uint32_t> places_;
};

ByteCount ShareOf(ByteCount of, double share) {
  return ByteCount(static_cast<uint64_t>(static_cast<double>(of.value()) * share));
}

}  // namespace

// ---- handles

ExtentReservation& ExtentReservation::operator=(ExtentReservation&& other) noexcept {
  if (this != &other) {
    Reset();
    store_ = std::exchange(other.store_, nullptr);
    slots_ = std::exchange(other.slots_, {});
    held_ = std::exchange(other.held_, ByteCount(0));
  }
  return *this;
}

Extent ExtentReservation::Take(size_t i) {
  const Extent extent = std::exchange(slots_[i].extent, Extent{});
  held_ -= extent.bytes();
  return extent;
}

ExtentReservation ExtentReservation::Split(size_t i) {
  ExtentReservation one;
  if (!open(i)) return one;
  one.slots_.push_back({Take(i), slots_[i].bytes});
  one.held_ = one.slots_[0].extent.bytes();
  one.store_ = store_;
  store_->reservations_.fetch_add(1, std::memory_order_relaxed);
  return one;
}

void ExtentReservation::Return(size_t i) {
  if (!open(i)) return;
  const Extent extent = Take(i);
  MutexLock lock(store_->mu_);
  store_->reserved_pages_ -= extent.pages;
  store_->allocator_.Free(extent);
}

void ExtentReservation::Reset() {
  if (store_ == nullptr) return;
  {
    MutexLock lock(store_->mu_);
    for (Slot& slot : slots_) {
      if (slot.extent.pages == 0) continue;
      store_->reserved_pages_ -= slot.extent.pages;
      store_->allocator_.Free(slot.extent);
    }
  }
  store_->reservations_.fetch_sub(1, std::memory_order_relaxed);
  store_ = nullptr;
  slots_.clear();
  held_ = ByteCount(0);
}

BlockLease& BlockLease::operator=(BlockLease&& other) noexcept {
  if (this != &other) {
    Reset();
    store_ = std::exchange(other.store_, nullptr);
    refs_ = std::exchange(other.refs_, {});
    held_ = std::exchange(other.held_, ByteCount(0));
  }
  return *this;
}

void BlockLease::Reset() {
  if (store_ == nullptr) return;
  store_->ReleaseHolds(refs_);
  store_->leases_.fetch_sub(1, std::memory_order_relaxed);
  store_->leased_bytes_.fetch_sub(held_.value(), std::memory_order_relaxed);
  store_ = nullptr;
  refs_.clear();
  held_ = ByteCount(0);
}

// ---- the store

BlockStore::BlockStore(const Options& options, SlabPool& pool, const Clock& clock)
    : options_(options),
      pool_(pool),
      clock_(clock),
      start_(clock.Now()),
      index_(options.events_max),
      pins_({.pins_max = options.pins_max,
             .host_bytes_max = ShareOf(pool.total_bytes(), options.pin_share),
             .disk_bytes_max = options.disk_limit == ByteCount(0)
                                   ? ByteCount(UINT64_MAX)
                                   : ShareOf(options.disk_limit, options.pin_share)},
            index_),
      allocator_(pool.slab_bytes()) {}

BlockStore::~BlockStore() {
  LARDER_CHECK(reservations_.load() == 0 &&
               leases_.load() == 0);  // handles must not outlive their store
}

void BlockStore::AddSlab(SlabId slab) {
  MutexLock lock(mu_);
  allocator_.AddSlab(slab);
}

uint32_t BlockStore::NowSeconds() const {
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(clock_.Now() - start_).count());
}

ByteCount BlockStore::lease_budget() const {
  return ShareOf(pool_.total_bytes(), options_.lease_share);
}

BlockStore::ReserveResult BlockStore::Reserve(std::span<const ByteCount> sizes, ByteCount budget) {
  ReserveResult result;
  ByteCount total;
  for (const ByteCount bytes : sizes) {
    if (bytes.value() == 0 || bytes > pool_.slab_bytes()) {
      result.status = BlockStatus::kInvalid;
      return result;
    }
    total += ByteCount(RoundUp(bytes.value(), kPageBytes));
  }
  result.retry_after = kRetryAfterFull;
  result.status = BlockStatus::kFull;
  if (total > budget) {
    full_.fetch_add(1, std::memory_order_relaxed);
    return result;
  }
  ExtentReservation reservation;
  reservation.slots_.reserve(sizes.size());
  reservations_.fetch_add(1, std::memory_order_relaxed);
  reservation.store_ = this;
  std::vector<BlockIndex::Evicted> gone;  // their metadata is freed without the lock
  std::vector<EntryRef> held;
  bool complete = true;
  {
    MutexLock lock(mu_);
    complete =
        total.value() <= allocator_.free_bytes().value() + index_.evictable_pages() * kPageBytes;
    for (size_t i = 0; i < sizes.size() && complete; ++i) {
      const std::optional<Extent> extent = AllocateEvicting(PagesFor(sizes[i]), &gone);
      complete = extent.has_value();
      if (!complete) break;
      reserved_pages_ += extent->pages;
      reservation.slots_.push_back({*extent, sizes[i]});
      reservation.held_ += extent->bytes();
    }
    if (complete) {
      evicted_demand_.fetch_add(gone.size(), std::memory_order_relaxed);
      for (const BlockIndex::Evicted& block : gone) CountEviction(block);
    } else {
      FreeAll(reservation);
      held = PutBack(std::exchange(gone, {}));
    }
  }
  if (!complete) {
    ReleaseHolds(held);
    full_.fetch_add(1, std::memory_order_relaxed);
    return result;
  }
  result.status = BlockStatus::kOk;
  result.reservation = std::move(reservation);
  return result;
}

void BlockStore::FreeAll(ExtentReservation& reservation) {
  for (size_t i = 0; i < reservation.size(); ++i) {
    if (!reservation.open(i)) continue;
    const Extent extent = reservation.Take(i);
    reserved_pages_ -= extent.pages;
    allocator_.Free(extent);
  }
}

// The bytes of these blocks are unchanged: no reservation with their extents was returned.
std::vector<EntryRef> BlockStore::PutBack(std::vector<BlockIndex::Evicted> gone) {
  std::vector<EntryRef> held;
  for (BlockIndex::Evicted& block : gone) {
    const Extent extent = block.extent;
    const bool kept_on_disk = block.kept_on_disk;
    EntryRef ref, hold;
    if (extent.pages != 0) LARDER_CHECK(allocator_.AllocateAt(extent));
    const bool back = index_.PutBack(std::move(block), &ref, &hold);
    if (hold.value != 0) held.push_back(hold);
    if (back && extent.pages != 0) allocator_.SetOwner(extent, ref.value);
    if (back) continue;
    if (extent.pages != 0) allocator_.Free(extent);
    evicted_demand_.fetch_add(1, std::memory_order_relaxed);
    if (!kept_on_disk) evicted_unspilled_.fetch_add(1, std::memory_order_relaxed);
  }
  return held;
}

std::optional<Extent> BlockStore::AllocateEvicting(uint32_t pages,
                                                   std::vector<BlockIndex::Evicted>* gone) {
  const uint32_t now_s = NowSeconds();
  for (int tries = 0; tries < kEvictionsPerAllocation; ++tries) {
    if (std::optional<Extent> extent = allocator_.Allocate(pages)) return extent;
    // Enough pages are free, but scattered: EvictWindow follows, instead of emptying the pool.
    if (allocator_.free_bytes() >= ByteCount(uint64_t{2} * pages * kPageBytes)) break;
    std::optional<BlockIndex::Evicted> block = index_.EvictOne(now_s);
    if (!block) break;
    if (block->extent.pages != 0) allocator_.Free(block->extent);
    gone->push_back(*std::move(block));
  }
  if (std::optional<Extent> extent = allocator_.Allocate(pages)) return extent;
  return EvictWindow(pages, gone) ? allocator_.Allocate(pages) : std::nullopt;
}

bool BlockStore::EvictWindow(uint32_t pages, std::vector<BlockIndex::Evicted>* gone) {
  const std::vector<ExtentAllocator::Owner> owners = allocator_.FindWindow(
      pages, &window_cursor_, [this, now_s = NowSeconds()](ExtentAllocator::Owner owner) {
        return index_.WorthInHost(EntryRef{owner}, now_s);
      });
  bool any = false;
  for (const ExtentAllocator::Owner owner : owners) {
    std::optional<BlockIndex::Evicted> block = index_.EvictRef(EntryRef{owner});
    if (!block) continue;
    any = any || block->extent.pages != 0;
    if (block->extent.pages != 0) allocator_.Free(block->extent);
    gone->push_back(*std::move(block));
  }
  return any;
}

BlockStatus BlockStore::Publish(ExtentReservation& reservation, size_t i, const NewBlock& block) {
  if (!reservation.open(i)) return BlockStatus::kNotHeld;
  if (block.table->PayloadBytes() != reservation.bytes(i)) return BlockStatus::kInvalid;
  if (const BlockStatus asked = AskDisk(block, reservation.extent(i)); asked != BlockStatus::kOk) {
    reservation.Return(i);
    return asked;
  }
  BlockIndex::NewBlock entry;
  entry.variant = block.variant;
  entry.digest = block.digest;
  entry.extent = reservation.extent(i);
  entry.metadata =
      BlockMetadata::Make(block.parent, block.tokens, *block.table, block.content, block.writer);
  BlockIndex::InsertResult inserted;
  {
    // Under mu_, so that no thread evicts the entry from HOST before its extent has its owner word.
    MutexLock lock(mu_);
    EntryRef ref;
    inserted = index_.Insert(std::move(entry), NowSeconds(), &ref);
    if (inserted == BlockIndex::InsertResult::kInserted) {
      const Extent extent = reservation.Take(i);
      reserved_pages_ -= extent.pages;
      allocator_.SetOwner(extent, ref.value);
      pins_.Entered(block.variant, block.digest);
      return BlockStatus::kOk;
    }
  }
  reservation.Return(i);
  if (inserted == BlockIndex::InsertResult::kFull) return BlockStatus::kFull;
  duplicates_.fetch_add(1, std::memory_order_relaxed);
  return BlockStatus::kDuplicate;
}

BlockStatus BlockStore::Claim(const ExtentReservation& reservation, size_t i, const NewBlock& block,
                              EntryRef* claim) {
  if (!reservation.open(i)) return BlockStatus::kNotHeld;
  if (block.table->PayloadBytes() != reservation.bytes(i)) return BlockStatus::kInvalid;
  switch (index_.Claim(block.variant, block.digest, claim)) {
    case BlockIndex::InsertResult::kInserted:
      return BlockStatus::kOk;
    case BlockIndex::InsertResult::kFull:
      return BlockStatus::kFull;
    case BlockIndex::InsertResult::kBusy:
    case BlockIndex::InsertResult::kDuplicate:
      break;
  }
  duplicates_.fetch_add(1, std::memory_order_relaxed);
  return BlockStatus::kDuplicate;
}

BlockStatus BlockStore::Fill(ExtentReservation& reservation, size_t i, const NewBlock& block,
                             EntryRef claim) {
  if (const BlockStatus asked = AskDisk(block, reservation.extent(i)); asked != BlockStatus::kOk) {
    index_.Abandon(claim);
    return asked;
  }
  std::unique_ptr<const BlockMetadata> metadata =
      BlockMetadata::Make(block.parent, block.tokens, *block.table, block.content, block.writer);
  MutexLock lock(mu_);
  const Extent extent = reservation.Take(i);
  reserved_pages_ -= extent.pages;
  allocator_.SetOwner(extent, claim.value);
  index_.Fill(claim, extent, std::move(metadata), NowSeconds());
  pins_.Entered(block.variant, block.digest);
  return BlockStatus::kOk;
}

// If the disk's block enters the index after this answer, it or the published block finds the name
// taken, whichever comes second.  The daemon hashes the bytes itself for the comparison: a writer
// could send the hashes of the record with other bytes.
BlockStatus BlockStore::AskDisk(const NewBlock& block, const Extent& extent) {
  DiskTier* const disk = untold_.load(std::memory_order_acquire);
  if (disk == nullptr) return BlockStatus::kOk;
  const auto known = disk->FindUntold({index_.VariantId(block.variant), block.digest});
  // The disk may have a record of this name with other bytes; publishing would then make two blocks
  // of one name.
  if (!known.ok()) return BlockStatus::kFull;
  if (!*known) return BlockStatus::kOk;
  SegmentTable table = *block.table;
  HashPayload(Bytes(extent), &table);
  if ((*known)->header.table == table) return BlockStatus::kOk;
  duplicates_.fetch_add(1, std::memory_order_relaxed);
  return BlockStatus::kDuplicate;
}

void BlockStore::Abandon(EntryRef claim) { index_.Abandon(claim); }

BlockStore::AcquireResult BlockStore::Acquire(VariantIndex variant, std::span<const Digest> digests,
                                              ByteCount budget, HoldWhat what,
                                              absl::FunctionRef<bool(EntryRef)> may_crowd) {
  AcquireResult result;
  result.blocks.resize(digests.size());
  index_.Hold(variant, digests, NowSeconds(), result.blocks, what);
  std::vector<EntryRef> surplus;
  bool refused = false;
  BlockLease& lease = result.lease;
  lease.refs_.reserve(digests.size());
  HeldOnce once(digests.size());
  for (BlockIndex::Held& held : result.blocks) {
    if (held.ref.value == 0) continue;
    uint32_t& place = once.PlaceOf(held.ref);
    if (place == held.ref.value) {
      surplus.push_back(held.ref);
      held.repeated = true;
      continue;
    }
    if (lease.held_ + held.extent.bytes() > budget || (held.crowded && !may_crowd(held.ref))) {
      surplus.push_back(held.ref);
      held = {};
      held.full = refused = true;
      continue;
    }
    place = held.ref.value;
    lease.held_ += held.extent.bytes();
    lease.refs_.push_back(held.ref);
  }
  if (refused) full_.fetch_add(1, std::memory_order_relaxed);
  if (!surplus.empty()) ReleaseHolds(surplus);
  if (!lease.refs_.empty()) {
    lease.store_ = this;
    leases_.fetch_add(1, std::memory_order_relaxed);
    leased_bytes_.fetch_add(lease.held_.value(), std::memory_order_relaxed);
  }
  return result;
}

void BlockStore::ReleaseHolds(std::span<const EntryRef> refs) {
  std::vector<Extent> freed;
  std::vector<FreedExtent> on_disk;
  index_.Unhold(refs, &freed, &on_disk);
  FreeExtents(freed);
  KeepFreedExtents(on_disk);
}

void BlockStore::FreeExtents(std::span<const Extent> extents) {
  if (extents.empty()) return;
  MutexLock lock(mu_);
  for (const Extent& extent : extents) {
    if (extent.pages != 0) allocator_.Free(extent);
  }
}

void BlockStore::DropDamaged(EntryRef held, Tier where) {
  std::optional<Extent> freed;
  FreedExtent on_disk;
  const bool dropped = where == Tier::kHost ? index_.DropHostCopy(held, &freed, &on_disk)
                                            : index_.Drop(held, &freed, &on_disk);
  if (!dropped) return;
  if (where == Tier::kHost) damaged_.fetch_add(1, std::memory_order_relaxed);
  GiveBack(freed, on_disk);
}

bool BlockStore::Drop(VariantIndex variant, const Digest& digest) {
  std::optional<Extent> freed;
  FreedExtent on_disk;
  const bool dropped = index_.Drop(variant, digest, &freed, &on_disk);
  GiveBack(freed, on_disk);
  return dropped;
}

ClearedBlock BlockStore::Clear(VariantIndex variant, const Digest& digest, TierSet tiers,
                               ClearHow how) {
  std::optional<Extent> freed;
  FreedExtent on_disk;
  const ClearedBlock block = index_.Clear(variant, digest, tiers, how, &freed, &on_disk);
  GiveBack(freed, on_disk);
  return block;
}

void BlockStore::GiveBack(const std::optional<Extent>& freed, const FreedExtent& on_disk) {
  if (freed) FreeExtents({&*freed, 1});
  if (on_disk.location != 0) KeepFreedExtents({&on_disk, 1});
}

size_t BlockStore::EvictToWatermark(size_t blocks_max) {
  size_t evicted = 0;
  while (evicted < blocks_max) {
    MutexLock lock(mu_);
    const auto low = static_cast<uint64_t>(static_cast<double>(allocator_.total_bytes().value()) *
                                           options_.free_watermark);
    for (size_t i = 0; i < kEvictionBatch && evicted < blocks_max; ++i) {
      if (allocator_.free_bytes().value() >= low) return evicted;
      const std::optional<BlockIndex::Evicted> gone = index_.EvictOne(NowSeconds());
      if (!gone) return evicted;
      if (gone->extent.pages != 0) allocator_.Free(gone->extent);
      evicted_watermark_.fetch_add(1, std::memory_order_relaxed);
      CountEviction(*gone);
      ++evicted;
    }
  }
  return evicted;
}

// Counts in evicted_unspilled_ a block that has left HOST without a copy on disk, and so is lost.
void BlockStore::CountEviction(const BlockIndex::Evicted& gone) {
  if (!gone.kept_on_disk) evicted_unspilled_.fetch_add(1, std::memory_order_relaxed);
}

bool BlockStore::EnsureHashed(const BlockIndex::Held& held) const {
  if (held.metadata == nullptr) return false;
  if (held.metadata->hashed()) return true;
  SegmentTable table = held.metadata->Table();
  HashPayload(Bytes(held.extent), &table);
  std::vector<uint64_t> hashes;
  hashes.reserve(table.segments.size());
  for (const Segment& segment : table.segments) hashes.push_back(segment.xxh3);
  held.metadata->SetHashes(hashes);
  return true;
}

bool BlockStore::Check(const BlockIndex::Held& held, const SegmentRange& range) const {
  if (held.metadata == nullptr) return false;
  // The hashes are made from these bytes, so they match.
  if (!held.metadata->hashed()) return EnsureHashed(held);
  return FirstDamaged(Bytes(held.extent), held.metadata->Table(), range) < 0;
}

BlockStore::Stats BlockStore::stats() const {
  Stats s;
  s.pool_limit = pool_.total_bytes();
  {
    MutexLock lock(mu_);
    s.pool_online = allocator_.total_bytes();
    s.pool_free = allocator_.free_bytes();
    s.pool_reserved = ByteCount(reserved_pages_ * kPageBytes);
  }
  s.pool_stored = s.pool_online - s.pool_free - s.pool_reserved;
  s.pool_leased = ByteCount(leased_bytes_.load(std::memory_order_relaxed));
  s.blocks = index_.blocks();
  s.disk_only = index_.disk_only();
  s.reservations = reservations_.load(std::memory_order_relaxed);
  s.leases = leases_.load(std::memory_order_relaxed);
  s.evicted_demand = evicted_demand_.load(std::memory_order_relaxed);
  s.evicted_watermark = evicted_watermark_.load(std::memory_order_relaxed);
  s.duplicates = duplicates_.load(std::memory_order_relaxed);
  s.damaged = damaged_.load(std::memory_order_relaxed);
  s.full = full_.load(std::memory_order_relaxed);
  s.evicted_disk = evicted_disk_.load(std::memory_order_relaxed);
  s.evicted_unspilled = evicted_unspilled_.load(std::memory_order_relaxed);
  s.index_bytes = index_.memory_bytes();
  s.metadata_bytes = index_.metadata_bytes();
  s.pins = pins_.size();
  s.pinned_host = index_.PinnedBytes(Tier::kHost);
  s.pinned_disk = index_.PinnedBytes(Tier::kDisk);
  return s;
}

void BlockStore::CheckInvariants() const {
  index_.CheckInvariants();
  pins_.CheckInvariants();
  MutexLock lock(mu_);
  allocator_.CheckInvariants();
  LARDER_CHECK(reserved_pages_ * kPageBytes + allocator_.free_bytes().value() <=
               allocator_.total_bytes().value());
}

}  // namespace larder
