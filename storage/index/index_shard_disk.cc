// What a shard does about blocks that are on disk, alone or beside HOST.
#include <algorithm>
#include <utility>

#include "storage/index/index_shard.h"

namespace larder {
namespace {

constexpr uint32_t kNone = EntrySlots::kNone;

}  // namespace

uint32_t IndexShard::PagesFromDisk(const IndexEntry& entry) {
  const BlockMetadata* const metadata = entry.metadata();
  const bool encoded = metadata != nullptr && metadata->encoded();
  return encoded ? PagesFor(metadata->raw_payload_bytes()) : entry.extent.pages();
}

void IndexShard::BecomeDisk(uint32_t slot, uint32_t pages, uint64_t parent_hash) {
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entry.disk_location != 0 && !entry.listed);
  entry.extent.Set({.slab = {}, .page = 0, .pages = pages});
  SetState(entry, BlockState::kDisk);
  CountPinned(entry, 1);
  entry.parent_hash = parent_hash;
  variants_.CountDiskOnly(entry.variant);
  ++disk_only_;
  Relist(slot);
}

IndexShard::EnterResult IndexShard::InsertOnDisk(uint64_t hash, const BlockOnDisk& block,
                                                 uint32_t same, Raised& raised, uint32_t now_s,
                                                 uint32_t* slot) {
  LARDER_CHECK(block.location != 0);
  MutexLock lock(mu_);
  *slot = Find(hash, block.variant, block.digest);
  if (*slot != kNone && entries_[*slot].state == BlockState::kHost) {
    if (*slot != same) return EnterResult::kBusy;
    // The copy on disk is as good as one that was just spilled.
    ChangeState(*slot, BlockState::kHostDisk);
    entries_[*slot].disk_location = block.location;
    return EnterResult::kEntered;
  }
  if (*slot != kNone && entries_[*slot].state == BlockState::kReserved) return EnterResult::kBusy;
  const EnterResult result = Enter(hash, block.variant, block.digest, slot);
  if (result != EnterResult::kEntered) return result;
  IndexEntry& entry = entries_[*slot];
  entry.disk_location = block.location;
  entry.counted_in_parent = std::exchange(raised.counted_by, std::nullopt).has_value();
  Remember(entry, {}, now_s);
  entry.last_use_s = now_s;
  BecomeDisk(*slot, block.pages, IndexHash(block.variant, block.parent));
  return result;
}

// Who holds the damaged bytes keeps the old entry to the end, so the name goes on in another.
std::optional<IndexShard::Departure> IndexShard::DropHostCopy(uint32_t slot) {
  MutexLock lock(mu_);
  if (!InUse(slot) || !InHost(entries_[slot].state)) return std::nullopt;
  // The disk may know the name by the new place already, and FinishRewrite tells that to this entry
  // alone: a second entry would keep the old place.  A later check finds the damage again.
  if (rewritten_.contains(slot)) return std::nullopt;
  const IndexEntry before = entries_[slot];
  LARDER_CHECK(before.holds > 0);
  const uint64_t parent = ParentHash(before).value_or(0);
  const uint32_t pages = PagesFromDisk(before);
  Departure gone = Leave(slot);
  if (before.state != BlockState::kHostDisk) return gone;
  const uint32_t moved = AddNamed(HashOf(before), before.variant, before.digest);
  if (moved == kNone) return gone;
  IndexEntry& entry = entries_[moved];
  entry.disk_location = std::exchange(entries_[slot].disk_location, 0);
  entry.counted_in_parent = std::exchange(gone.counted_by, std::nullopt).has_value();
  entry.children = before.children;
  entry.follower = before.follower;
  entry.history = before.history;
  entry.last_use_s = before.last_use_s;
  entry.pinned_host = before.pinned_host;
  entry.pinned_disk = before.pinned_disk;
  (void)departed_.Take(HashOf(entry));  // it has not left
  BecomeDisk(moved, pages, parent);
  return gone;
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
  if (entry.state != BlockState::kHostDisk && entry.state != BlockState::kDisk) return false;
  rewritten_.insert(slot);
  if (entry.state == BlockState::kHostDisk) return true;
  Unlist(slot);  // held untouched
  SetState(entry, BlockState::kPromoting);
  return true;
}

bool IndexShard::FinishRewrite(uint32_t slot, uint64_t location) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(InUse(slot) && entry.holds > 0);
  rewritten_.erase(slot);
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
  if (entry.listed) CountListed(entry.extent.pages(), false);  // held untouched
  variants_.Uncount(entry.variant, entry.extent.Get().bytes());
  std::unique_ptr<const BlockMetadata> former = TakeMetadata(entry);
  metadata_bytes_ += (*metadata)->memory_bytes().value();
  entry.owned_metadata = metadata->release();
  entry.extent.Set(extent);
  variants_.Count(entry.variant, extent.bytes());
  if (entry.listed) CountListed(extent.pages, true);
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
          .last_use_s = gone.block.last_use_s};
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
FreedExtent IndexShard::DropCopy(uint32_t slot) {
  ChangeState(slot, BlockState::kHost);
  IndexEntry& entry = entries_[slot];
  return {entry.variant, entry.digest, std::exchange(entry.disk_location, 0)};
}

std::optional<double> IndexShard::WorthOnDisk(uint32_t slot, const EvictionPolicy& policy,
                                              uint32_t now_s) const {
  MutexLock lock(mu_);
  if (!EvictableFromDiskLocked(slot)) return std::nullopt;
  return WorthOf(entries_[slot], policy, now_s);
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
