// What a shard does for Clear: it says which blocks continue which, and takes a block from the
// tiers that were chosen.
#include <algorithm>

#include "storage/index/index_shard.h"

namespace larder {

// A pin of HOST keeps the copy on disk too; one of DISK keeps a block in HOST until there is one.
ClearedBlock IndexShard::WhatClearTakes(const IndexEntry& entry, TierSet tiers, ClearHow how) {
  const TierSet there = TiersOf(entry.state), going = there & tiers;
  ClearedBlock block{.tiers = going, .pages = entry.extent.pages()};
  if (going == 0) return block;
  const bool stays = going != there;
  if (!stays && how == ClearHow::kKeepLastCopy) return block;
  const bool from_disk = (going & TierBit(Tier::kDisk)) != 0;
  if (entry.pinned_host || (entry.pinned_disk && (from_disk || !stays))) {
    block.status = ClearedBlock::Status::kPinned;
  } else if ((stays && entry.holds > 0) || entry.holds == kHoldsMax) {
    block.status = ClearedBlock::Status::kInUse;
  } else {
    block.status = ClearedBlock::Status::kCleared;
    block.leased = entry.holds > 0;
    block.leased_location = block.leased ? entry.disk_location : 0;
  }
  return block;
}

IndexShard::Clearance IndexShard::Clear(uint64_t hash, VariantIndex variant, const Digest& digest,
                                        TierSet tiers, ClearHow how) {
  MutexLock lock(mu_);
  Clearance clearance;
  const uint32_t slot = Find(hash, variant, digest);
  if (slot == EntrySlots::kNone || !InATier(entries_[slot].state)) return clearance;
  IndexEntry& entry = entries_[slot];
  const ClearedBlock block = clearance.block = WhatClearTakes(entry, tiers, how);
  if (block.status != ClearedBlock::Status::kCleared || how == ClearHow::kDryRun) return clearance;
  if (block.leased_location != 0) {
    ++entry.holds;
    clearance.held = slot;
  }
  if (block.tiers == TiersOf(entry.state)) {
    clearance.gone = Leave(slot);
  } else if (block.tiers == TierBit(Tier::kHost)) {
    clearance.gone = LeaveHost(slot);
  } else {
    clearance.on_disk = DropCopy(slot);
  }
  return clearance;
}

uint32_t IndexShard::Links(uint32_t from, std::span<ChainLink> out, size_t* count) const {
  MutexLock lock(mu_);
  *count = 0;
  // As Views.
  const auto end = static_cast<uint32_t>(std::min<uint64_t>(entries_.end(), from + out.size()));
  for (uint32_t slot = from; slot < end; ++slot) {
    const IndexEntry& entry = entries_[slot];
    if (!InATier(entry.state)) continue;
    const BlockMetadata* const metadata = entry.metadata();
    out[(*count)++] = {.name = HashOf(entry),
                       .parent = ParentHash(entry).value_or(0),
                       .variant = entry.variant,
                       .digest = entry.digest,
                       .content = metadata == nullptr ? Digest() : metadata->content(),
                       .disk_location = OnDiskAlone(entry.state) ? entry.disk_location : 0,
                       .writer = metadata == nullptr ? BlockWriter() : metadata->writer()};
  }
  return end == entries_.end() ? 0 : end;
}

}  // namespace larder
