#include "storage/index/index_shard.h"

#include <algorithm>
#include <array>
#include <utility>

#include "storage/check.h"

namespace larder {
namespace {

constexpr TierSet kDiskBit = TierBit(Tier::kDisk);

// Returns what Clear does to this entry.  A pin of HOST also keeps the copy on disk; one of DISK
// also keeps the block in HOST until it is on disk.
ClearedBlock WhatClearTakes(const IndexEntry& entry, TierSet tiers, ClearHow how) {
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

// Returns how many pages a block in HOST will need when it is promoted after an eviction: a block
// that is encoded in HOST is decoded when it is promoted.
uint32_t PagesFromDisk(const IndexEntry& entry) {
  const BlockMetadata* const metadata = entry.metadata();
  const bool encoded = metadata != nullptr && metadata->encoded();
  return encoded ? PagesFor(metadata->raw_payload_bytes()) : entry.extent.pages();
}

}  // namespace

IndexShard::IndexShard(VariantTable& variants, uint32_t entries_max, EventRing* events)
    : variants_(variants),
      events_(events),
      entries_max_(entries_max),
      entries_(entries_max + kSpareEntries),
      lists_(entries_),
      children_(entries_, lists_) {}

IndexShard::~IndexShard() {
  for (uint32_t slot = 1; slot < entries_.end(); ++slot) delete entries_[slot].metadata();
}

void IndexShard::SetState(IndexEntry& entry, BlockState to) {
  LARDER_CHECK(TransitionAllowed(entry.state, to));
  const TierSet before = TiersOf(entry.state), after = TiersOf(to);
  entry.state = to;
  if (before == after || events_ == nullptr) return;
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (((before ^ after) & TierBit(tier)) == 0) continue;
    events_->Append({entry.digest, entry.variant, tier, (after & TierBit(tier)) != 0});
  }
}

void IndexShard::ChangeState(uint32_t slot, BlockState to) {
  lists_.ChangeState(slot,
                     [&]() LARDER_NO_THREAD_SAFETY_ANALYSIS { SetState(entries_[slot], to); });
}

// ---- finding and holding

void IndexShard::Lookup(const Group& group, std::span<BlockPresence> out) const {
  std::array<uint32_t, kKeysMax> slots;
  MutexLock lock(mu_);
  entries_.FindAll(group, slots);
  for (size_t i = 0; i < group.order.size(); ++i) {
    BlockPresence presence;
    if (slots[i] != ShardEntries::kNone) {
      const IndexEntry& entry = entries_[slots[i]];
      presence = {.tiers = TiersOf(entry.state), .pages = entry.extent.pages()};
    }
    out[group.order[i]] = presence;
  }
}

void IndexShard::Hold(const Group& group, HoldWhat what, uint32_t now_s, std::span<HeldBlock> out) {
  std::array<uint32_t, kKeysMax> slots;
  MutexLock lock(mu_);
  entries_.FindAll(group, slots);
  for (size_t i = 0; i < group.order.size(); ++i) {
    if (slots[i] != ShardEntries::kNone && entries_[slots[i]].listed)
      lists_.PrefetchRemove(entries_[slots[i]]);
  }
  for (size_t i = 0; i < group.order.size(); ++i) {
    out[group.order[i]] = HeldBlock{};
    if (slots[i] != ShardEntries::kNone) HoldOne(slots[i], what, now_s, &out[group.order[i]]);
  }
}

void IndexShard::HoldOne(uint32_t slot, HoldWhat what, uint32_t now_s, HeldBlock* out) {
  IndexEntry& entry = entries_[slot];
  if (!InHost(entry.state) && (what == HoldWhat::kHost || !OnDiskAlone(entry.state))) return;
  out->state = entry.state;
  if (entry.holds >= (what == HoldWhat::kUntouched ? kHoldsMax : kClientHoldsMax)) {
    out->full = true;
    return;
  }
  ++entry.holds;
  out->crowded = entry.holds > kCrowdedHolds;
  if (what != HoldWhat::kUntouched) {
    lists_.Relist(slot);
    const uint32_t idle_s = entry.IdleSeconds(now_s);
    entry.history = UsedAgain(entry.history, idle_s);
    entry.last_use_s = std::max(entry.last_use_s, now_s);
  }
  out->ref = EntryRef{slot};
  out->extent = entry.extent.Get();
  out->metadata = entry.metadata();
  out->disk_location = entry.disk_location;
  __builtin_prefetch(out->metadata);  // the caller reads the block's sizes next
}

size_t IndexShard::HoldAgain(std::span<const uint32_t> slots) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < slots.size(); ++i) {
    LARDER_CHECK(entries_.InUse(slots[i]));
    IndexEntry& entry = entries_[slots[i]];
    LARDER_CHECK(entry.holds > 0);
    if (entry.holds >= kClientHoldsMax) return i;
    ++entry.holds;
  }
  return slots.size();
}

void IndexShard::Unhold(std::span<const uint32_t> slots, std::vector<Extent>* freed,
                        std::vector<FreedExtent>* on_disk) {
  MutexLock lock(mu_);
  for (const uint32_t slot : slots) {
    LARDER_CHECK(slot != ShardEntries::kNone && slot < entries_.end());
    __builtin_prefetch(&entries_[slot], 1);
  }
  // From the last to the first, so that the first block of a chain becomes the most recent and the
  // tail tends to be evicted before it.
  for (size_t i = slots.size(); i-- > 0;) UnholdOne(slots[i], freed, on_disk);
}

void IndexShard::UnholdOne(uint32_t slot, std::vector<Extent>* freed,
                           std::vector<FreedExtent>* on_disk) {
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entry.holds > 0);
  --entry.holds;
  if (entry.holds > 0) return;
  if (entry.state != BlockState::kDoomed) {
    lists_.Relist(slot);
    return;
  }
  if (entry.extent.pages() > 0) freed->push_back(entry.extent.Get());
  if (entry.disk_location != 0) {
    LARDER_CHECK(on_disk != nullptr);
    on_disk->push_back({entry.variant, entry.digest, entry.disk_location});
  }
  TakeMetadata(entry).reset();
  SetState(entry, BlockState::kAbsent);
  entries_.Free(slot);
  --doomed_;
}

HeldBlock IndexShard::LookAt(uint32_t slot) const {
  MutexLock lock(mu_);
  const IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entries_.InUse(slot) && entry.holds > 0);
  HeldBlock now;
  now.state = entry.state;
  now.extent = entry.extent.Get();
  now.metadata = entry.metadata();
  now.disk_location = entry.disk_location;
  return now;
}

// ---- entering

IndexShard::EnterResult IndexShard::Enter(uint64_t hash, VariantIndex variant, const Digest& digest,
                                          uint32_t* slot) {
  if (entries_.Find(hash, variant, digest) != ShardEntries::kNone) return EnterResult::kDuplicate;
  if (entries_.used() >= entries_max_) return EnterResult::kFull;
  *slot = entries_.Add(hash, variant, digest);
  return *slot == ShardEntries::kNone ? EnterResult::kFull : EnterResult::kEntered;
}

void IndexShard::BecomeHost(uint32_t slot, const Extent& extent,
                            std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                            uint32_t now_s) {
  IndexEntry& entry = entries_[slot];
  const std::optional<uint64_t> counted_before = ChildCounts::CountedBy(entry);
  lists_.CountPinned(entry, -1);  // on disk the block may have had another size
  if (!OnDiskAlone(entry.state)) Remember(entry, raised, now_s);
  SetState(entry, OnDiskAlone(entry.state) ? BlockState::kHostDisk : BlockState::kHost);
  entry.extent.Set(extent);
  entry.counted_in_parent = raised.counted_by.has_value();
  raised.counted_by = counted_before;
  entry.last_use_s = now_s;
  if (metadata != nullptr) metadata_bytes_ += metadata->memory_bytes().value();
  entry.owned_metadata = metadata.release();
  variants_.Count(entry.variant, extent.bytes());
  lists_.CountPinned(entry, 1);
  lists_.Relist(slot);
}

IndexShard::EnterResult IndexShard::Insert(uint64_t hash, IndexedBlock& block, Raised& raised,
                                           uint32_t now_s, uint32_t* slot) {
  MutexLock lock(mu_);
  const EnterResult result = Enter(hash, block.variant, block.digest, slot);
  if (result == EnterResult::kEntered) {
    BecomeHost(*slot, block.extent, std::move(block.metadata), raised, now_s);
  }
  return result;
}

IndexShard::EnterResult IndexShard::Claim(uint64_t hash, VariantIndex variant, const Digest& digest,
                                          uint32_t* slot) {
  MutexLock lock(mu_);
  const EnterResult result = Enter(hash, variant, digest, slot);
  if (result == EnterResult::kEntered) SetState(entries_[*slot], BlockState::kReserved);
  return result;
}

IndexShard::Name IndexShard::NameOf(uint32_t slot) const {
  MutexLock lock(mu_);
  LARDER_CHECK(entries_.InUse(slot));
  return {entries_[slot].variant, entries_[slot].digest};
}

void IndexShard::Fill(uint32_t slot, const Extent& extent,
                      std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                      uint32_t now_s) {
  MutexLock lock(mu_);
  LARDER_CHECK(entries_.InUse(slot) && entries_[slot].state == BlockState::kReserved);
  BecomeHost(slot, extent, std::move(metadata), raised, now_s);
}

void IndexShard::Abandon(uint32_t slot) {
  MutexLock lock(mu_);
  LARDER_CHECK(entries_.InUse(slot) && entries_[slot].state == BlockState::kReserved);
  entries_.Unname(slot);
  SetState(entries_[slot], BlockState::kAbsent);
  entries_.Free(slot);
}

void IndexShard::BecomeDisk(uint32_t slot, uint32_t pages, uint64_t parent_hash) {
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entry.disk_location != 0 && !entry.listed);
  entry.extent.Set({.slab = {}, .page = 0, .pages = pages});
  SetState(entry, BlockState::kDisk);
  lists_.CountPinned(entry, 1);
  entry.parent_hash = parent_hash;
  variants_.CountDiskOnly(entry.variant);
  ++disk_only_;
  lists_.Relist(slot);
}

IndexShard::EnterResult IndexShard::InsertOnDisk(uint64_t hash, const BlockOnDisk& block,
                                                 uint32_t same, Raised& raised, uint32_t now_s,
                                                 uint32_t* slot) {
  LARDER_CHECK(block.location != 0);
  MutexLock lock(mu_);
  *slot = entries_.Find(hash, block.variant, block.digest);
  if (*slot != ShardEntries::kNone && entries_[*slot].state == BlockState::kHost) {
    if (*slot != same) return EnterResult::kBusy;
    // The record on disk has the block's bytes, as after a spill.
    ChangeState(*slot, BlockState::kHostDisk);
    entries_[*slot].disk_location = block.location;
    return EnterResult::kEntered;
  }
  if (*slot != ShardEntries::kNone && entries_[*slot].state == BlockState::kReserved)
    return EnterResult::kBusy;
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

// Takes over `raised.history`, so that the blocks of a chain mostly are in one class (ReuseClassOf)
// and its end tends to be evicted before its beginning.  If the block has a ghost entry with at
// least as many uses, it continues the history of that entry instead.
void IndexShard::Remember(IndexEntry& entry, const Raised& raised, uint32_t now_s) {
  const std::optional<GhostTable::Departed> past = ghosts_.Take(ShardEntries::HashOf(entry));
  entry.history = raised.history;
  if (!past || past->history.uses < entry.history.uses) return;
  const uint32_t idle_s = now_s > past->last_use_s ? now_s - past->last_use_s : 0;
  entry.history = UsedAgain(past->history, idle_s);
}

// ---- moving between the tiers

std::optional<uint64_t> IndexShard::SetOnDisk(uint32_t slot, uint64_t location) {
  LARDER_CHECK(location != 0);
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entries_.InUse(slot) && entry.holds > 0);
  if (!InHost(entry.state)) return std::nullopt;
  // The block may be in both tiers already, for example because an older record of it was found on
  // disk after the caller had held it (InsertOnDisk): the new location replaces the older one.
  if (entry.state == BlockState::kHost) ChangeState(slot, BlockState::kHostDisk);
  return std::exchange(entry.disk_location, location);
}

bool IndexShard::BeginRewrite(uint32_t slot, uint64_t location) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entries_.InUse(slot) && entry.holds > 0);
  if (entry.holds > 1 || entry.disk_location != location) return false;
  if (entry.state != BlockState::kHostDisk && entry.state != BlockState::kDisk) return false;
  rewritten_.insert(slot);
  if (entry.state == BlockState::kHostDisk) return true;
  lists_.Unlist(slot);  // a hold with kUntouched may have left it listed
  SetState(entry, BlockState::kPromoting);
  return true;
}

bool IndexShard::FinishRewrite(uint32_t slot, uint64_t location) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entries_.InUse(slot) && entry.holds > 0);
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
  LARDER_CHECK(entries_.InUse(slot) && entry.holds > 0);
  if (entry.holds > 1 || !InHost(entry.state)) return false;
  variants_.Uncount(entry.variant, entry.extent.Get().bytes());
  std::unique_ptr<const BlockMetadata> former = TakeMetadata(entry);
  metadata_bytes_ += (*metadata)->memory_bytes().value();
  entry.owned_metadata = metadata->release();
  lists_.Resize(slot, extent);
  variants_.Count(entry.variant, extent.bytes());
  *metadata = std::move(former);
  return true;
}

bool IndexShard::BeginPromote(uint32_t slot) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entries_.InUse(slot) && entry.holds > 0);
  if (entry.state != BlockState::kDisk) return false;
  lists_.Unlist(slot);  // a hold with kUntouched may have left it listed
  SetState(entry, BlockState::kPromoting);
  return true;
}

bool IndexShard::FinishPromote(uint32_t slot, const Extent& extent,
                               std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                               uint32_t now_s) {
  MutexLock lock(mu_);
  LARDER_CHECK(entries_.InUse(slot) && entries_[slot].holds > 0);
  if (entries_[slot].state != BlockState::kPromoting) return false;
  variants_.UncountDiskOnly(entries_[slot].variant);
  --disk_only_;
  BecomeHost(slot, extent, std::move(metadata), raised, now_s);
  return true;
}

void IndexShard::FailPromote(uint32_t slot) {
  MutexLock lock(mu_);
  LARDER_CHECK(entries_.InUse(slot) && entries_[slot].holds > 0);
  if (entries_[slot].state == BlockState::kPromoting) SetState(entries_[slot], BlockState::kDisk);
}

// ---- leaving

std::unique_ptr<const BlockMetadata> IndexShard::TakeMetadata(IndexEntry& entry) {
  LARDER_CHECK(!OnDiskAlone(entry.state));
  std::unique_ptr<const BlockMetadata> metadata(std::exchange(entry.owned_metadata, nullptr));
  if (metadata != nullptr) metadata_bytes_ -= metadata->memory_bytes().value();
  return metadata;
}

void IndexShard::TakeFromHost(uint32_t slot, Departure* gone) {
  IndexEntry& entry = entries_[slot];
  gone->block.extent = entry.extent.Get();
  variants_.Uncount(entry.variant, gone->block.extent.bytes());
}

IndexShard::Departure IndexShard::Leave(uint32_t slot) {
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(InHost(entry.state) || OnDiskAlone(entry.state));
  Departure gone;
  gone.block.variant = entry.variant;
  gone.block.digest = entry.digest;
  gone.block.last_use_s = entry.last_use_s;
  gone.counted_by = ChildCounts::CountedBy(entry);
  entry.counted_in_parent = false;
  lists_.CountPinned(entry, -1);
  entry.pinned_host = entry.pinned_disk = false;
  lists_.Unlist(slot);
  if (InHost(entry.state)) {
    TakeFromHost(slot, &gone);
  } else {
    variants_.UncountDiskOnly(entry.variant);
    --disk_only_;
    entry.extent = PackedExtent();
    entry.parent_hash = 0;
  }
  entries_.Unname(slot);
  ghosts_.Remember(ShardEntries::HashOf(entry), {entry.history, entry.last_use_s}, entries_.used());
  if (entry.holds > 0) {
    SetState(entry, BlockState::kDoomed);
    entry.children = 0;
    ++doomed_;
    gone.doomed = true;
    return gone;
  }
  gone.block.disk_location = entry.disk_location;
  if (InHost(entry.state)) gone.block.metadata = TakeMetadata(entry);
  SetState(entry, BlockState::kAbsent);
  entries_.Free(slot);
  return gone;
}

IndexShard::Departure IndexShard::LeaveHost(uint32_t slot) {
  IndexEntry& entry = entries_[slot];
  if (entry.state != BlockState::kHostDisk) return Leave(slot);
  LARDER_CHECK(entry.holds == 0 && !entry.pinned_host);
  Departure gone;
  gone.block.variant = entry.variant;
  gone.block.digest = entry.digest;
  gone.block.kept_on_disk = true;
  gone.block.last_use_s = entry.last_use_s;
  lists_.Unlist(slot);
  TakeFromHost(slot, &gone);
  const uint64_t parent = ChildCounts::ParentHash(entry).value_or(0);
  const uint32_t pages = PagesFromDisk(entry);
  gone.block.metadata = TakeMetadata(entry);
  lists_.CountPinned(entry, -1);
  BecomeDisk(slot, pages, parent);
  return gone;
}

IndexShard::DiskDeparture IndexShard::LeaveDisk(uint32_t slot) {
  const uint32_t pages = entries_[slot].extent.pages();
  const Departure gone = Leave(slot);
  return {.block = {{gone.block.variant, gone.block.digest, gone.block.disk_location}, pages},
          .counted_by = gone.counted_by,
          .last_use_s = gone.block.last_use_s};
}

// If the entry is listed, it becomes the hottest of its new list, so the new list is only roughly
// in the order of use.
FreedExtent IndexShard::DropCopy(uint32_t slot) {
  ChangeState(slot, BlockState::kHost);
  IndexEntry& entry = entries_[slot];
  return {entry.variant, entry.digest, std::exchange(entry.disk_location, 0)};
}

std::optional<IndexShard::Departure> IndexShard::Drop(uint64_t hash, VariantIndex variant,
                                                      const Digest& digest) {
  MutexLock lock(mu_);
  const uint32_t slot = entries_.Find(hash, variant, digest);
  if (slot == ShardEntries::kNone || entries_[slot].state == BlockState::kReserved)
    return std::nullopt;
  return Leave(slot);
}

std::optional<IndexShard::Departure> IndexShard::Drop(uint32_t slot) {
  MutexLock lock(mu_);
  if (!entries_.InUse(slot)) return std::nullopt;
  const BlockState state = entries_[slot].state;
  if (!InHost(state) && !OnDiskAlone(state)) return std::nullopt;
  return Leave(slot);
}

// Readers that hold the damaged bytes keep the old entry, so a disk copy moves to a second entry.
std::optional<IndexShard::Departure> IndexShard::DropHostCopy(uint32_t slot) {
  MutexLock lock(mu_);
  if (!entries_.InUse(slot) || !InHost(entries_[slot].state)) return std::nullopt;
  // The record may already be at its new location, which FinishRewrite will set in this entry only:
  // a second entry would keep the old location.
  if (rewritten_.contains(slot)) return std::nullopt;
  const IndexEntry before = entries_[slot];
  LARDER_CHECK(before.holds > 0);
  const uint64_t parent = ChildCounts::ParentHash(before).value_or(0);
  const uint32_t pages = PagesFromDisk(before);
  Departure gone = Leave(slot);
  if (before.state != BlockState::kHostDisk) return gone;
  const uint32_t moved = entries_.Add(ShardEntries::HashOf(before), before.variant, before.digest);
  if (moved == ShardEntries::kNone) return gone;
  IndexEntry& entry = entries_[moved];
  entry.disk_location = std::exchange(entries_[slot].disk_location, 0);
  entry.counted_in_parent = std::exchange(gone.counted_by, std::nullopt).has_value();
  entry.children = before.children;
  entry.follower = before.follower;
  entry.history = before.history;
  entry.last_use_s = before.last_use_s;
  entry.pinned_host = before.pinned_host;
  entry.pinned_disk = before.pinned_disk;
  (void)ghosts_.Take(ShardEntries::HashOf(entry));  // the block has not left after all
  BecomeDisk(moved, pages, parent);
  return gone;
}

IndexShard::Clearance IndexShard::Clear(uint64_t hash, VariantIndex variant, const Digest& digest,
                                        TierSet tiers, ClearHow how) {
  MutexLock lock(mu_);
  Clearance clearance;
  const uint32_t slot = entries_.Find(hash, variant, digest);
  if (slot == ShardEntries::kNone || !InATier(entries_[slot].state)) return clearance;
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

// ---- evicting

bool IndexShard::MayLeaveHost(uint32_t slot) const {
  return entries_.InUse(slot) && InHost(entries_[slot].state) &&
         EvictionLists::MayLeave(entries_[slot]);
}

bool IndexShard::MayLeaveDisk(uint32_t slot) const {
  if (!entries_.InUse(slot)) return false;
  const IndexEntry& entry = entries_[slot];
  return EvictionLists::MayLeave(entry) && !entry.pinned_disk &&
         (entry.state == BlockState::kDisk || entry.state == BlockState::kHostDisk);
}

IndexShard::Candidate IndexShard::Least(const EvictionPolicy& policy, uint32_t now_s) {
  MutexLock lock(mu_);
  return lists_.LeastInHost(policy, /*parents_too=*/false, now_s);
}

IndexShard::Candidate IndexShard::LeastOnDisk(const EvictionPolicy& policy, uint32_t now_s) {
  MutexLock lock(mu_);
  return lists_.LeastOnDiskAlone(policy, /*parents_too=*/false, now_s);
}

std::optional<IndexShard::Departure> IndexShard::EvictColdest(const EvictionPolicy& policy,
                                                              bool parents_too, uint32_t now_s) {
  MutexLock lock(mu_);
  const uint32_t least = lists_.LeastInHost(policy, parents_too, now_s).slot;
  if (least == ShardEntries::kNone) return std::nullopt;
  return LeaveHost(least);
}

std::optional<IndexShard::Departure> IndexShard::Evict(uint32_t slot) {
  MutexLock lock(mu_);
  if (!MayLeaveHost(slot)) return std::nullopt;
  return LeaveHost(slot);
}

std::optional<double> IndexShard::WorthInHost(uint32_t slot, const EvictionPolicy& policy,
                                              uint32_t now_s) const {
  MutexLock lock(mu_);
  if (!MayLeaveHost(slot)) return std::nullopt;
  return EvictionLists::WorthOf(entries_[slot], policy, now_s);
}

std::optional<IndexShard::DiskDeparture> IndexShard::EvictColdestFromDisk(
    const EvictionPolicy& policy, bool parents_too, uint32_t now_s) {
  MutexLock lock(mu_);
  const uint32_t least = lists_.LeastOnDiskAlone(policy, parents_too, now_s).slot;
  if (least == ShardEntries::kNone) return std::nullopt;
  return LeaveDisk(least);
}

std::optional<EvictedFromDisk> IndexShard::DropDiskCopy(const EvictionPolicy& policy,
                                                        uint32_t now_s) {
  MutexLock lock(mu_);
  const uint32_t least = lists_.LeastCopied(policy, now_s).slot;
  if (least == ShardEntries::kNone) return std::nullopt;
  return EvictedFromDisk{DropCopy(least), entries_[least].extent.pages()};
}

std::optional<IndexShard::DiskDeparture> IndexShard::EvictFromDisk(uint32_t slot) {
  MutexLock lock(mu_);
  if (!MayLeaveDisk(slot)) return std::nullopt;
  if (entries_[slot].state != BlockState::kHostDisk) return LeaveDisk(slot);
  DiskDeparture copy;
  copy.block = {DropCopy(slot), entries_[slot].extent.pages()};
  return copy;
}

std::optional<double> IndexShard::WorthOnDisk(uint32_t slot, const EvictionPolicy& policy,
                                              uint32_t now_s) const {
  MutexLock lock(mu_);
  if (!MayLeaveDisk(slot)) return std::nullopt;
  return EvictionLists::WorthOnDisk(entries_[slot], policy, now_s);
}

bool IndexShard::SetPinned(uint64_t hash, VariantIndex variant, const Digest& digest, Tier tier,
                           bool pinned) {
  MutexLock lock(mu_);
  const uint32_t slot = entries_.Find(hash, variant, digest);
  if (slot == ShardEntries::kNone || !InATier(entries_[slot].state)) return false;
  IndexEntry& entry = entries_[slot];
  lists_.CountPinned(entry, -1);
  if (tier == Tier::kDisk) {
    entry.pinned_disk = pinned;
  } else {
    entry.pinned_host = pinned;
  }
  lists_.CountPinned(entry, 1);
  lists_.Relist(slot);
  return true;
}

bool IndexShard::IsPinned(uint64_t hash, VariantIndex variant, const Digest& digest,
                          Tier tier) const {
  MutexLock lock(mu_);
  const uint32_t slot = entries_.Find(hash, variant, digest);
  if (slot == ShardEntries::kNone || !InATier(entries_[slot].state)) return false;
  return tier == Tier::kDisk ? entries_[slot].pinned_disk : entries_[slot].pinned_host;
}

// ---- children

IndexShard::Raised IndexShard::RaiseChildren(VariantIndex variant, uint64_t parent,
                                             const Digest& child) {
  MutexLock lock(mu_);
  return children_.Raise(variant, parent, child);
}

std::optional<uint64_t> IndexShard::MarkShared(VariantIndex variant, uint64_t parent) {
  MutexLock lock(mu_);
  return children_.MarkShared(variant, parent);
}

void IndexShard::LowerChildren(VariantIndex variant, uint64_t parent,
                               std::optional<uint32_t> child_last_use_s) {
  MutexLock lock(mu_);
  children_.Lower(variant, parent, child_last_use_s);
}

uint32_t IndexShard::UncountedFrom(uint32_t from, std::span<Uncounted> out, size_t* count) const {
  MutexLock lock(mu_);
  return children_.UncountedFrom(from, out, count);
}

void IndexShard::CountInParent(const Uncounted& block, Raised& raised) {
  MutexLock lock(mu_);
  children_.Count(block, raised);
}

IndexShard::Totals IndexShard::totals() const {
  MutexLock lock(mu_);
  return {.named = entries_.named(),
          .doomed = doomed_,
          .disk_only = disk_only_,
          .memory = ByteCount(sizeof *this + entries_.memory_bytes() + ghosts_.memory_bytes()),
          .metadata = ByteCount(metadata_bytes_)};
}

uint32_t IndexShard::Views(uint32_t from, std::span<BlockView> out, size_t* count) const {
  MutexLock lock(mu_);
  *count = 0;
  // Free slots count toward out.size() too, so that the lock is held for a bounded time.
  const uint32_t end = static_cast<uint32_t>(std::min<uint64_t>(entries_.end(), from + out.size()));
  for (uint32_t slot = from; slot < end; ++slot) {
    const IndexEntry& entry = entries_[slot];
    if (entry.state == BlockState::kAbsent || entry.state == BlockState::kDoomed) continue;
    out[(*count)++] = {.digest = entry.digest,
                       .variant = entry.variant,
                       .state = entry.state,
                       .extent = entry.extent.Get(),
                       .holds = entry.holds,
                       .children = entry.children,
                       .pinned_host = entry.pinned_host,
                       .pinned_disk = entry.pinned_disk,
                       .counted_in_parent = entry.counted_in_parent,
                       .disk_location = entry.disk_location};
  }
  return end == entries_.end() ? 0 : end;
}

uint32_t IndexShard::Links(uint32_t from, std::span<ChainLink> out, size_t* count) const {
  MutexLock lock(mu_);
  *count = 0;
  // Free slots count toward out.size() too, so that the lock is held for a bounded time.
  const auto end = static_cast<uint32_t>(std::min<uint64_t>(entries_.end(), from + out.size()));
  for (uint32_t slot = from; slot < end; ++slot) {
    const IndexEntry& entry = entries_[slot];
    if (!InATier(entry.state)) continue;
    const BlockMetadata* const metadata = entry.metadata();
    out[(*count)++] = {.name = ShardEntries::HashOf(entry),
                       .parent = ChildCounts::ParentHash(entry).value_or(0),
                       .variant = entry.variant,
                       .digest = entry.digest,
                       .content = metadata == nullptr ? Digest() : metadata->content(),
                       .disk_location = OnDiskAlone(entry.state) ? entry.disk_location : 0,
                       .writer = metadata == nullptr ? BlockWriter() : metadata->writer()};
  }
  return end == entries_.end() ? 0 : end;
}

void IndexShard::CheckEntry(uint32_t slot) const {
  const IndexEntry& entry = entries_[slot];
  LARDER_CHECK((TiersOf(entry.state) & kDiskBit) == 0 || entry.disk_location != 0);
  LARDER_CHECK(entry.state != BlockState::kHost || entry.disk_location == 0);
  LARDER_CHECK(!entry.counted_in_parent || ChildCounts::CountedBy(entry).has_value());
  LARDER_CHECK(InATier(entry.state) || (!entry.pinned_host && !entry.pinned_disk));
  LARDER_CHECK(InATier(entry.state) || (entry.children == 0 && !entry.counted_in_parent));
  if (entry.state == BlockState::kDoomed) {
    LARDER_CHECK(entry.holds > 0);
  } else {
    LARDER_CHECK(entries_.Find(ShardEntries::HashOf(entry), entry.variant, entry.digest) == slot);
    LARDER_CHECK(InHost(entry.state) || OnDiskAlone(entry.state) || entry.holds == 0);
  }
}

void IndexShard::CheckInvariants(std::span<VariantTotals> sums) const {
  MutexLock lock(mu_);
  uint32_t used = 0, doomed = 0, disk_only = 0;
  uint64_t metadata_bytes = 0;
  for (uint32_t slot = 1; slot < entries_.end(); ++slot) {
    const IndexEntry& entry = entries_[slot];
    if (entry.state == BlockState::kAbsent) continue;
    CheckEntry(slot);
    ++used;
    doomed += entry.state == BlockState::kDoomed ? 1 : 0;
    if (entry.metadata() != nullptr) metadata_bytes += entry.metadata()->memory_bytes().value();
    if (OnDiskAlone(entry.state)) {
      ++disk_only;
      ++sums[static_cast<size_t>(entry.variant)].disk_only;
    }
    if (InHost(entry.state)) {
      VariantTotals& sum = sums[static_cast<size_t>(entry.variant)];
      ++sum.blocks;
      sum.bytes += entry.extent.Get().bytes();
    }
  }
  entries_.CheckInvariants();
  lists_.CheckInvariants();
  LARDER_CHECK(used == entries_.used() && used - doomed == entries_.named());
  LARDER_CHECK(disk_only == disk_only_ && doomed == doomed_);
  LARDER_CHECK(metadata_bytes == metadata_bytes_);
}

}  // namespace larder
