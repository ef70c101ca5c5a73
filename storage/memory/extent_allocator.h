// Allocates and frees extents of the pool's slabs, or of the data files of a disk shard, each of
// which counts as a slab.  Does not touch their bytes.
//
// Allocate is best fit over free runs (ranges of free pages in one slab that are as long as
// possible).  Free runs that become adjacent merge at once, so only live (allocated) extents and
// the borders of slabs divide the free pages.  Each live extent has an owner word, a number by
// which FindWindow names blocks whose eviction makes contiguous space.
//
// Ownership: made by BlockStore (host memory) and DiskShard (data files).
// Thread-safety: none; the class that made it calls it under a lock.
// Lifecycle: AddSlab (as slabs come online) -> Allocate or AllocateAt -> SetOwner -> Free.
// Limits: an extent lies in one slab.
// Cost: Allocate, AllocateAt and Free: O(log free runs).  Free, IsLive, SetOwner and owner also
// read one bit for each page of the extent, and Free also for each page of a free run after it.
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
  // The owner word of an extent: a number that the user of the allocator chooses, by which the user
  // finds the block that lies in the extent.  FindWindow never names an extent with kNoOwner, which
  // a new extent has until SetOwner.
  using Owner = uint32_t;
  static constexpr Owner kNoOwner = 0;

  // FindWindow examines at most this many runs (free or live), and one more for each wanted page.
  static constexpr uint32_t kWindowTries = 256;

  // REQUIRES: slab_bytes is a multiple of the page size, above 0 and below 16 TiB (CHECKed).
  explicit ExtentAllocator(ByteCount slab_bytes);

  // Adds a slab, all of whose pages are free.  REQUIRES: called for slabs 0, 1, 2, ... in order.
  void AddSlab(SlabId slab);

  // Allocates from the beginning of the smallest free run that has enough pages; if several have
  // the same size, from the first of them.  Returns nullopt if no free run has enough pages.
  // REQUIRES: 0 < pages <= pages of a slab.
  [[nodiscard]] std::optional<Extent> Allocate(uint32_t pages);
  // Allocates exactly this extent, for a block that already has its bytes there.  Returns false if
  // the extent has no pages, or if any page of it is not a free page of its slab.  Any values are
  // allowed.
  [[nodiscard]] bool AllocateAt(const Extent& extent);
  // REQUIRES: the extent is live (CHECKed).
  void Free(const Extent& extent);
  // Returns true if exactly this extent was allocated and is not yet freed.  Any values are
  // allowed.
  [[nodiscard]] bool IsLive(const Extent& extent) const;
  // REQUIRES: the extent is live (CHECKed).
  void SetOwner(const Extent& extent, Owner owner);
  // Returns the owner that SetOwner set, or kNoOwner.  REQUIRES: the extent is live (CHECKed).
  [[nodiscard]] Owner owner(const Extent& extent) const;

  // Returns the worth of one byte of an owner's extent, or nullopt if the block in that extent must
  // not be evicted.  FindWindow calls it under the lock of the allocator's user.
  using WorthOf = absl::FunctionRef<std::optional<double>(Owner)>;
  // Finds a window, that is, adjacent runs that have at least `pages` pages in all, and returns the
  // owners of its live extents, in the order in which the extents lie.  Examines a bounded number
  // of runs (kWindowTries) from about page `*cursor` on, wrapping around at the end, and chooses
  // the window whose live pages have the least total worth.  Any value of *cursor is allowed; the
  // call sets *cursor to where the next search is to begin.  Skips windows that contain an extent
  // with kNoOwner or an extent whose owner has no worth (nullopt).  Returns an empty vector if it
  // finds no window; a call with the new cursor may find one.  If it finds one and `cost` is not
  // null, *cost is set to the sum over the live extents of worth times pages.
  // REQUIRES: 0 < pages <= pages of a slab; Allocate(pages) would fail.
  [[nodiscard]] std::vector<Owner> FindWindow(uint32_t pages, uint64_t* cursor, WorthOf worth,
                                              double* cost = nullptr) const;

  [[nodiscard]] ByteCount free_bytes() const { return ByteCount(free_pages_ * kPageBytes); }
  [[nodiscard]] ByteCount total_bytes() const { return ByteCount(total_pages() * kPageBytes); }
  [[nodiscard]] uint32_t largest_free_pages() const;
  [[nodiscard]] size_t live_extents() const { return live_; }

  void CheckInvariants() const;  // CHECKs; O(pages), for tests

 private:
  // Pages are numbered across all slabs: slab * slab_pages_ + page.
  using Page = uint64_t;

  // One slab.  Its free runs and its live runs (a live run is one extent) cover it without gaps;
  // the bits say where runs begin.
  struct Slab {
    std::vector<uint64_t> starts;  // one bit per page: a run begins here
    std::vector<uint64_t> live;    // one bit per page: a live run begins here
    std::vector<Owner> owners;     // by page; kNoOwner except at the first page of a live run
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
  // REQUIRES: a run begins at `begin`.
  [[nodiscard]] Run RunAt(Page begin) const;
  // Makes pages [begin, begin + pages) of the free run [run, run + run_pages) a live extent, and
  // returns the extent.
  Extent Take(Page run, uint32_t run_pages, Page begin, uint32_t pages);
  void AddFree(Page begin, uint32_t pages);
  void RemoveFree(Page begin, uint32_t pages);

  const uint32_t slab_pages_;
  std::vector<Slab> slabs_;
  absl::btree_map<Page, uint32_t> free_by_place_;            // begin -> pages
  absl::btree_set<std::pair<uint32_t, Page>> free_by_size_;  // {pages, begin}
  uint64_t free_pages_ = 0;
  size_t live_ = 0;
};

}  // namespace larder
