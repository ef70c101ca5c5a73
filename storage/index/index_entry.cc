#include "storage/index/index_entry.h"

namespace larder {

uint32_t EntrySlots::Allocate() {
  uint32_t slot = free_;
  if (slot != kNone) {
    IndexEntry& entry = (*this)[slot];
    free_ = entry.newer;
    entry.newer = 0;
  } else {
    if (end_ > entries_max_) return kNone;
    slot = end_;
    if (slot / kChunkSlots == chunks_.size()) {
      chunks_.emplace_back(kHugePageBytes,
                           /*huge=*/chunks_.size() >= kSmallPageChunks);
    }
    ++end_;
  }
  ++used_;
  return slot;
}

void EntrySlots::Free(uint32_t slot) {
  IndexEntry& entry = (*this)[slot];
  entry = IndexEntry{};
  entry.newer = free_;
  free_ = slot;
  --used_;
}

uint64_t EntrySlots::memory_bytes() const {
  const uint64_t touched = RoundUp(uint64_t{end_} * sizeof(IndexEntry), kPageBytes);
  if (chunks_.size() <= kSmallPageChunks) return touched;
  return chunks_.size() * uint64_t{kHugePageBytes};
}

void EntrySlots::CheckInvariants() const {
  uint32_t free_slots = 0;
  for (uint32_t slot = free_; slot != kNone; slot = (*this)[slot].newer) {
    LARDER_CHECK(slot < end_ && (*this)[slot].state == BlockState::kAbsent);
    LARDER_CHECK(++free_slots < end_);
  }
  LARDER_CHECK(free_slots + used_ + 1 == end_);
}

}  // namespace larder
