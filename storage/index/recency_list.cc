#include "storage/index/recency_list.h"

namespace larder {

void RecencyList::PushHot(uint32_t slot) {
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(!entry.listed);
  entry.listed = true;
  entry.newer = EntrySlots::kNone;
  entry.older = hottest_;
  (hottest_ != EntrySlots::kNone ? entries_[hottest_].newer : coldest_) = slot;
  hottest_ = slot;
  ++size_;
}

void RecencyList::PushCold(uint32_t slot) {
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(!entry.listed);
  entry.listed = true;
  entry.older = EntrySlots::kNone;
  entry.newer = coldest_;
  (coldest_ != EntrySlots::kNone ? entries_[coldest_].older : hottest_) = slot;
  coldest_ = slot;
  ++size_;
}

void RecencyList::Remove(uint32_t slot) {
  IndexEntry& entry = entries_[slot];
  LARDER_CHECK(entry.listed);
  (entry.newer != EntrySlots::kNone ? entries_[entry.newer].older : hottest_) = entry.older;
  (entry.older != EntrySlots::kNone ? entries_[entry.older].newer : coldest_) = entry.newer;
  entry.newer = entry.older = EntrySlots::kNone;
  entry.listed = false;
  --size_;
}

void RecencyList::CheckInvariants() const {
  uint32_t seen = 0;
  uint32_t before = EntrySlots::kNone;
  for (uint32_t slot = coldest_; slot != EntrySlots::kNone; slot = entries_[slot].newer) {
    LARDER_CHECK(entries_[slot].listed && entries_[slot].older == before);
    LARDER_CHECK(++seen <= size_);
    before = slot;
  }
  LARDER_CHECK(before == hottest_ && seen == size_);
}

}  // namespace larder
