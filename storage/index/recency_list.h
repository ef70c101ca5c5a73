// A list of entries of one index shard from the coldest, which evictions look at first, to the
// hottest; roughly the order of their last use.  Doubly linked through the entries.
//
// Ownership: none; EntrySlots owns the entries.
// Thread-safety: none; the shard's lock guards it.
#pragma once

#include <cstdint>

#include "storage/index/index_entry.h"

namespace larder {

class RecencyList {
 public:
  explicit RecencyList(EntrySlots& entries) : entries_(entries) {}

  // PushHot makes the entry the hottest of the list, PushCold the coldest.
  // REQUIRES: the entry is not on a list.
  void PushHot(uint32_t slot);
  void PushCold(uint32_t slot);
  // REQUIRES: the entry is on this list.
  void Remove(uint32_t slot);
  // A hint that Remove of this entry will follow; prefetches its neighbours.
  void PrefetchRemove(const IndexEntry& entry) const {
    __builtin_prefetch(&entries_[entry.newer], 1);
    __builtin_prefetch(&entries_[entry.older], 1);
  }

  // Returns the slot of the coldest entry, from which IndexEntry::newer leads to the next;
  // EntrySlots::kNone if the list is empty.
  [[nodiscard]] uint32_t coldest() const { return coldest_; }
  [[nodiscard]] uint32_t size() const { return size_; }
  void CheckInvariants() const;

 private:
  EntrySlots& entries_;
  uint32_t hottest_ = EntrySlots::kNone;
  uint32_t coldest_ = EntrySlots::kNone;
  uint32_t size_ = 0;
};

}  // namespace larder
