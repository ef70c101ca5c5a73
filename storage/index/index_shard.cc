#include "storage/index/index_shard.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace larder {
namespace {

constexpr uint32_t kNone = EntrySlots::kNone;
constexpr uint16_t kCountMax = std::numeric_limits<uint16_t>::max();
constexpr TierSet kDiskBit = TierBit(Tier::kDisk);

template <size_t... kClasses>
std::array<RecencyList, sizeof...(kClasses)> MakeLists(EntrySlots& entries,
                                                       std::index_sequence<kClasses...>) {
  return {((void)kClasses, RecencyList(entries))...};
}

}  // namespace

IndexShard::IndexShard(VariantTable& variants, uint32_t entries_max, EventRing* events)
    : variants_(variants),
      events_(events),
      entries_max_(entries_max),
      entries_(entries_max + kSpareEntries),
      host_lists_(MakeLists(entries_, std::make_index_sequence<kReuseClasses>())),
      copied_lists_(MakeLists(entries_, std::make_index_sequence<kReuseClasses>())),
      disk_lists_(MakeLists(entries_, std::make_index_sequence<kReuseClasses>())) {}

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

// ---- finding

uint32_t IndexShard::Find(uint64_t hash, VariantIndex variant, const Digest& digest) const {
  SlotTable::Probe probe = table_.First(hash);
  while (probe.slot != kNone && !Is(entries_[probe.slot], variant, digest))
    probe = table_.Next(hash, probe);
  return probe.slot;
}

uint32_t IndexShard::FindParent(VariantIndex variant, uint64_t hash) const {
  const auto is_it = [&](const IndexEntry& entry) {
    return entry.variant == variant && HashOf(entry) == hash;
  };
  SlotTable::Probe probe = table_.First(hash);
  while (probe.slot != kNone && !is_it(entries_[probe.slot])) probe = table_.Next(hash, probe);
  if (probe.slot == kNone || entries_[probe.slot].state == BlockState::kReserved) return kNone;
  return probe.slot;
}

std::optional<uint64_t> IndexShard::ParentHash(const IndexEntry& entry) {
  if (OnDiskAlone(entry.state)) return entry.parent_hash;
  if (entry.owned_metadata == nullptr) return std::nullopt;
  return IndexHash(entry.variant, entry.owned_metadata->parent());
}

void IndexShard::FindAll(const Group& group, std::span<uint32_t> slots) const {
  constexpr size_t kWave = 64;  // misses under way at once; more than a core can have
  for (size_t at = 0; at < group.order.size(); at += kWave) {
    const std::span<const uint16_t> wave =
        group.order.subspan(at, std::min(kWave, group.order.size() - at));
    std::array<SlotTable::Probe, kWave> probes;
    for (size_t i = 0; i < wave.size(); ++i) {
      probes[i] = table_.First(group.hashes[wave[i]]);
      if (probes[i].slot != kNone) __builtin_prefetch(&entries_[probes[i].slot]);
    }
    for (size_t i = 0; i < wave.size(); ++i) {
      const uint16_t key = wave[i];
      SlotTable::Probe probe = probes[i];
      while (probe.slot != kNone && !Is(entries_[probe.slot], group.variant, group.keys[key])) {
        probe = table_.Next(group.hashes[key], probe);
      }
      slots[at + i] = probe.slot;
    }
  }
}

bool IndexShard::InUse(uint32_t slot) const {
  return slot != kNone && slot < entries_.end() && entries_[slot].state != BlockState::kAbsent;
}

bool IndexShard::EvictableLocked(uint32_t slot) const {
  return InUse(slot) && InHost(entries_[slot].state) && MayLeave(entries_[slot]);
}

void IndexShard::Lookup(const Group& group, std::span<BlockPresence> out) const {
  std::array<uint32_t, kKeysMax> slots;
  MutexLock lock(mu_);
  FindAll(group, slots);
  for (size_t i = 0; i < group.order.size(); ++i) {
    BlockPresence presence;
    if (slots[i] != kNone) {
      const IndexEntry& entry = entries_[slots[i]];
      presence = {.tiers = TiersOf(entry.state), .pages = entry.extent.pages()};
    }
    out[group.order[i]] = presence;
  }
}

// ---- holding

void IndexShard::Hold(const Group& group, HoldWhat what, uint32_t now_s, std::span<HeldBlock> out) {
  std::array<uint32_t, kKeysMax> slots;
  MutexLock lock(mu_);
  FindAll(group, slots);
  for (size_t i = 0; i < group.order.size(); ++i) {
    if (slots[i] != kNone && entries_[slots[i]].listed)
      host_lists_[0].PrefetchRemove(entries_[slots[i]]);
  }
  for (size_t i = 0; i < group.order.size(); ++i) {
    out[group.order[i]] = HeldBlock{};
    if (slots[i] != kNone) HoldOne(slots[i], what, now_s, &out[group.order[i]]);
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
    Relist(slot);
    const uint32_t idle_s = entry.IdleSeconds(now_s);
    entry.history = UsedAgain(entry.history, idle_s);
    entry.last_use_s = std::max(entry.last_use_s, now_s);
  }
  out->ref = EntryRef{slot};
  out->extent = entry.extent.Get();
  out->metadata = entry.metadata();
  out->disk_location = entry.disk_location;
  __builtin_prefetch(out->metadata);  // whoever holds a block asks for its sizes next
}

size_t IndexShard::HoldAgain(std::span<const uint32_t> slots) {
  MutexLock lock(mu_);
  for (size_t i = 0; i < slots.size(); ++i) {
    LARDER_CHECK(InUse(slots[i]));
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
    LARDER_CHECK(slot != kNone && slot < entries_.end());
    __builtin_prefetch(&entries_[slot], 1);
  }
  // From the last: so the first of a chain becomes the most recent, and tails leave first.
  for (size_t i = slots.size(); i-- > 0;) UnholdOne(slots[i], freed, on_disk);
}

void IndexShard::UnholdOne(uint32_t slot, std::vector<Extent>* freed,
                           std::vector<FreedExtent>* on_disk) {
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entry.holds > 0);
  --entry.holds;
  if (entry.holds > 0) return;
  if (entry.state != BlockState::kDoomed) {
    Relist(slot);
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

RecencyList* IndexShard::ListFor(const IndexEntry& entry) {
  const uint32_t reuse_class = ReuseClassOf(entry.history);
  switch (entry.state) {
    case BlockState::kHost:
      return &host_lists_[reuse_class];
    case BlockState::kHostDisk:
      return &copied_lists_[reuse_class];
    case BlockState::kDisk:
      return &disk_lists_[reuse_class];
    default:
      return nullptr;
  }
}

void IndexShard::ChangeState(uint32_t slot, BlockState to) {
  const bool listed = entries_[slot].listed;
  Unlist(slot);
  CountPinned(entries_[slot], -1);
  SetState(entries_[slot], to);
  CountPinned(entries_[slot], 1);
  if (listed) {
    List(slot);  // though it may be held
  } else {
    Relist(slot);  // its pin may let it go now
  }
}

void IndexShard::Relist(uint32_t slot) {
  const IndexEntry& entry = entries_[slot];
  const bool evictable = ListFor(entry) != nullptr && entry.holds == 0 && !PinnedHere(entry);
  if (evictable == entry.listed) return;
  if (evictable) {
    List(slot);
  } else {
    Unlist(slot);
  }
}

void IndexShard::List(uint32_t slot) {
  ListFor(entries_[slot])->PushHot(slot);
  if (entries_[slot].state == BlockState::kHostDisk) CountCopies(1);
  if (InHost(entries_[slot].state)) CountListed(entries_[slot].extent.pages(), true);
}

void IndexShard::Unlist(uint32_t slot) {
  if (!entries_[slot].listed) return;
  ListFor(entries_[slot])->Remove(slot);
  if (entries_[slot].state == BlockState::kHostDisk) CountCopies(-1);
  if (InHost(entries_[slot].state)) CountListed(entries_[slot].extent.pages(), false);
}

// ---- entering

IndexShard::EnterResult IndexShard::Enter(uint64_t hash, VariantIndex variant, const Digest& digest,
                                          uint32_t* slot) {
  if (Find(hash, variant, digest) != kNone) return EnterResult::kDuplicate;
  if (entries_.used() >= entries_max_) return EnterResult::kFull;
  *slot = AddNamed(hash, variant, digest);
  return *slot == kNone ? EnterResult::kFull : EnterResult::kEntered;
}

uint32_t IndexShard::AddNamed(uint64_t hash, VariantIndex variant, const Digest& digest) {
  const uint32_t slot = entries_.Allocate();
  if (slot == kNone) return kNone;
  entries_[slot].variant = variant;
  entries_[slot].digest = digest;
  table_.Insert(
      hash, slot,
      [this](uint32_t s) LARDER_NO_THREAD_SAFETY_ANALYSIS { return HashOf(entries_[s]); },
      [this](uint32_t s) LARDER_NO_THREAD_SAFETY_ANALYSIS { __builtin_prefetch(&entries_[s]); });
  return slot;
}

void IndexShard::BecomeHost(uint32_t slot, const Extent& extent,
                            std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                            uint32_t now_s) {
  IndexEntry& entry = entries_[slot];
  const std::optional<uint64_t> counted_before = CountedBy(entry);
  CountPinned(entry, -1);  // on disk it may have had another size
  if (!OnDiskAlone(entry.state)) Remember(entry, raised, now_s);
  SetState(entry, OnDiskAlone(entry.state) ? BlockState::kHostDisk : BlockState::kHost);
  entry.extent.Set(extent);
  entry.counted_in_parent = raised.counted_by.has_value();
  raised.counted_by = counted_before;
  entry.last_use_s = now_s;
  if (metadata != nullptr) metadata_bytes_ += metadata->memory_bytes().value();
  entry.owned_metadata = metadata.release();
  variants_.Count(entry.variant, extent.bytes());
  CountPinned(entry, 1);
  Relist(slot);
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
  LARDER_CHECK(InUse(slot));
  return {entries_[slot].variant, entries_[slot].digest};
}

void IndexShard::Fill(uint32_t slot, const Extent& extent,
                      std::unique_ptr<const BlockMetadata> metadata, Raised& raised,
                      uint32_t now_s) {
  MutexLock lock(mu_);
  LARDER_CHECK(InUse(slot) && entries_[slot].state == BlockState::kReserved);
  BecomeHost(slot, extent, std::move(metadata), raised, now_s);
}

void IndexShard::Abandon(uint32_t slot) {
  MutexLock lock(mu_);
  LARDER_CHECK(InUse(slot) && entries_[slot].state == BlockState::kReserved);
  Unname(slot);
  SetState(entries_[slot], BlockState::kAbsent);
  entries_.Free(slot);
}

// ---- leaving

void IndexShard::Unname(uint32_t slot) {
  table_.Erase(
      HashOf(entries_[slot]), slot,
      [this](uint32_t s) LARDER_NO_THREAD_SAFETY_ANALYSIS { return HashOf(entries_[s]); },
      [this](uint32_t s) LARDER_NO_THREAD_SAFETY_ANALYSIS { __builtin_prefetch(&entries_[s]); });
}

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
  gone.counted_by = CountedBy(entry);
  entry.counted_in_parent = false;
  CountPinned(entry, -1);
  entry.pinned_host = entry.pinned_disk = false;
  Unlist(slot);
  if (InHost(entry.state)) {
    TakeFromHost(slot, &gone);
  } else {
    variants_.UncountDiskOnly(entry.variant);
    --disk_only_;
    entry.extent = PackedExtent();
    entry.parent_hash = 0;
  }
  Unname(slot);
  Forget(entry);
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
  Unlist(slot);
  TakeFromHost(slot, &gone);
  const uint64_t parent = ParentHash(entry).value_or(0);
  const uint32_t pages = PagesFromDisk(entry);
  gone.block.metadata = TakeMetadata(entry);
  CountPinned(entry, -1);
  BecomeDisk(slot, pages, parent);
  return gone;
}

std::optional<IndexShard::Departure> IndexShard::Drop(uint64_t hash, VariantIndex variant,
                                                      const Digest& digest) {
  MutexLock lock(mu_);
  const uint32_t slot = Find(hash, variant, digest);
  if (slot == kNone || entries_[slot].state == BlockState::kReserved) return std::nullopt;
  return Leave(slot);
}

std::optional<IndexShard::Departure> IndexShard::Drop(uint32_t slot) {
  MutexLock lock(mu_);
  if (!InUse(slot)) return std::nullopt;
  const BlockState state = entries_[slot].state;
  if (!InHost(state) && !OnDiskAlone(state)) return std::nullopt;
  return Leave(slot);
}

// ---- children

IndexShard::Raised IndexShard::RaiseChildren(VariantIndex variant, uint64_t parent,
                                             const Digest& child) {
  const auto tag = static_cast<uint8_t>(child.Hash64() % (IndexEntry::kManyFollowers - 1) + 1);
  MutexLock lock(mu_);
  const uint32_t slot = FindParent(variant, parent);
  if (slot == kNone || entries_[slot].children == kCountMax) return {};
  IndexEntry& entry = entries_[slot];
  ++entry.children;
  // Shared, and nobody knows by whom: it was away meanwhile.
  const bool unknown = entry.follower == 0 && entry.history.shared;
  if (entry.follower == 0) entry.follower = tag;
  const bool only = entry.follower == tag;
  if (!only) entry.follower = IndexEntry::kManyFollowers;
  return {.counted_by = parent,
          .history = only && !unknown ? entry.history : ReuseHistory(),
          .forked = !only && !entry.history.shared};
}

uint32_t IndexShard::UncountedFrom(uint32_t from, std::span<Uncounted> out, size_t* count) const {
  MutexLock lock(mu_);
  *count = 0;
  const auto end = static_cast<uint32_t>(std::min<uint64_t>(entries_.end(), from + out.size()));
  for (uint32_t slot = from; slot < end; ++slot) {
    const IndexEntry& entry = entries_[slot];
    if (!InATier(entry.state) || entry.counted_in_parent) continue;
    const uint64_t parent = ParentHash(entry).value_or(0);
    if (parent != 0) out[(*count)++] = {slot, entry.variant, entry.digest, parent};
  }
  return end == entries_.end() ? 0 : end;
}

void IndexShard::CountInParent(const Uncounted& block, Raised& raised) {
  MutexLock lock(mu_);
  IndexEntry& entry = entries_[block.slot];
  if (!InATier(entry.state) || !Is(entry, block.variant, block.digest)) return;
  if (entry.counted_in_parent || ParentHash(entry) != block.parent) return;
  entry.counted_in_parent = std::exchange(raised.counted_by, std::nullopt).has_value();
}

std::optional<uint64_t> IndexShard::MarkShared(VariantIndex variant, uint64_t parent) {
  MutexLock lock(mu_);
  const uint32_t slot = FindParent(variant, parent);
  if (slot == kNone || entries_[slot].history.shared) return std::nullopt;
  IndexEntry& entry = entries_[slot];
  Unlist(slot);
  entry.history.shared = true;
  Relist(slot);
  return ParentHash(entry);
}

void IndexShard::LowerChildren(VariantIndex variant, uint64_t parent,
                               std::optional<uint32_t> child_last_use_s) {
  MutexLock lock(mu_);
  const uint32_t slot = FindParent(variant, parent);
  // 0: the parent that was counted in has left, and this is a later one of the same name.
  if (slot == kNone || entries_[slot].children == 0) return;
  IndexEntry& entry = entries_[slot];
  --entry.children;
  if (entry.children > 0 || !entry.listed || !child_last_use_s ||
      entry.last_use_s > *child_last_use_s)
    return;
  RecencyList* const list = ListFor(entry);
  list->Remove(slot);
  list->PushCold(slot);
}

// ---- reports

IndexShard::Totals IndexShard::totals() const {
  MutexLock lock(mu_);
  return {.named = table_.size(),
          .doomed = doomed_,
          .disk_only = disk_only_,
          .memory = ByteCount(sizeof *this + entries_.memory_bytes() + table_.memory_bytes() +
                              departed_.memory_bytes()),
          .metadata = ByteCount(metadata_bytes_)};
}

uint32_t IndexShard::Views(uint32_t from, std::span<BlockView> out, size_t* count) const {
  MutexLock lock(mu_);
  *count = 0;
  // Free slots count too, so that the lock is held for a bounded time.
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

void IndexShard::CheckEntry(uint32_t slot) const {
  const IndexEntry& entry = entries_[slot];
  const bool has_list = InHost(entry.state) || entry.state == BlockState::kDisk;
  LARDER_CHECK(!entry.listed || (has_list && !PinnedHere(entry)));
  LARDER_CHECK(entry.listed || !has_list || entry.holds > 0 || PinnedHere(entry));
  LARDER_CHECK((TiersOf(entry.state) & kDiskBit) == 0 || entry.disk_location != 0);
  LARDER_CHECK(entry.state != BlockState::kHost || entry.disk_location == 0);
  LARDER_CHECK(!entry.counted_in_parent || CountedBy(entry).has_value());
  LARDER_CHECK(InATier(entry.state) || (!entry.pinned_host && !entry.pinned_disk));
  LARDER_CHECK(InATier(entry.state) || (entry.children == 0 && !entry.counted_in_parent));
  if (entry.state == BlockState::kDoomed) {
    LARDER_CHECK(entry.holds > 0);
  } else {
    LARDER_CHECK(Find(HashOf(entry), entry.variant, entry.digest) == slot);
    LARDER_CHECK(InHost(entry.state) || OnDiskAlone(entry.state) || entry.holds == 0);
  }
}

void IndexShard::CheckInvariants(std::span<VariantTotals> sums) const {
  MutexLock lock(mu_);
  uint32_t used = 0, listed = 0, doomed = 0, disk_only = 0;
  uint64_t metadata_bytes = 0, pinned_host = 0, pinned_disk = 0, evictable_pages = 0;
  for (uint32_t slot = 1; slot < entries_.end(); ++slot) {
    const IndexEntry& entry = entries_[slot];
    if (entry.state == BlockState::kAbsent) continue;
    CheckEntry(slot);
    ++used;
    listed += entry.listed ? 1 : 0;
    if (entry.listed && InHost(entry.state)) evictable_pages += entry.extent.pages();
    doomed += entry.state == BlockState::kDoomed ? 1 : 0;
    if (entry.metadata() != nullptr) metadata_bytes += entry.metadata()->memory_bytes().value();
    if (TakesHostForPins(entry)) pinned_host += entry.extent.pages();
    if (entry.pinned_disk) pinned_disk += entry.extent.pages();
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
  uint32_t in_lists = 0;
  for (const Lists* lists : {&host_lists_, &copied_lists_, &disk_lists_}) {
    for (const RecencyList& list : *lists) {
      list.CheckInvariants();
      in_lists += list.size();
    }
  }
  LARDER_CHECK(used == entries_.used() && listed == in_lists);
  uint32_t copies = 0;
  for (const RecencyList& list : copied_lists_) copies += list.size();
  LARDER_CHECK(copies == copies_ && evictable_pages == listed_pages_);
  LARDER_CHECK(disk_only == disk_only_);
  LARDER_CHECK(doomed == doomed_ && used - doomed == table_.size());
  LARDER_CHECK(metadata_bytes == metadata_bytes_);
  LARDER_CHECK(pinned_host == pinned_pages_.host && pinned_disk == pinned_pages_.disk);
}

}  // namespace larder
