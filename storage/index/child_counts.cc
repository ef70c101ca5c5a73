#include "storage/index/child_counts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace larder {
namespace {

constexpr uint16_t kCountMax = std::numeric_limits<uint16_t>::max();

}  // namespace

std::optional<uint64_t> ChildCounts::ParentHash(const IndexEntry& entry) {
  if (OnDiskAlone(entry.state)) return entry.parent_hash;
  if (entry.owned_metadata == nullptr) return std::nullopt;
  return IndexHash(entry.variant, entry.owned_metadata->parent());
}

ChildCounts::Raised ChildCounts::Raise(VariantIndex variant, uint64_t parent, const Digest& child) {
  const auto tag = static_cast<uint8_t>(child.Hash64() % (IndexEntry::kManyFollowers - 1) + 1);
  const uint32_t slot = entries_.FindParent(variant, parent);
  if (slot == ShardEntries::kNone || entries_[slot].children == kCountMax) return {};
  IndexEntry& entry = entries_[slot];
  ++entry.children;
  // The history says that the parent is shared, but which blocks have followed it is not known.
  const bool unknown = entry.follower == 0 && entry.history.shared;
  if (entry.follower == 0) entry.follower = tag;
  const bool only = entry.follower == tag;
  if (!only) entry.follower = IndexEntry::kManyFollowers;
  return {.counted_by = parent,
          .history = only && !unknown ? entry.history : ReuseHistory(),
          .forked = !only && !entry.history.shared};
}

std::optional<uint64_t> ChildCounts::MarkShared(VariantIndex variant, uint64_t parent) {
  const uint32_t slot = entries_.FindParent(variant, parent);
  if (slot == ShardEntries::kNone || entries_[slot].history.shared) return std::nullopt;
  IndexEntry& entry = entries_[slot];
  lists_.Unlist(slot);  // the history chooses its list
  entry.history.shared = true;
  lists_.Relist(slot);
  return ParentHash(entry);
}

void ChildCounts::Lower(VariantIndex variant, uint64_t parent,
                        std::optional<uint32_t> child_last_use_s) {
  const uint32_t slot = entries_.FindParent(variant, parent);
  // The count may be 0 already: the parent may have left and entered again since the child was
  // counted.
  if (slot == ShardEntries::kNone || entries_[slot].children == 0) return;
  IndexEntry& entry = entries_[slot];
  --entry.children;
  if (entry.children > 0 || !entry.listed || !child_last_use_s ||
      entry.last_use_s > *child_last_use_s)
    return;
  lists_.MakeColdest(slot);
}

uint32_t ChildCounts::UncountedFrom(uint32_t from, std::span<Uncounted> out, size_t* count) const {
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

void ChildCounts::Count(const Uncounted& block, Raised& raised) {
  IndexEntry& entry = entries_[block.slot];
  if (!InATier(entry.state) || !ShardEntries::Is(entry, block.variant, block.digest)) return;
  if (entry.counted_in_parent || ParentHash(entry) != block.parent) return;
  entry.counted_in_parent = std::exchange(raised.counted_by, std::nullopt).has_value();
}

}  // namespace larder
