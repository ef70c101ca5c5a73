// The part of BlockStore that concerns the disk tier: blocks that are found on disk, spilled,
// promoted and evicted from disk.
#include <algorithm>
#include <utility>

#include "storage/check.h"
#include "storage/status_macros.h"
#include "storage/store/block_store.h"

namespace larder {

absl::StatusOr<VariantIndex> BlockStore::RegisterVariant(const VariantSpec& spec) {
  absl::StatusOr<VariantIndex> index = index_.InternVariant(spec.Id());
  LARDER_RETURN_IF_ERROR(index.status());
  MutexLock lock(disk_mu_);
  std::shared_ptr<const VariantSpec>& known = specs_[*index];
  if (!known) known = std::make_shared<const VariantSpec>(spec);
  return index;
}

std::shared_ptr<const VariantSpec> BlockStore::SpecOf(VariantIndex variant) const {
  MutexLock lock(disk_mu_);
  const auto it = specs_.find(variant);
  return it == specs_.end() ? nullptr : it->second;
}

EntryRef BlockStore::EnterFromDisk(const Digest& variant_id, const Digest& digest,
                                   const Digest& parent, uint64_t location, uint32_t pages,
                                   EntryRef same) {
  const absl::StatusOr<VariantIndex> variant = index_.InternVariant(variant_id);
  if (!variant.ok()) return kNotNow;
  EntryRef ref;
  const BlockIndex::InsertResult result = index_.InsertOnDisk({.variant = *variant,
                                                               .digest = digest,
                                                               .parent = parent,
                                                               .location = location,
                                                               .pages = pages},
                                                              same, NowSeconds(), &ref);
  if (result == BlockIndex::InsertResult::kDuplicate) return {};
  if (result != BlockIndex::InsertResult::kInserted) return kNotNow;
  pins_.Entered(*variant, digest);
  return ref;
}

BlockIndex::Held BlockStore::HoldUntouched(VariantIndex variant, const Digest& digest) {
  BlockIndex::Held held;
  index_.Hold(variant, {&digest, 1}, NowSeconds(), {&held, 1}, HoldWhat::kUntouched);
  return held;
}

std::optional<uint64_t> BlockStore::SetOnDisk(EntryRef held, uint64_t location) {
  return index_.SetOnDisk(held, location);
}

bool BlockStore::FinishPromote(EntryRef held, ExtentReservation& reservation,
                               std::unique_ptr<const BlockMetadata> metadata) {
  LARDER_CHECK(reservation.open(0));
  MutexLock lock(mu_);
  const Extent extent = reservation.extent(0);
  if (!index_.FinishPromote(held, extent, std::move(metadata), NowSeconds())) return false;
  (void)reservation.Take(0);
  reserved_pages_ -= extent.pages;
  allocator_.SetOwner(extent, held.value);
  return true;
}

bool BlockStore::ReplaceInHost(EntryRef held, ExtentReservation& reservation,
                               std::unique_ptr<const BlockMetadata> metadata) {
  LARDER_CHECK(reservation.open(0));
  MutexLock lock(mu_);
  // The extent cannot change until ReplaceInHost: only a caller that also holds the block could
  // change it, and ReplaceInHost fails if there is another hold.
  const Extent former = index_.LookAt(held).extent;
  const Extent extent = reservation.extent(0);
  if (!index_.ReplaceInHost(held, extent, &metadata)) return false;
  (void)reservation.Take(0);
  reserved_pages_ -= extent.pages;
  allocator_.SetOwner(extent, held.value);
  if (former.pages != 0) allocator_.Free(former);
  return true;
}

ByteCount BlockStore::EvictFromDisk(ByteCount bytes) {
  uint64_t left = bytes.value();
  std::vector<FreedExtent> on_disk;
  while (left > 0) {
    const std::optional<BlockIndex::EvictedFromDisk> gone = index_.EvictOneFromDisk(NowSeconds());
    if (!gone) break;
    on_disk.push_back(gone->on_disk);
    left -= std::min(left, gone->pages * kPageBytes);
  }
  evicted_disk_.fetch_add(on_disk.size(), std::memory_order_relaxed);
  KeepFreedExtents(on_disk);
  return ByteCount(left);
}

void BlockStore::EvictFromDisk(std::span<const EntryRef> blocks) {
  std::vector<FreedExtent> on_disk;
  for (const EntryRef block : blocks) {
    if (const auto gone = index_.EvictRefFromDisk(block)) on_disk.push_back(*gone);
  }
  evicted_disk_.fetch_add(on_disk.size(), std::memory_order_relaxed);
  KeepFreedExtents(on_disk);
}

void BlockStore::KeepFreedExtents(std::span<const FreedExtent> on_disk) {
  if (on_disk.empty()) return;
  MutexLock lock(disk_mu_);
  freed_extents_.insert(freed_extents_.end(), on_disk.begin(), on_disk.end());
}

std::vector<FreedExtent> BlockStore::TakeFreedExtents(size_t count) {
  MutexLock lock(disk_mu_);
  const auto end =
      freed_extents_.begin() + static_cast<std::ptrdiff_t>(std::min(count, freed_extents_.size()));
  std::vector<FreedExtent> taken(freed_extents_.begin(), end);
  freed_extents_.erase(freed_extents_.begin(), end);
  return taken;
}

bool BlockStore::has_freed_extents() const {
  MutexLock lock(disk_mu_);
  return !freed_extents_.empty();
}

}  // namespace larder
