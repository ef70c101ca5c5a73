// Hands out extents of the pool's slabs and takes them back.  Does not touch their bytes.
//
// Best fit over free runs, neighbours merge at once, so free space is never split more than by live
// extents.  Each extent has an owner word, so that eviction can find who to ask to leave when free
// space suffices but lies scattered (`FindWindow`).  It does not choose whom to evict for want of
// space: that is for the eviction policy.
//
// Ownership: made by BlockStore (host memory) and DiskShard (data files, where a slab is a file);
// outlives every Extent it returned.
// Thread-safety: none; its owner calls it under a lock.
// Lifecycle: AddSlab (as slabs come online) -> Allocate or AllocateAt -> SetOwner -> Free.
// Limits: an extent lies in one slab.  Cost: O(log free runs), freeing also reads a bit per page;
// 4.25 B per page (owner word and two bits) and about 40 B per free run.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "storage/types.h"

namespace larder {

class ExtentAllocator {
 public:
  // Who holds an extent, as BlockStore encodes it; kNoOwner = nobody that could be evicted
  // (reserved, quarantined).
  using Owner = uint32_t;
  static constexpr Owner kNoOwner = 0;

  // FindWindow looks at this many runs (free or live), and one more for each page that it wants.
  static constexpr uint32_t kWindowTries = 256;

  // REQUIRES: a multiple of the page size, below 16 TiB.
  explicit ExtentAllocator(ByteCount slab_bytes);

  // REQUIRES: slabs come in order 0, 1, 2, ...
  void AddSlab(SlabId slab);

  // The smallest free run that fits, of equal ones the first; nullopt when there is none.
  // REQUIRES: 0 < pages <= pages of a slab.
  [[nodiscard]] std::optional<Extent> Allocate(uint32_t pages);
  // Exactly this one, as a former process had it; false when any of it is not free, or it lies
  // outside the slabs.  Any values are allowed.
  [[nodiscard]] bool AllocateAt(const Extent& extent);
  // REQUIRES: live (CHECKed).
  void Free(const Extent& extent);
  // Whether exactly this extent was allocated and not yet freed.  Any values are allowed.
  [[nodiscard]] bool IsLive(const Extent& extent) const;
  // REQUIRES: live (CHECKed).
  void SetOwner(const Extent& extent, Owner owner);
  // REQUIRES: live (CHECKed).  kNoOwner after Allocate.
  [[nodiscard]] Owner owner(const Extent& extent) const;

  // The owners to evict so that `pages` become free in one run.  Of the windows met in a bounded
  // search from `*cursor` (any value; moves on, wraps), the one whose live pages are worth least in
  // all.  `worth` says what a page of an owner is worth, above 0; nullopt: it must stay.  Windows
  // with such owners or kNoOwner extents are skipped.  Empty when the search met none; a later call
  // looks elsewhere.  In the order in which they lie.  *cost, where given: their worth in all.
  // REQUIRES: 0 < pages <= pages of a slab; Allocate(pages) found nothing.
  using WorthOf = absl::FunctionRef<std::optional<double>(Owner)>;
  [[nodiscard]] std::vector<Owner> FindWindow(uint32_t pages, uint64_t* cursor, WorthOf worth,
                                              double* cost = nullptr) const;

  [[nodiscard]] ByteCount free_bytes() const { return ByteCount(free_pages_ * kPageBytes); }
  [[nodiscard]] ByteCount total_bytes() const { return ByteCount(total_pages() * kPageBytes); }
  [[nodiscard]] uint32_t largest_free_pages() const;
  [[nodiscard]] size_t live_extents() const { return live_; }

  void CheckInvariants() const;  // O(pages); tests and debug dumps

 private:
  // Pages of all slabs are numbered through: slab * slab_pages_ + page.
  using Page = uint64_t;

  // Runs, free and live, cover every slab without gaps; the words below say where they begin.
  struct Slab {
    std::vector<uint64_t> starts;  // bit per page: a run begins
    std::vector<uint64_t> live;    // bit per page: and it is live
    std::vector<Owner> owners;     // by the first page of a live run; else kNoOwner
  };
  struct Run {
    Page begin = 0;
    uint32_t pages = 0;
    Owner owner = kNoOwner;
    bool live = false;
  };
  class Window;

  [[nodiscard]] Page total_pages() const { return uint64_t{slab_pages_} * slabs_.size(); }
  [[nodiscard]] Page PageOf(const Extent& extent) const {
    return static_cast<uint64_t>(extent.slab) * slab_pages_ + extent.page;
  }
  // First page at or after `page` of the slab where a run begins; slab_pages_ when none does.
  [[nodiscard]] uint32_t NextStart(const Slab& slab, uint32_t page) const;
  // The run that begins at `begin`.
  [[nodiscard]] Run RunAt(Page begin) const;
  // Marks [begin, begin + pages) of the free run {run, run_pages} as live.
  Extent Take(Page run, uint32_t run_pages, Page begin, uint32_t pages);
  void AddFree(Page begin, uint32_t pages);
  void RemoveFree(Page begin, uint32_t pages);

  const uint32_t slab_pages_;
  std::vector<Slab> slabs_;
  absl::btree_map<Page, uint32_t> free_by_place_;            // begin -> pages
  absl::btree_set<std::pair<uint32_t, Page>> free_by_size_;  // the same, {pages, begin}
  uint64_t free_pages_ = 0;
  size_t live_ = 0;
};

}  // namespace larder
