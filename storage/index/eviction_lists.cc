#include "storage/index/eviction_lists.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"

namespace larder {
namespace {

template <size_t... kClasses>
std::array<RecencyList, sizeof...(kClasses)> MakeLists(EntrySlots& slots,
                                                       std::index_sequence<kClasses...>) {
  return {((void)kClasses, RecencyList(slots))...};
}

}  // namespace

EvictionLists::EvictionLists(ShardEntries& entries)
    : entries_(entries),
      host_(MakeLists(entries.slots(), std::make_index_sequence<kReuseClasses>())),
      copied_(MakeLists(entries.slots(), std::make_index_sequence<kReuseClasses>())),
      disk_(MakeLists(entries.slots(), std::make_index_sequence<kReuseClasses>())) {}

// ---- lists

RecencyList* EvictionLists::ListFor(const IndexEntry& entry) {
  const uint32_t reuse_class = ReuseClassOf(entry.history);
  switch (entry.state) {
    case BlockState::kHost:
      return &host_[reuse_class];
    case BlockState::kHostDisk:
      return &copied_[reuse_class];
    case BlockState::kDisk:
      return &disk_[reuse_class];
    default:
      return nullptr;
  }
}

void EvictionLists::Relist(uint32_t slot) {
  const IndexEntry& entry = entries_[slot];
  const bool evictable = ListFor(entry) != nullptr && entry.holds == 0 && !PinnedHere(entry);
  if (evictable == entry.listed) return;
  if (evictable) {
    List(slot);
  } else {
    Unlist(slot);
  }
}

void EvictionLists::List(uint32_t slot) {
  ListFor(entries_[slot])->PushHot(slot);
  if (entries_[slot].state == BlockState::kHostDisk) CountCopies(1);
  if (InHost(entries_[slot].state)) CountListed(entries_[slot].extent.pages(), true);
}

void EvictionLists::Unlist(uint32_t slot) {
  if (!entries_[slot].listed) return;
  ListFor(entries_[slot])->Remove(slot);
  if (entries_[slot].state == BlockState::kHostDisk) CountCopies(-1);
  if (InHost(entries_[slot].state)) CountListed(entries_[slot].extent.pages(), false);
}

void EvictionLists::MakeColdest(uint32_t slot) {
  RecencyList* const list = ListFor(entries_[slot]);
  list->Remove(slot);
  list->PushCold(slot);
}

void EvictionLists::Resize(uint32_t slot, const Extent& extent) {
  IndexEntry& entry = entries_[slot];
  CountPinned(entry, -1);
  if (entry.listed) CountListed(entry.extent.pages(), false);
  entry.extent.Set(extent);
  if (entry.listed) CountListed(extent.pages, true);
  CountPinned(entry, 1);
}

void EvictionLists::CountPinned(const IndexEntry& entry, int64_t more) {
  const auto pages = static_cast<uint64_t>(more * entry.extent.pages());
  const auto add = [pages](std::atomic<uint64_t>* to) {
    to->store(to->load(std::memory_order_relaxed) + pages, std::memory_order_relaxed);
  };
  if (TakesHostForPins(entry)) add(&pinned_.host);
  if (entry.pinned_disk && InATier(entry.state)) add(&pinned_.disk);
}

// ---- what leaves first

double EvictionLists::WorthOf(const IndexEntry& entry, const EvictionPolicy& policy,
                              uint32_t now_s) {
  const BlockMetadata* const metadata = entry.metadata();
  const size_t tokens = metadata == nullptr ? 0 : metadata->tokens().size();
  return policy.Worth({.bytes = ByteCount(entry.extent.pages() * kPageBytes),
                       .tokens = static_cast<uint32_t>(tokens),
                       .idle_s = entry.IdleSeconds(now_s),
                       .history = entry.history,
                       .elsewhere = entry.state == BlockState::kHostDisk,
                       .unwritten = entry.state == BlockState::kHost});
}

// The index knows the number of tokens only of blocks in HOST.  It leaves that number out for all
// blocks here, so that a block in both tiers and one on disk alone differ only by their uses and
// their sizes.
double EvictionLists::WorthOnDisk(const IndexEntry& entry, const EvictionPolicy& policy,
                                  uint32_t now_s) {
  return policy.Worth({.bytes = ByteCount(entry.extent.pages() * kPageBytes),
                       .idle_s = entry.IdleSeconds(now_s),
                       .history = entry.history});
}

uint32_t EvictionLists::Coldest(RecencyList& list, bool parents_too) {
  uint32_t slot = list.coldest();
  for (uint32_t looks = std::min(kEvictionLook, list.size()); looks > 0; --looks) {
    const IndexEntry& entry = entries_[slot];
    if (entry.holds == 0 && (parents_too || entry.children == 0)) return slot;
    const uint32_t newer = entry.newer;
    list.Remove(slot);
    list.PushHot(slot);
    slot = newer;
  }
  return EntrySlots::kNone;
}

uint32_t EvictionLists::ColdestUnpinnedCopy(RecencyList& list) {
  for (uint32_t looks = std::min(kEvictionLook, list.size()); looks > 0; --looks) {
    const uint32_t slot = list.coldest();
    const IndexEntry& entry = entries_[slot];
    if (entry.holds == 0 && !entry.pinned_disk) return slot;
    list.Remove(slot);
    list.PushHot(slot);
  }
  return EntrySlots::kNone;
}

uint32_t EvictionLists::ColdestOfCopied(const RecencyList& list) const {
  uint32_t parent = EntrySlots::kNone;
  uint32_t slot = list.coldest();
  for (uint32_t looks = std::min(kEvictionLook, list.size()); looks > 0; --looks) {
    const IndexEntry& entry = entries_[slot];
    if (entry.holds == 0 && entry.children == 0) return slot;
    if (entry.holds == 0 && parent == EntrySlots::kNone) parent = slot;
    slot = entry.newer;
  }
  return parent;
}

template <class Choose>
EvictionLists::Candidate EvictionLists::LeastWorthy(Lists& lists, const EvictionPolicy& policy,
                                                    uint32_t now_s, Choose choose) {
  Candidate least;
  for (RecencyList& list : lists) {
    const uint32_t slot = choose(list);
    if (slot == EntrySlots::kNone) continue;
    const Candidate here = {slot, WorthOf(entries_[slot], policy, now_s), list.size()};
    if (here < least) least = here;
  }
  return least;
}

EvictionLists::Candidate EvictionLists::LeastInHost(const EvictionPolicy& policy, bool parents_too,
                                                    uint32_t now_s) {
  const Candidate copied = LeastWorthy(
      copied_, policy, now_s, [&](const RecencyList& list) { return ColdestOfCopied(list); });
  const Candidate host = LeastWorthy(host_, policy, now_s,
                                     [&](RecencyList& list) { return Coldest(list, parents_too); });
  return host < copied ? host : copied;
}

EvictionLists::Candidate EvictionLists::LeastOnDiskAlone(const EvictionPolicy& policy,
                                                         bool parents_too, uint32_t now_s) {
  return LeastWorthy(disk_, policy, now_s,
                     [&](RecencyList& list) { return Coldest(list, parents_too); });
}

EvictionLists::Candidate EvictionLists::LeastCopied(const EvictionPolicy& policy, uint32_t now_s) {
  return LeastWorthy(copied_, policy, now_s,
                     [&](RecencyList& list) { return ColdestUnpinnedCopy(list); });
}

void EvictionLists::CheckInvariants() const {
  uint32_t listed = 0;
  uint64_t listed_pages = 0, pinned_host = 0, pinned_disk = 0;
  for (uint32_t slot = 1; slot < entries_.end(); ++slot) {
    const IndexEntry& entry = entries_[slot];
    if (entry.state == BlockState::kAbsent) continue;
    const bool has_list = InHost(entry.state) || entry.state == BlockState::kDisk;
    LARDER_CHECK(!entry.listed || (has_list && !PinnedHere(entry)));
    LARDER_CHECK(entry.listed || !has_list || entry.holds > 0 || PinnedHere(entry));
    listed += entry.listed ? 1 : 0;
    if (entry.listed && InHost(entry.state)) listed_pages += entry.extent.pages();
    if (TakesHostForPins(entry)) pinned_host += entry.extent.pages();
    if (entry.pinned_disk) pinned_disk += entry.extent.pages();
  }
  uint32_t in_lists = 0, copies = 0;
  for (const Lists* lists : {&host_, &copied_, &disk_}) {
    for (const RecencyList& list : *lists) {
      list.CheckInvariants();
      in_lists += list.size();
      if (lists == &copied_) copies += list.size();
    }
  }
  LARDER_CHECK(listed == in_lists && copies == copies_);
  LARDER_CHECK(listed_pages == listed_pages_);
  LARDER_CHECK(pinned_host == pinned_.host && pinned_disk == pinned_.disk);
}

}  // namespace larder
