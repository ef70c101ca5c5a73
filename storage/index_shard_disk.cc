// What a shard does about blocks that are on disk, alone or beside HOST.
#include <algorithm>
#include <utility>

#include "storage/index_shard.h"

namespace larder {
namespace {

constexpr uint32_t kNone = EntrySlots::kNone;

}  // namespace

IndexShard::EnterResult IndexShard::InsertOnDisk(uint64_t hash, const BlockOnDisk& block,
                                                 Raised& raised, uint32_t now_s, uint32_t* slot) {
  LARDER_CHECK(block.location != 0);
  MutexLock lock(mu_);
  // Published again before it was found: the copy on disk is as good as one that was just spilled.
  *slot = Find(hash, block.variant, block.digest);
  if (*slot != kNone && entries_[*slot].state == BlockState::kHost) {
    ChangeState(*slot, BlockState::kHostDisk);
    entries_[*slot].disk_location = block.location;
    return EnterResult::kEntered;
  }
  if (*slot != kNone && entries_[*slot].state == BlockState::kReserved) return EnterResult::kBusy;
  const EnterResult result = Enter(hash, block.variant, block.digest, slot);
  if (result != EnterResult::kEntered) return result;
  IndexEntry& entry = entries_[*slot];
  SetState(entry, BlockState::kDisk);
  entry.disk_location = block.location;
  entry.extent.Set({.slab = {}, .page = 0, .pages = block.pages});
  entry.parent_hash = IndexHash(block.variant, block.parent);
  entry.counted_in_parent = std::exchange(raised.counted_by, std::nullopt).has_value();
  Remember(entry, {}, now_s);
  entry.last_use_s = now_s;
  variants_.CountDiskOnly(block.variant);
  ++disk_only_;
  Relist(*slot);
  return result;
}

std::optional<uint64_t> IndexShard::SetOnDisk(uint32_t slot, uint64_t location) {
  LARDER_CHECK(location != 0);
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(InUse(slot) && entry.holds > 0);
  if (!InHost(entry.state)) return std::nullopt;
  // Found on disk since it was held (InsertOnDisk): the newer copy has the name there.
  if (entry.state == BlockState::kHost) ChangeState(slot, BlockState::kHostDisk);
  return std::exchange(entry.disk_location, location);
}

bool IndexShard::BeginRewrite(uint32_t slot, uint64_t location) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(InUse(slot) && entry.holds > 0);
  if (entry.holds > 1 || entry.disk_location != location) return false;
  if (entry.state == BlockState::kHostDisk) return true;
  if (entry.state != BlockState::kDisk) return false;
  Unlist(slot);  // held untouched
  SetState(entry, BlockState::kPromoting);
  return true;
}

bool IndexShard::FinishRewrite(uint32_t slot, uint64_t location) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(InUse(slot) && entry.holds > 0);
  if (entry.state == BlockState::kPromoting) SetState(entry, BlockState::kDisk);
  if (location == 0) return false;
  if (entry.state != BlockState::kDisk && entry.state != BlockState::kHostDisk) return false;
  entry.disk_location = location;
  return true;
}

bool IndexShard::ReplaceInHost(uint32_t slot, const Extent& extent,
                               std::unique_ptr<const BlockMetadata>* metadata) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(InUse(slot) && entry.holds > 0);
  if (entry.holds > 1 || !InHost(entry.state)) return false;
  CountPinned(entry, -1);
  variants_.Uncount(entry.variant, entry.extent.Get().bytes());
  std::unique_ptr<const BlockMetadata> former = TakeMetadata(entry);
  metadata_bytes_ += (*metadata)->memory_bytes().value();
  entry.owned_metadata = metadata->release();
  entry.extent.Set(extent);
  variants_.Count(entry.variant, extent.bytes());
  CountPinned(entry, 1);
  *metadata = std::move(former);
  return true;
}

bool IndexShard::BeginPromote(uint32_t slot) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(InUse(slot) && entry.holds > 0);
  if (entry.state != BlockState::kDisk) return false;
  Unlist(slot);  // held untouched
  SetState(entry, BlockState::kPromoting);
  return true;
}

bool IndexShard::FinishPromote(uint32_t slot, const Extent& extent,
                               std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                               uint32_t now_s) {
  MutexLock lock(mu_);
  LARDER_CHECK(InUse(slot) && entries_[slot].holds > 0);
  if (entries_[slot].state != BlockState::kPromoting) return false;
  variants_.UncountDiskOnly(entries_[slot].variant);
  --disk_only_;
  BecomeHost(slot, extent, std::move(metadata), raised, now_s);
  return true;
}

void IndexShard::FailPromote(uint32_t slot) {
  MutexLock lock(mu_);
  LARDER_CHECK(InUse(slot) && entries_[slot].holds > 0);
  if (entries_[slot].state == BlockState::kPromoting) SetState(entries_[slot], BlockState::kDisk);
}

HeldBlock IndexShard::LookAt(uint32_t slot) const {
  MutexLock lock(mu_);
  const IndexEntry& entry = entries_[slot];
  LARDER_CHECK(InUse(slot) && entry.holds > 0);
  HeldBlock now;
  now.state = entry.state;
  now.extent = entry.extent.Get();
  now.metadata = entry.metadata();
  now.disk_location = entry.disk_location;
  return now;
}

IndexShard::Candidate IndexShard::LeastOnDisk(const EvictionPolicy& policy, uint32_t now_s) {
  MutexLock lock(mu_);
  return LeastWorthyOf(disk_lists_, policy, false, now_s);
}

std::optional<IndexShard::DiskDeparture> IndexShard::EvictColdestFromDisk(
    const EvictionPolicy& policy, bool parents_too, uint32_t now_s) {
  MutexLock lock(mu_);
  const uint32_t least = LeastWorthyOf(disk_lists_, policy, parents_too, now_s).slot;
  if (least == kNone) return std::nullopt;
  return LeaveDisk(least);
}

IndexShard::DiskDeparture IndexShard::LeaveDisk(uint32_t slot) {
  const uint32_t pages = entries_[slot].extent.pages();
  const Departure gone = Leave(slot);
  return {.block = {{gone.block.variant, gone.block.digest, gone.block.disk_location}, pages},
          .counted_by = gone.counted_by,
          .last_use_s = gone.last_use_s};
}

std::optional<EvictedFromDisk> IndexShard::DropDiskCopy(const EvictionPolicy& policy,
                                                        uint32_t now_s) {
  MutexLock lock(mu_);
  const auto unpinned = [&](RecencyList& list)
                            LARDER_NO_THREAD_SAFETY_ANALYSIS { return ColdestUnpinnedCopy(list); };
  const uint32_t least = LeastWorthy(copied_lists_, policy, now_s, unpinned).slot;
  if (least == kNone) return std::nullopt;
  return EvictedFromDisk{DropCopy(least), entries_[least].extent.pages()};
}

// It becomes the hottest of those in HOST alone: they are mostly what lost its copy before it, so
// the order of use stays.
DiskRoom IndexShard::DropCopy(uint32_t slot) {
  ChangeState(slot, BlockState::kHost);
  IndexEntry& entry = entries_[slot];
  return {entry.variant, entry.digest, std::exchange(entry.disk_location, 0)};
}

bool IndexShard::EvictableFromDisk(uint32_t slot) const {
  MutexLock lock(mu_);
  return EvictableFromDiskLocked(slot);
}

bool IndexShard::EvictableFromDiskLocked(uint32_t slot) const {
  if (!InUse(slot)) return false;
  const IndexEntry& entry = entries_[slot];
  return MayLeave(entry) && !entry.pinned_disk &&
         (entry.state == BlockState::kDisk || entry.state == BlockState::kHostDisk);
}

std::optional<IndexShard::DiskDeparture> IndexShard::EvictFromDisk(uint32_t slot) {
  MutexLock lock(mu_);
  if (!EvictableFromDiskLocked(slot)) return std::nullopt;
  if (entries_[slot].state != BlockState::kHostDisk) return LeaveDisk(slot);
  DiskDeparture copy;
  copy.block = {DropCopy(slot), entries_[slot].extent.pages()};
  return copy;
}

}  // namespace larder
