#include "storage/memory/extent_allocator.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <limits>

#include "storage/check.h"

namespace larder {
namespace {

constexpr uint32_t kWordBits = 64;

bool GetBit(const std::vector<uint64_t>& bits, uint32_t at) {
  return (bits[at / kWordBits] >> (at % kWordBits) & 1) != 0;
}
void SetBit(std::vector<uint64_t>& bits, uint32_t at) {
  bits[at / kWordBits] |= uint64_t{1} << (at % kWordBits);
}
void ClearBit(std::vector<uint64_t>& bits, uint32_t at) {
  bits[at / kWordBits] &= ~(uint64_t{1} << (at % kWordBits));
}

uint32_t SlabPages(ByteCount slab_bytes) {
  const uint64_t pages = slab_bytes.value() / kPageBytes;
  LARDER_CHECK(pages > 0 && pages <= std::numeric_limits<uint32_t>::max());
  LARDER_CHECK(slab_bytes.value() % kPageBytes == 0);
  return static_cast<uint32_t>(pages);
}

}  // namespace

// A window that slides over adjacent runs: it grows at its end, and drops runs from its beginning
// that it does not need to have `wanted` pages.  Of the windows that had `wanted` pages it
// remembers the one with the least total worth.
class ExtentAllocator::Window {
 public:
  explicit Window(uint32_t wanted) : wanted_(wanted) {}

  // `worth` is the total worth of the run's pages; 0 for a free run.
  void Add(const Run& run, double worth) {
    runs_.push_back({run, worth});
    pages_ += run.pages;
    cost_ += worth;
    while (pages_ - runs_.front().run.pages >= wanted_) DropFirst();
    if (pages_ < wanted_ || cost_ >= best_cost_) return;
    best_cost_ = cost_;
    best_begin_ = runs_.front().run.begin;
    best_end_ = run.begin + run.pages;
  }
  // Empties the window, because the next run is not adjacent to it or a run must not be evicted.
  void Restart() {
    runs_.clear();
    pages_ = 0;
    cost_ = 0;
  }

  // Returns the page where the unfinished window begins, or `next` if the window is empty.
  [[nodiscard]] Page begin_or(Page next) const {
    return runs_.empty() ? next : runs_.front().run.begin;
  }
  // Returns where the window with the least total worth began.  best_begin() and best_end() are
  // both 0 if no window was large enough.
  [[nodiscard]] Page best_begin() const { return best_begin_; }
  [[nodiscard]] Page best_end() const { return best_end_; }
  [[nodiscard]] double best_cost() const { return best_cost_; }

 private:
  struct Valued {
    Run run;
    double worth;
  };
  void DropFirst() {
    pages_ -= runs_.front().run.pages;
    cost_ -= runs_.front().worth;
    runs_.pop_front();
  }

  const uint32_t wanted_;
  std::deque<Valued> runs_;
  uint64_t pages_ = 0;
  double cost_ = 0;  // the total worth of the window's live pages
  double best_cost_ = std::numeric_limits<double>::infinity();
  Page best_begin_ = 0;
  Page best_end_ = 0;
};

ExtentAllocator::ExtentAllocator(ByteCount slab_bytes) : slab_pages_(SlabPages(slab_bytes)) {}

void ExtentAllocator::AddSlab(SlabId slab) {
  LARDER_CHECK(static_cast<size_t>(slab) == slabs_.size());
  const size_t words = RoundUp(slab_pages_, kWordBits) / kWordBits;
  slabs_.push_back({.starts = std::vector<uint64_t>(words),
                    .live = std::vector<uint64_t>(words),
                    .owners = std::vector<Owner>(slab_pages_, kNoOwner)});
  AddFree(total_pages() - slab_pages_, slab_pages_);
  free_pages_ += slab_pages_;
}

std::optional<Extent> ExtentAllocator::Allocate(uint32_t pages) {
  LARDER_CHECK(pages > 0 && pages <= slab_pages_);
  const auto fit = free_by_size_.lower_bound({pages, 0});
  if (fit == free_by_size_.end()) return std::nullopt;
  const auto [run_pages, begin] = *fit;
  return Take(begin, run_pages, begin, pages);
}

bool ExtentAllocator::AllocateAt(const Extent& extent) {
  if (static_cast<size_t>(extent.slab) >= slabs_.size() || extent.pages == 0 ||
      extent.page >= slab_pages_ || extent.pages > slab_pages_ - extent.page) {
    return false;
  }
  const Page begin = PageOf(extent);
  auto run = free_by_place_.upper_bound(begin);
  if (run == free_by_place_.begin()) return false;
  --run;
  if (run->first + run->second < begin + extent.pages) return false;
  (void)Take(run->first, run->second, begin, extent.pages);
  return true;
}

Extent ExtentAllocator::Take(Page run, uint32_t run_pages, Page begin, uint32_t pages) {
  RemoveFree(run, run_pages);
  if (begin > run) AddFree(run, static_cast<uint32_t>(begin - run));
  if (const Page rest = begin + pages; rest < run + run_pages)
    AddFree(rest, static_cast<uint32_t>(run + run_pages - rest));
  const auto page = static_cast<uint32_t>(begin % slab_pages_);
  Slab& slab = slabs_[begin / slab_pages_];
  SetBit(slab.starts, page);
  SetBit(slab.live, page);
  free_pages_ -= pages;
  ++live_;
  return Extent{.slab = static_cast<SlabId>(begin / slab_pages_), .page = page, .pages = pages};
}

void ExtentAllocator::Free(const Extent& extent) {
  LARDER_CHECK(IsLive(extent));
  Slab& slab = slabs_[static_cast<size_t>(extent.slab)];
  ClearBit(slab.starts, extent.page);
  ClearBit(slab.live, extent.page);
  slab.owners[extent.page] = kNoOwner;
  free_pages_ += extent.pages;
  --live_;

  // Consecutive page numbers on the two sides of a slab's border are not adjacent bytes.
  Page begin = PageOf(extent);
  uint32_t pages = extent.pages;
  auto next = free_by_place_.lower_bound(begin);
  if (extent.page > 0 && next != free_by_place_.begin()) {
    const auto [before, before_pages] = *std::prev(next);
    if (before + before_pages == begin) {
      RemoveFree(before, before_pages);
      begin = before;
      pages += before_pages;
    }
  }
  const uint32_t end = extent.page + extent.pages;
  if (end < slab_pages_ && !GetBit(slab.live, end)) {
    const Run after = RunAt(PageOf(extent) + extent.pages);
    RemoveFree(after.begin, after.pages);
    pages += after.pages;
  }
  AddFree(begin, pages);
}

void ExtentAllocator::SetOwner(const Extent& extent, Owner owner) {
  LARDER_CHECK(IsLive(extent));
  slabs_[static_cast<size_t>(extent.slab)].owners[extent.page] = owner;
}

ExtentAllocator::Owner ExtentAllocator::owner(const Extent& extent) const {
  LARDER_CHECK(IsLive(extent));
  return slabs_[static_cast<size_t>(extent.slab)].owners[extent.page];
}

std::vector<ExtentAllocator::Owner> ExtentAllocator::FindWindow(uint32_t pages, uint64_t* cursor,
                                                                WorthOf worth, double* cost) const {
  LARDER_CHECK(pages > 0 && pages <= slab_pages_);
  if (slabs_.empty()) return {};
  Window window(pages);
  Page at = *cursor % total_pages();
  // Runs may have merged since the last search set the cursor, so the search begins where the next
  // run begins.
  const auto page = static_cast<uint32_t>(at % slab_pages_);
  at = (at - page + NextStart(slabs_[at / slab_pages_], page)) % total_pages();
  // The walk ends when it has covered all pages once and then `pages` more, so that it can also
  // find a window that contains the page where the walk began, or earlier when the tries are used
  // up.
  const uint64_t walk_pages = total_pages() + pages;
  const uint64_t tries = uint64_t{kWindowTries} + pages;
  uint64_t walked = 0;
  for (uint64_t i = 0; i < tries && walked < walk_pages; ++i) {
    const Run run = RunAt(at);
    if (at % slab_pages_ == 0) window.Restart();
    std::optional<double> of_page = 0;
    if (run.live) of_page = run.owner == kNoOwner ? std::nullopt : worth(run.owner);
    if (of_page) {
      window.Add(run, *of_page * run.pages);
    } else {
      window.Restart();
    }
    walked += run.pages;
    at = (at + run.pages) % total_pages();
  }
  if (window.best_end() == 0) {
    // The next search begins at the unfinished window, if any, and has enough tries to finish it.
    *cursor = window.begin_or(at);
    return {};
  }
  *cursor = window.best_end() % total_pages();
  if (cost != nullptr) *cost = window.best_cost();
  std::vector<Owner> owners;
  for (Page begin = window.best_begin(); begin < window.best_end();) {
    const Run run = RunAt(begin);
    if (run.live) owners.push_back(run.owner);
    begin += run.pages;
  }
  return owners;
}

uint32_t ExtentAllocator::largest_free_pages() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

uint32_t ExtentAllocator::NextStart(const Slab& slab, uint32_t page) const {
  if (page >= slab_pages_) return slab_pages_;
  size_t word = page / kWordBits;
  uint64_t bits = slab.starts[word] & (~uint64_t{0} << (page % kWordBits));
  while (bits == 0) {
    if (++word == slab.starts.size()) return slab_pages_;
    bits = slab.starts[word];
  }
  return static_cast<uint32_t>(word * kWordBits) + static_cast<uint32_t>(std::countr_zero(bits));
}

ExtentAllocator::Run ExtentAllocator::RunAt(Page begin) const {
  const Slab& slab = slabs_[begin / slab_pages_];
  const auto page = static_cast<uint32_t>(begin % slab_pages_);
  return {.begin = begin,
          .pages = NextStart(slab, page + 1) - page,
          .owner = slab.owners[page],
          .live = GetBit(slab.live, page)};
}

bool ExtentAllocator::IsLive(const Extent& extent) const {
  const auto index = static_cast<size_t>(extent.slab);
  if (index >= slabs_.size() || extent.page >= slab_pages_) return false;
  if (!GetBit(slabs_[index].live, extent.page)) return false;
  return NextStart(slabs_[index], extent.page + 1) == uint64_t{extent.page} + extent.pages;
}

void ExtentAllocator::AddFree(Page begin, uint32_t pages) {
  free_by_place_.emplace(begin, pages);
  free_by_size_.emplace(pages, begin);
  SetBit(slabs_[begin / slab_pages_].starts, static_cast<uint32_t>(begin % slab_pages_));
}

void ExtentAllocator::RemoveFree(Page begin, uint32_t pages) {
  LARDER_CHECK(free_by_place_.erase(begin) == 1);
  LARDER_CHECK(free_by_size_.erase({pages, begin}) == 1);
  ClearBit(slabs_[begin / slab_pages_].starts, static_cast<uint32_t>(begin % slab_pages_));
}

void ExtentAllocator::CheckInvariants() const {
  uint64_t free_pages = 0;
  size_t free_runs = 0;
  size_t live = 0;
  for (size_t s = 0; s < slabs_.size(); ++s) {
    const Slab& slab = slabs_[s];
    LARDER_CHECK(GetBit(slab.starts, 0));
    bool after_free = false;
    for (uint32_t page = 0; page < slab_pages_;) {
      const Run run = RunAt(uint64_t{s} * slab_pages_ + page);
      if (run.live) {
        ++live;
      } else {
        LARDER_CHECK(!after_free);  // adjacent free runs have merged
        LARDER_CHECK(run.owner == kNoOwner);
        const auto found = free_by_place_.find(run.begin);
        LARDER_CHECK(found != free_by_place_.end() && found->second == run.pages);
        LARDER_CHECK(free_by_size_.contains({run.pages, run.begin}));
        free_pages += run.pages;
        ++free_runs;
      }
      after_free = !run.live;
      for (uint32_t inner = page + 1; inner < page + run.pages; ++inner) {
        LARDER_CHECK(!GetBit(slab.live, inner) && slab.owners[inner] == kNoOwner);
      }
      page += run.pages;
    }
  }
  LARDER_CHECK(free_pages == free_pages_ && live == live_);
  LARDER_CHECK(free_runs == free_by_place_.size() && free_runs == free_by_size_.size());
}

}  // namespace larder
