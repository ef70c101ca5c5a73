// Allocates and frees extents of the pool's slabs.  Does not touch their bytes.
//
// Best fit over free runs.  Adjacent free runs merge at once, so only live extents divide the free
// pages.  Each extent has an owner word, by which FindWindow names the blocks to evict if enough
// pages are free but scattered.  It does not choose blocks to evict if too few pages are free: the
// eviction policy does.
//
// Ownership: made by BlockStore (host memory) and DiskShard (data files, where a slab is a file);
// outlives every Extent it returned.
// Thread-safety: none; its owner calls it under a lock.
// Lifecycle: AddSlab (as slabs come online) -> Allocate or AllocateAt -> SetOwner -> Free.
// Limits: an extent lies in one slab.  Cost: O(log free runs); Free also reads one bit per page.
// Memory: 4.25 B per page (owner word and two bits) and about 40 B per free run.
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
  // The owner of an extent, as BlockStore or DiskShard encodes it.  An extent with kNoOwner
  // (reserved, quarantined) cannot be evicted.
  using Owner = uint32_t;
  static constexpr Owner kNoOwner = 0;

  // FindWindow examines this many runs (free or live), and one more for each page that it wants.
  static constexpr uint32_t kWindowTries = 256;

  // REQUIRES: slab_bytes is a multiple of the page size, below 16 TiB.
  explicit ExtentAllocator(ByteCount slab_bytes);

  // REQUIRES: slabs come in order 0, 1, 2, ...
  void AddSlab(SlabId slab);

  // Allocates from the smallest free run that fits, and from the first of several of that size.
  // Returns nullopt if none fits.
  // REQUIRES: 0 < pages <= pages of a slab.
  [[nodiscard]] std::optional<Extent> Allocate(uint32_t pages);
  // Allocates exactly this extent, as an earlier process had it.  Returns false if any page of it
  // is not free or lies outside the slabs.  Any values are allowed.
  [[nodiscard]] bool AllocateAt(const Extent& extent);
  // REQUIRES: the extent is live (CHECKed).
  void Free(const Extent& extent);
  // Whether exactly this extent was allocated and is not yet freed.  Any values are allowed.
  [[nodiscard]] bool IsLive(const Extent& extent) const;
  // REQUIRES: the extent is live (CHECKed).
  void SetOwner(const Extent& extent, Owner owner);
  // Returns kNoOwner until SetOwner.  REQUIRES: the extent is live (CHECKed).
  [[nodiscard]] Owner owner(const Extent& extent) const;

  // Returns the owners to evict so that `pages` become free in one run, in the order in which their
  // extents lie.  Examines a bounded number of runs from `*cursor` on (any value is allowed; it
  // advances and wraps), and chooses the window whose live pages are worth least in all.  `worth`
  // returns what a page of an owner is worth, above 0, or nullopt if that owner must stay.  Skips
  // windows that contain such an owner or an extent with kNoOwner.  Returns an empty vector if this
  // search found no window; the next call continues elsewhere.  If `cost` is not null, *cost
  // becomes what the window's pages are worth in all.
  // REQUIRES: 0 < pages <= pages of a slab; Allocate(pages) has just returned nullopt.
  using WorthOf = absl::FunctionRef<std::optional<double>(Owner)>;
  [[nodiscard]] std::vector<Owner> FindWindow(uint32_t pages, uint64_t* cursor, WorthOf worth,
                                              double* cost = nullptr) const;

  [[nodiscard]] ByteCount free_bytes() const { return ByteCount(free_pages_ * kPageBytes); }
  [[nodiscard]] ByteCount total_bytes() const { return ByteCount(total_pages() * kPageBytes); }
  [[nodiscard]] uint32_t largest_free_pages() const;
  [[nodiscard]] size_t live_extents() const { return live_; }

  void CheckInvariants() const;  // O(pages); tests and debug dumps

 private:
  // Pages are numbered across all slabs: slab * slab_pages_ + page.
  using Page = uint64_t;

  // Runs, free and live, cover every slab without gaps.  The bits say where they begin.
  struct Slab {
    std::vector<uint64_t> starts;  // one bit per page: a run begins here
    std::vector<uint64_t> live;    // one bit per page: a live run begins here
    std::vector<Owner> owners;     // at the first page of a live run; kNoOwner everywhere else
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
  // Returns the first page of the slab at or after `page` where a run begins, or slab_pages_ if
  // there is none.
  [[nodiscard]] uint32_t NextStart(const Slab& slab, uint32_t page) const;
  // The run that begins at `begin`.
  [[nodiscard]] Run RunAt(Page begin) const;
  // Marks [begin, begin + pages) of the free run {run, run_pages} as a live extent, and returns it.
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
