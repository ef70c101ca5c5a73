// Hands out extents of the pool's slabs and takes them back.  Does not touch their bytes.
//
// Best fit over free runs, neighbours merge at once, so free space is never split more than by live extents.
// Each extent has an owner word, so that eviction can find who sits beside a hole (`Neighbours`).
//
// Ownership: made by BlockStore, outlives every Extent it returned.
// Thread-safety: none; BlockStore calls it under its lock.
// Lifecycle: AddSlab (as slabs come online) -> Allocate -> SetOwner -> Free.
// Limits: an extent lies in one slab.  Cost: O(log free runs); 4 B of owner word per page.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "storage/types.h"

namespace larder {

class ExtentAllocator {
 public:
  // Who holds an extent, as BlockStore encodes it; kNoOwner = nobody that could be evicted (reserved, quarantined).
  using Owner = uint32_t;
  static constexpr Owner kNoOwner = 0;

  explicit ExtentAllocator(ByteCount slab_bytes);

  // REQUIRES: slabs come in order 0, 1, 2, ...
  void AddSlab(SlabId slab);

  // The smallest free run that fits; nullopt when there is none.
  // REQUIRES: 0 < pages <= pages of a slab.
  [[nodiscard]] std::optional<Extent> Allocate(uint32_t pages);
  // REQUIRES: returned by Allocate and not yet freed (CHECKed).
  void Free(const Extent& extent);
  // REQUIRES: live.
  void SetOwner(const Extent& extent, Owner owner);
  [[nodiscard]] Owner owner(const Extent& extent) const;

  // One cheap contiguous window: the owners to evict so that `pages` become free in one run, starting the search at
  // `*cursor` (moves on, wraps).  Windows with kNoOwner extents or owners that `evictable` refuses are skipped.
  // Empty when no window was found in a bounded search (`kWindowTries`).
  template <class Evictable>
  [[nodiscard]] std::vector<Owner> FindWindow(uint32_t pages, uint64_t* cursor, Evictable evictable) const;

  [[nodiscard]] ByteCount free_bytes() const { return ByteCount(free_pages_ * kPageBytes); }
  [[nodiscard]] ByteCount total_bytes() const { return ByteCount(slab_pages_ * slabs_.size() * kPageBytes); }
  [[nodiscard]] uint32_t largest_free_pages() const;
  [[nodiscard]] size_t live_extents() const { return live_; }

  void CheckInvariants() const;  // O(pages); tests and debug dumps
};

}  // namespace larder
