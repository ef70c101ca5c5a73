// Evictable entries of one shard by recency, doubly linked through the entries.
//
// Ownership: none, the entries are EntrySlots'.
// Thread-safety: none, under the shard's lock.
#pragma once

#include <cstdint>

#include "storage/index/index_entry.h"

namespace larder {

class RecencyList {
 public:
  explicit RecencyList(EntrySlots& entries) : entries_(entries) {}

  // REQUIRES: not listed.
  void PushHot(uint32_t slot);
  void PushCold(uint32_t slot);
  // REQUIRES: listed.
  void Remove(uint32_t slot);
  // Hints that Remove(slot) follows.
  void PrefetchRemove(const IndexEntry& entry) const {
    __builtin_prefetch(&entries_[entry.newer], 1);
    __builtin_prefetch(&entries_[entry.older], 1);
  }

  // EntrySlots::kNone when empty; go on with IndexEntry::newer.
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
