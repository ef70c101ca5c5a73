#include "storage/index/shard_entries.h"

#include <algorithm>
#include <array>

namespace larder {

uint32_t ShardEntries::Find(uint64_t hash, VariantIndex variant, const Digest& digest) const {
  SlotTable::Probe probe = table_.First(hash);
  while (probe.slot != kNone && !Is(slots_[probe.slot], variant, digest))
    probe = table_.Next(hash, probe);
  return probe.slot;
}

void ShardEntries::FindAll(const Group& group, std::span<uint32_t> slots) const {
  constexpr size_t kWave = 64;  // more cache misses than a core can have under way at once
  for (size_t at = 0; at < group.order.size(); at += kWave) {
    const std::span<const uint16_t> wave =
        group.order.subspan(at, std::min(kWave, group.order.size() - at));
    std::array<SlotTable::Probe, kWave> probes;
    for (size_t i = 0; i < wave.size(); ++i) {
      probes[i] = table_.First(group.hashes[wave[i]]);
      if (probes[i].slot != kNone) __builtin_prefetch(&slots_[probes[i].slot]);
    }
    for (size_t i = 0; i < wave.size(); ++i) {
      const uint16_t key = wave[i];
      SlotTable::Probe probe = probes[i];
      while (probe.slot != kNone && !Is(slots_[probe.slot], group.variant, group.keys[key])) {
        probe = table_.Next(group.hashes[key], probe);
      }
      slots[at + i] = probe.slot;
    }
  }
}

uint32_t ShardEntries::FindParent(VariantIndex variant, uint64_t hash) const {
  const auto is_it = [&](const IndexEntry& entry) {
    return entry.variant == variant && HashOf(entry) == hash;
  };
  SlotTable::Probe probe = table_.First(hash);
  while (probe.slot != kNone && !is_it(slots_[probe.slot])) probe = table_.Next(hash, probe);
  if (probe.slot == kNone || slots_[probe.slot].state == BlockState::kReserved) return kNone;
  return probe.slot;
}

uint32_t ShardEntries::Add(uint64_t hash, VariantIndex variant, const Digest& digest) {
  const uint32_t slot = slots_.Allocate();
  if (slot == kNone) return kNone;
  slots_[slot].variant = variant;
  slots_[slot].digest = digest;
  table_.Insert(
      hash, slot, [this](uint32_t s) { return HashOf(slots_[s]); },
      [this](uint32_t s) { __builtin_prefetch(&slots_[s]); });
  return slot;
}

void ShardEntries::Unname(uint32_t slot) {
  table_.Erase(
      HashOf(slots_[slot]), slot, [this](uint32_t s) { return HashOf(slots_[s]); },
      [this](uint32_t s) { __builtin_prefetch(&slots_[s]); });
}

}  // namespace larder
