// What a shard does about leaving by eviction: who goes first, who stays for his pins, and what is
// remembered of those who went.
#include <algorithm>

#include "storage/index/index_shard.h"

namespace larder {
namespace {

constexpr uint32_t kNone = EntrySlots::kNone;

}  // namespace

double IndexShard::WorthOf(const IndexEntry& entry, const EvictionPolicy& policy, uint32_t now_s) {
  const BlockMetadata* const metadata = entry.metadata();
  const size_t tokens = metadata == nullptr ? 0 : metadata->tokens().size();
  return policy.Worth({.bytes = ByteCount(entry.extent.pages() * kPageBytes),
                       .tokens = static_cast<uint32_t>(tokens),
                       .idle_s = entry.IdleSeconds(now_s),
                       .history = entry.history,
                       .elsewhere = entry.state == BlockState::kHostDisk,
                       .unwritten = entry.state == BlockState::kHost});
}

uint32_t IndexShard::Coldest(RecencyList& list, bool parents_too) {
  uint32_t slot = list.coldest();
  for (uint32_t looks = std::min(kEvictionLook, list.size()); looks > 0; --looks) {
    const IndexEntry& entry = entries_[slot];
    if (entry.holds == 0 && (parents_too || entry.children == 0)) return slot;
    const uint32_t newer = entry.newer;
    list.Remove(slot);
    list.PushHot(slot);
    slot = newer;
  }
  return kNone;
}

uint32_t IndexShard::ColdestUnpinnedCopy(RecencyList& list) {
  for (uint32_t looks = std::min(kEvictionLook, list.size()); looks > 0; --looks) {
    const uint32_t slot = list.coldest();
    const IndexEntry& entry = entries_[slot];
    if (entry.holds == 0 && !entry.pinned_disk) return slot;
    list.Remove(slot);
    list.PushHot(slot);
  }
  return kNone;
}

// Parents may leave too, so nothing hides the rest, and all keep their order.
uint32_t IndexShard::ColdestOfCopied(const RecencyList& list) const {
  uint32_t parent = kNone;
  uint32_t slot = list.coldest();
  for (uint32_t looks = std::min(kEvictionLook, list.size()); looks > 0; --looks) {
    const IndexEntry& entry = entries_[slot];
    if (entry.holds == 0 && entry.children == 0) return slot;
    if (entry.holds == 0 && parent == kNone) parent = slot;
    slot = entry.newer;
  }
  return parent;
}

IndexShard::Candidate IndexShard::LeastWorthyOfCopied(const EvictionPolicy& policy,
                                                      uint32_t now_s) {
  return LeastWorthy(copied_lists_, policy, now_s,
                     [&](RecencyList& list)
                         LARDER_NO_THREAD_SAFETY_ANALYSIS { return ColdestOfCopied(list); });
}

IndexShard::Candidate IndexShard::LeastWorthyOf(Lists& lists, const EvictionPolicy& policy,
                                                bool parents_too, uint32_t now_s) {
  return LeastWorthy(lists, policy, now_s, [&](RecencyList& list) LARDER_NO_THREAD_SAFETY_ANALYSIS {
    return Coldest(list, parents_too);
  });
}

IndexShard::Candidate IndexShard::LeastWorthyOfAll(const EvictionPolicy& policy, bool parents_too,
                                                   uint32_t now_s) {
  const Candidate copied = LeastWorthyOfCopied(policy, now_s);
  const Candidate host = LeastWorthyOf(host_lists_, policy, parents_too, now_s);
  return host < copied ? host : copied;
}

IndexShard::Candidate IndexShard::Least(const EvictionPolicy& policy, uint32_t now_s) {
  MutexLock lock(mu_);
  return LeastWorthyOfAll(policy, false, now_s);
}

std::optional<IndexShard::Departure> IndexShard::EvictColdest(const EvictionPolicy& policy,
                                                              bool parents_too, uint32_t now_s) {
  MutexLock lock(mu_);
  const uint32_t least = LeastWorthyOfAll(policy, parents_too, now_s).slot;
  if (least == kNone) return std::nullopt;
  return LeaveHost(least);
}

std::optional<IndexShard::Departure> IndexShard::Evict(uint32_t slot) {
  MutexLock lock(mu_);
  if (!EvictableLocked(slot)) return std::nullopt;
  return LeaveHost(slot);
}

std::optional<double> IndexShard::WorthInHost(uint32_t slot, const EvictionPolicy& policy,
                                              uint32_t now_s) const {
  MutexLock lock(mu_);
  if (!EvictableLocked(slot)) return std::nullopt;
  return WorthOf(entries_[slot], policy, now_s);
}

// ---- pins

bool IndexShard::SetPinned(uint64_t hash, VariantIndex variant, const Digest& digest, Tier tier,
                           bool pinned) {
  MutexLock lock(mu_);
  const uint32_t slot = Find(hash, variant, digest);
  if (slot == kNone || !InATier(entries_[slot].state)) return false;
  IndexEntry& entry = entries_[slot];
  CountPinned(entry, -1);
  if (tier == Tier::kDisk) {
    entry.pinned_disk = pinned;
  } else {
    entry.pinned_host = pinned;
  }
  CountPinned(entry, 1);
  Relist(slot);
  return true;
}

void IndexShard::CountPinned(const IndexEntry& entry, int64_t more) {
  const auto pages = static_cast<uint64_t>(more * entry.extent.pages());
  const auto add = [pages](std::atomic<uint64_t>* to) {
    to->store(to->load(std::memory_order_relaxed) + pages, std::memory_order_relaxed);
  };
  if (TakesHostForPins(entry)) add(&pinned_pages_.host);
  if (entry.pinned_disk && InATier(entry.state)) add(&pinned_pages_.disk);
}

// ---- what is remembered of them

// That of the parent, where this alone follows it: so a chain stays of one class, and its end does
// not outlive its beginning.  Or its own, from before it left, where more is known by that.
void IndexShard::Remember(IndexEntry& entry, const Raised& raised, uint32_t now_s) {
  const std::optional<GhostTable::Departed> past = departed_.Take(HashOf(entry));
  entry.history = raised.history;
  if (!past || past->history.uses < entry.history.uses) return;
  const uint32_t idle_s = now_s > past->last_use_s ? now_s - past->last_use_s : 0;
  entry.history = UsedAgain(past->history, idle_s);
}

void IndexShard::Forget(const IndexEntry& entry) {
  departed_.Remember(HashOf(entry), {entry.history, entry.last_use_s}, entries_.used());
}

}  // namespace larder
