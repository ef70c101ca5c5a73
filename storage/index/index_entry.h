// IndexEntry, the entry of one block, which is one cache line; and EntrySlots, the memory of the
// entries of an index shard, in slots with stable addresses.
//
// A free entry is all zeros, except `newer`.
// Ownership: EntrySlots owns the memory, but not what entries point to.
// Thread-safety: none; the shard's lock guards entries and slots.
// Limits: slots 1 .. 2^24 - 1; slab numbers of 16 bits, pages of 24 bits (slabs below 64 GiB).
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "storage/check.h"
#include "storage/index/block_metadata.h"
#include "storage/index/block_state.h"
#include "storage/index/eviction_policy.h"
#include "storage/memory/huge_pages.h"
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
  // The IndexHash of the parent (0: unknown) if the block is on disk only, otherwise the metadata
  // (may be null).
  union {
    const BlockMetadata* owned_metadata = nullptr;
    uint64_t parent_hash;
  };
  uint64_t disk_location = 0;  // a DiskLocation of the disk tier; 0: none
  PackedExtent extent;
  uint32_t newer = 0;  // the next hotter slot on its RecencyList; if free, the next free slot
  uint32_t older = 0;
  uint32_t last_use_s = 0;
  uint16_t holds = 0;
  uint16_t children = 0;  // in any tier; saturates, so it is a hint
  VariantIndex variant{};
  ReuseHistory history;
  // A hash of the block that has followed this one in its chain; 0: none is known; or
  // kManyFollowers.
  uint8_t follower = 0;
  BlockState state : 4 = BlockState::kAbsent;
  bool counted_in_parent : 1 = false;  // when it leaves, the parent's `children` is lowered
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

// Returns the hash of a block's name.  The hash includes the variant, since equal digests in many
// variants, as of an engine's ranks, would otherwise collide.  The multiplication spreads digests
// that a client has made up and that differ in few bits.  Bits 60 to 63 of the hash choose the
// shard, the lowest bits the cell of its SlotTable; bits 52 to 59 are the tag in the cell.
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
  // Returns the slot of an entry of zeros; kNone if all slots are used.
  [[nodiscard]] uint32_t Allocate();
  // Makes the slot free for a later Allocate.  REQUIRES: `slot` is from Allocate and not free.
  void Free(uint32_t slot);

  // Slots [1, end) have an entry or had one.
  [[nodiscard]] uint32_t end() const { return end_; }
  [[nodiscard]] uint32_t used() const { return used_; }
  // Returns about how much memory of entries has been touched.
  [[nodiscard]] uint64_t memory_bytes() const;
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kChunkSlots = kHugePageBytes / sizeof(IndexEntry);
  // From this index of chunks_ on, chunks (of 2 MiB) ask for huge pages: the unused part of the
  // last chunk is then at most a quarter of the memory of the chunks before it.
  static constexpr uint32_t kSmallPageChunks = 4;

  const uint32_t entries_max_;
  std::vector<ZeroedMemory> chunks_;
  uint32_t end_ = 1;
  uint32_t free_ = kNone;
  uint32_t used_ = 0;
};

}  // namespace larder
