// One block in the index: a cache line.  And where entries live: a slab of slots with stable
// addresses.
//
// All zeros is a free entry.
// Ownership: EntrySlots owns the memory, not what entries point to.
// Thread-safety: none, under the shard's lock.
// Limits: slots 1 .. 2^24 - 1; slab numbers of 16 bits, pages of 24 bits (slabs of up to 64 GiB).
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "storage/check.h"
#include "storage/index/block_metadata.h"
#include "storage/index/block_state.h"
#include "storage/index/eviction.h"
#include "storage/memory/zeroed_memory.h"
#include "storage/types.h"

namespace larder {

// An Extent in 8 bytes: {slab 16 | page 24 | pages 24}.
class PackedExtent {
 public:
  static constexpr uint32_t kPageLimit = 1u << 24;

  void Set(const Extent& e) {
    LARDER_CHECK(e.page < kPageLimit && e.pages < kPageLimit);
    bits_ = uint64_t{static_cast<uint16_t>(e.slab)} << 48 | uint64_t{e.page} << 24 | e.pages;
  }
  [[nodiscard]] uint32_t pages() const { return static_cast<uint32_t>(bits_) & (kPageLimit - 1); }
  [[nodiscard]] Extent Get() const {
    return {.slab = SlabId{static_cast<uint16_t>(bits_ >> 48)},
            .page = static_cast<uint32_t>(bits_ >> 24) & (kPageLimit - 1),
            .pages = pages()};
  }

 private:
  uint64_t bits_ = 0;
};

struct alignas(64) IndexEntry {
  static constexpr uint8_t kManyFollowers = UINT8_MAX;
  Digest digest;
  // On disk alone its parent's IndexHash (0: unknown), else its metadata.
  union {
    const BlockMetadata* owned_metadata = nullptr;
    uint64_t parent_hash;
  };
  uint64_t disk_location = 0;  // the disk tier's; 0: none
  PackedExtent extent;
  uint32_t newer = 0;  // in the list of evictable blocks; next free slot when free
  uint32_t older = 0;
  uint32_t last_use_s = 0;
  uint16_t holds = 0;
  uint16_t children = 0;  // of any tier; saturates, so it is a hint and not a law
  VariantIndex variant{};
  ReuseHistory history;
  uint8_t follower = 0;  // a tag of the block that followed it; 0: none has; kManyFollowers
  BlockState state : 4 = BlockState::kAbsent;
  bool counted_in_parent : 1 = false;  // its leaving lowers the parent's `children`
  bool listed : 1 = false;
  bool pinned_host : 1 = false;
  bool pinned_disk : 1 = false;

  [[nodiscard]] const BlockMetadata* metadata() const {
    return OnDiskAlone(state) ? nullptr : owned_metadata;
  }
  [[nodiscard]] uint32_t IdleSeconds(uint32_t now_s) const {
    return now_s > last_use_s ? now_s - last_use_s : 0;
  }
};
static_assert(sizeof(IndexEntry) == 64);

// Hash of a key.  The variant takes part, since the ranks of an engine store the same digests:
// without it each of them would sit in one run of cells.  The multiplication spreads digests that a
// client made up. Bits 60..63 choose the shard, 52..59 are the tag, the lowest choose the cell.
[[nodiscard]] inline uint64_t IndexHash(VariantIndex variant, const Digest& digest) {
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  uint64_t h = digest.Hash64();
  uint64_t high;
  std::memcpy(&high, digest.bytes.data() + sizeof h, sizeof high);
  h ^= (high << 32 | high >> 32) + (uint64_t{static_cast<uint16_t>(variant)} + 1) * kOdd;
  h ^= h >> 32;
  h *= kOdd;
  return h ^ h >> 29;
}

class EntrySlots {
 public:
  static constexpr uint32_t kNone = 0;
  static constexpr uint32_t kSlotsMax = (1u << 24) - 1;

  // REQUIRES: 0 < entries_max <= kSlotsMax.
  explicit EntrySlots(uint32_t entries_max) : entries_max_(entries_max) {}

  [[nodiscard]] IndexEntry& operator[](uint32_t slot) const {
    return chunks_[slot / kChunkSlots].as<IndexEntry>()[slot % kChunkSlots];
  }
  // kNone when full.  The entry is all zeros.
  [[nodiscard]] uint32_t Allocate();
  // REQUIRES: from Allocate.  Zeroes the entry.
  void Free(uint32_t slot);

  // Slots [1, end) were used at some time.
  [[nodiscard]] uint32_t end() const { return end_; }
  [[nodiscard]] uint32_t used() const { return used_; }
  // What is touched; huge pages count whole.
  [[nodiscard]] uint64_t memory_bytes() const;
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kChunkSlots = ZeroedMemory::kHugePageBytes / sizeof(IndexEntry);
  // Chunks from this one on are huge pages: then the unused part of the last is at most a
  // quarter of the rest.
  static constexpr uint32_t kSmallPageChunks = 4;

  const uint32_t entries_max_;
  std::vector<ZeroedMemory> chunks_;
  uint32_t end_ = 1;
  uint32_t free_ = kNone;
  uint32_t used_ = 0;
};

}  // namespace larder
