#include "storage/store/block_pins.h"

#include <algorithm>

#include "storage/check.h"

namespace larder {

namespace {

bool IsIn(const BlockIndex::Presence& block, Tier tier) {
  return (block.tiers & TierBit(tier)) != 0;
}

}  // namespace

// A pin of DISK also keeps a block in HOST until the block is on disk, so such a pin may need bytes
// of both tiers.
bool BlockPins::HasRoom(Tier tier, const BlockIndex::Presence& block) const {
  const ByteCount bytes(block.pages * kPageBytes);
  const auto has = [&](Tier of, ByteCount most) { return index_.PinnedBytes(of) + bytes <= most; };
  if (tier == Tier::kHost) return has(Tier::kHost, limits_.host_bytes_max);
  return has(Tier::kDisk, limits_.disk_bytes_max) &&
         (IsIn(block, Tier::kDisk) || has(Tier::kHost, limits_.host_bytes_max));
}

bool BlockPins::HasShare(std::string_view owner, Tier tier, const BlockIndex::Presence& block,
                         bool first) const {
  const std::optional<PinTable::Holding> holding = table_.HoldingOf(owner);
  if (!holding || holding->pins == 0) return true;
  const auto fits = [](uint64_t held, uint64_t more, uint64_t all, uint64_t limit) {
    return all + more <= limit && held + more <= 3 * (limit - all - more);
  };
  if (!fits(holding->pins, 1, table_.size(), limits_.pins_max)) return false;
  if (!first) return true;
  const ByteCount most = tier == Tier::kHost ? limits_.host_bytes_max : limits_.disk_bytes_max;
  const uint64_t held = tier == Tier::kHost ? holding->host_pages : holding->disk_pages;
  return fits(held * kPageBytes, block.pages * kPageBytes, index_.PinnedBytes(tier).value(),
              most.value());
}

BlockStatus BlockPins::Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms) {
  LARDER_CHECK(key.tier == Tier::kHost || key.tier == Tier::kDisk);
  MutexLock lock(mu_);
  BlockIndex::Presence presence;
  index_.Lookup(key.variant, {&key.digest, 1}, {&presence, 1});
  if (presence.tiers == 0) return BlockStatus::kMissing;
  // False also if pins of the key could not keep the block when it entered.
  const bool kept = index_.IsPinned(key.variant, key.digest, key.tier);
  const bool full = !kept && !HasRoom(key.tier, presence);
  const std::optional<uint64_t> before = table_.DeadlineOf(owner, key);
  if (!before && (full || !HasShare(owner, key.tier, presence, !kept))) return BlockStatus::kFull;
  if (owner.empty()) deadline_ms = std::max(deadline_ms, before.value_or(0));
  const PinTable::AddResult added = table_.Add(owner, key, deadline_ms, presence.pages);
  if (added == PinTable::AddResult::kFull) return BlockStatus::kFull;
  NoteSize();
  if (full) return BlockStatus::kFull;
  if (!kept && !index_.SetPinned(key.variant, key.digest, key.tier, true)) {
    // The block has left since the lookup.
    if (!before) LARDER_CHECK(table_.Remove(owner, key));
    NoteSize();
    return BlockStatus::kMissing;
  }
  return IsIn(presence, key.tier) ? BlockStatus::kOk : BlockStatus::kPending;
}

bool BlockPins::Restore(std::string_view owner, const PinKey& key, uint64_t deadline_ms) {
  MutexLock lock(mu_);
  BlockIndex::Presence presence;
  index_.Lookup(key.variant, {&key.digest, 1}, {&presence, 1});
  const uint64_t pages = presence.tiers == 0 ? 0 : presence.pages;
  if (table_.Add(owner, key, deadline_ms, pages) == PinTable::AddResult::kFull) return false;
  NoteSize();
  Mark(key);
  return true;
}

bool BlockPins::Remove(std::string_view owner, const PinKey& key) {
  MutexLock lock(mu_);
  if (!table_.Remove(owner, key)) return false;
  LetGo(key);
  return true;
}

std::vector<Pin> BlockPins::RemoveIf(
    absl::FunctionRef<bool(std::string_view owner, const PinKey& key)> which) {
  MutexLock lock(mu_);
  std::vector<Pin> removed = table_.RemoveIf(which);
  for (const Pin& pin : removed) LetGo(pin.key);
  return removed;
}

std::vector<Pin> BlockPins::Expire(uint64_t now_ms, size_t pins) {
  MutexLock lock(mu_);
  std::vector<Pin> expired = table_.Expire(now_ms, pins);
  for (const Pin& pin : expired) LetGo(pin.key);
  return expired;
}

void BlockPins::LetGo(const PinKey& key) {
  NoteSize();
  if (table_.Count(key) == 0) index_.SetPinned(key.variant, key.digest, key.tier, false);
}

void BlockPins::Mark(const PinKey& key) {
  BlockIndex::Presence presence;
  index_.Lookup(key.variant, {&key.digest, 1}, {&presence, 1});
  if (presence.tiers == 0 || !HasRoom(key.tier, presence)) return;
  index_.SetPinned(key.variant, key.digest, key.tier, true);
}

// Add and Restore change the table and size_ before they mark the index.  Entered reads size_ and
// the table after the name has entered the index.  So if Entered runs concurrently with Add or
// Restore, at least one of the two calls marks the entry, if the limits allow it.
void BlockPins::Entered(VariantIndex variant, const Digest& digest) {
  if (size() == 0) return;
  MutexLock lock(mu_);
  for (const Tier tier : {Tier::kHost, Tier::kDisk}) {
    if (const PinKey key{variant, digest, tier}; table_.Count(key) > 0) Mark(key);
  }
}

std::optional<uint64_t> BlockPins::DeadlineOf(std::string_view owner, const PinKey& key) const {
  MutexLock lock(mu_);
  return table_.DeadlineOf(owner, key);
}

uint32_t BlockPins::Count(const PinKey& key) const {
  MutexLock lock(mu_);
  return table_.Count(key);
}

std::vector<Pin> BlockPins::All() const {
  MutexLock lock(mu_);
  std::vector<Pin> all;
  all.reserve(table_.size());
  table_.ForEach([&](std::string_view owner, const PinKey& key, uint64_t deadline_ms) {
    all.push_back({std::string(owner), key, deadline_ms});
  });
  return all;
}

void BlockPins::CheckInvariants() const {
  MutexLock lock(mu_);
  table_.CheckInvariants();
  LARDER_CHECK(size() == table_.size());
  index_.ForEach([&](const BlockIndex::View& view) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    if (!InATier(view.state)) return;
    const auto wanted = [&](Tier tier) LARDER_NO_THREAD_SAFETY_ANALYSIS {
      return table_.Count({view.variant, view.digest, tier}) > 0;
    };
    LARDER_CHECK(!view.pinned_host || wanted(Tier::kHost));
    LARDER_CHECK(!view.pinned_disk || wanted(Tier::kDisk));
  });
}

}  // namespace larder
