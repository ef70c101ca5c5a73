// A list of evictable entries of one shard in the order of their last use, doubly linked through
// the entries.
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

  // PushHot makes the entry the most recent one, PushCold the next to leave.  REQUIRES: not listed.
  void PushHot(uint32_t slot);
  void PushCold(uint32_t slot);
  // REQUIRES: listed.
  void Remove(uint32_t slot);
  // Hints that Remove(slot) follows.
  void PrefetchRemove(const IndexEntry& entry) const {
    __builtin_prefetch(&entries_[entry.newer], 1);
    __builtin_prefetch(&entries_[entry.older], 1);
  }

  // EntrySlots::kNone if the list is empty; IndexEntry::newer leads to the next entry.
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
