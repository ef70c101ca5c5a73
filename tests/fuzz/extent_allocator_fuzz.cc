// ExtentAllocator against a model that is a plain array: one word per page names its extent.  Slabs
// are so small that a search for a window covers everything, so the model knows whether there is a
// window and what the cheapest one costs.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "storage/memory/extent_allocator.h"
#include "tests/fuzz/instruction_fuzz.h"

namespace larder {
namespace {

constexpr uint32_t kSlabPages = 70;  // not a multiple of the allocator's 64-bit words
constexpr uint32_t kSlabsMax = 3;
static_assert(kSlabPages * kSlabsMax <= ExtentAllocator::kWindowTries);

using Owner = ExtentAllocator::Owner;

class Model {
 public:
  void AddSlab() { pages_.emplace_back(kSlabPages, 0); }
  [[nodiscard]] uint32_t slabs() const { return static_cast<uint32_t>(pages_.size()); }

  // Numbers of extents start at 1.
  void Take(const Extent& extent, uint32_t number) {
    for (uint32_t i = 0; i < extent.pages; ++i) {
      uint32_t& page = At(extent, i);
      ASSERT_EQ(page, 0u) << "page handed out twice";
      page = number;
    }
  }
  void Return(const Extent& extent, uint32_t number) {
    for (uint32_t i = 0; i < extent.pages; ++i) {
      ASSERT_EQ(At(extent, i), number);
      At(extent, i) = 0;
    }
  }

  [[nodiscard]] uint64_t FreePages() const {
    uint64_t free = 0;
    for (const auto& slab : pages_) free += std::count(slab.begin(), slab.end(), 0u);
    return free;
  }
  // Returns the maximal free runs as {pages, slab, page}.
  [[nodiscard]] std::set<std::array<uint32_t, 3>> FreeRuns() const {
    std::set<std::array<uint32_t, 3>> runs;
    for (uint32_t s = 0; s < slabs(); ++s) {
      for (uint32_t page = 0; page < kSlabPages;) {
        uint32_t end = page;
        while (end < kSlabPages && pages_[s][end] == 0) ++end;
        if (end > page) runs.insert({end - page, s, page});
        page = end + 1;
      }
    }
    return runs;
  }
  // Returns the extents that touch a window of pages.
  [[nodiscard]] std::set<uint32_t> Touched(uint32_t slab, uint32_t page, uint32_t pages) const {
    std::set<uint32_t> numbers;
    for (uint32_t i = page; i < page + pages; ++i) {
      if (pages_[slab][i] != 0) numbers.insert(pages_[slab][i]);
    }
    return numbers;
  }

 private:
  uint32_t& At(const Extent& extent, uint32_t i) {
    return pages_.at(static_cast<size_t>(extent.slab)).at(extent.page + i);
  }
  std::vector<std::vector<uint32_t>> pages_;
};

class Fuzz {
 public:
  explicit Fuzz(FuzzRun* run) : run_(*run), allocator_(ByteCount(kSlabPages * kPageBytes)) {
    AddSlab();
  }

  void Step() {
    switch (run_.Below(16)) {
      case 0:
        if (run_.OneIn(50)) return AddSlab();
        return Drain();
      case 1:
      case 2:
        return FindWindow();
      case 3:
      case 4:
        return SetOwner();
      case 5:
      case 6:
      case 7:
      case 8:
      case 9:
        return FreeOne();
      default:
        return Allocate();
    }
  }

  void Check() {
    allocator_.CheckInvariants();
    const auto runs = model_.FreeRuns();
    ASSERT_EQ(allocator_.free_bytes(), ByteCount(model_.FreePages() * kPageBytes));
    ASSERT_EQ(allocator_.total_bytes(), ByteCount(kPageBytes * kSlabPages * model_.slabs()));
    ASSERT_EQ(allocator_.largest_free_pages(), runs.empty() ? 0 : (*runs.rbegin())[0]);
    ASSERT_EQ(allocator_.live_extents(), live_.size());
    for (const auto& [number, held] : live_) {
      ASSERT_EQ(allocator_.owner(held.extent), held.owned ? number : ExtentAllocator::kNoOwner);
    }
  }

  // How many searches found a window.
  [[nodiscard]] uint64_t windows() const { return windows_; }

 private:
  struct Held {
    Extent extent;
    bool owned = false;  // its owner word is its number
  };

  void AddSlab() {
    if (model_.slabs() == kSlabsMax) return;
    allocator_.AddSlab(static_cast<SlabId>(model_.slabs()));
    model_.AddSlab();
  }

  // Usually small; now and then up to a whole slab.
  uint32_t SomePages() {
    return 1 + static_cast<uint32_t>(run_.Below(run_.OneIn(8) ? kSlabPages : 8));
  }

  void Allocate() {
    const uint32_t pages = SomePages();
    const auto runs = model_.FreeRuns();
    const auto fit = runs.lower_bound({pages, 0, 0});
    const std::optional<Extent> extent = allocator_.Allocate(pages);
    ASSERT_EQ(extent.has_value(), fit != runs.end());
    if (!extent) return;
    ASSERT_EQ(extent->pages, pages);
    const std::array<uint32_t, 3> got = {(*fit)[0], static_cast<uint32_t>(extent->slab),
                                         extent->page};
    ASSERT_EQ(got, *fit) << "must be the first of the smallest runs that fit";
    model_.Take(*extent, next_number_);
    live_[next_number_++] = {.extent = *extent};
  }

  std::map<uint32_t, Held>::iterator SomeLive() {
    return std::next(live_.begin(), static_cast<ptrdiff_t>(run_.Below(live_.size())));
  }

  void FreeOne() {
    if (!live_.empty()) Free(SomeLive()->first);
  }
  void Free(uint32_t number) {
    allocator_.Free(live_.at(number).extent);
    model_.Return(live_.at(number).extent, number);
    live_.erase(number);
  }
  void Drain() {
    if (!run_.OneIn(20)) return;
    while (!live_.empty()) Free(SomeLive()->first);
  }

  void SetOwner() {
    if (live_.empty()) return;
    const auto some = SomeLive();
    some->second.owned = !run_.OneIn(4);
    allocator_.SetOwner(some->second.extent,
                        some->second.owned ? some->first : ExtentAllocator::kNoOwner);
  }

  [[nodiscard]] uint64_t LivePages(const std::set<uint32_t>& numbers) const {
    uint64_t pages = 0;
    for (const uint32_t number : numbers) pages += live_.at(number).extent.pages;
    return pages;
  }

  // Returns the fewest live pages whose eviction frees a window, or nullopt if no eviction does.
  [[nodiscard]] std::optional<uint64_t> Cheapest(uint32_t pages,
                                                 const std::set<uint32_t>& pinned) const {
    std::optional<uint64_t> best;
    for (uint32_t slab = 0; slab < model_.slabs(); ++slab) {
      for (uint32_t page = 0; page + pages <= kSlabPages; ++page) {
        const std::set<uint32_t> touched = model_.Touched(slab, page, pages);
        const bool possible = std::none_of(touched.begin(), touched.end(), [&](uint32_t n) {
          return !live_.at(n).owned || pinned.contains(n);
        });
        if (possible) best = std::min(best.value_or(UINT64_MAX), LivePages(touched));
      }
    }
    return best;
  }

  void FindWindow() {
    const uint32_t pages = SomePages();
    if (allocator_.largest_free_pages() >= pages) return;  // REQUIRES
    std::set<uint32_t> pinned;
    for (const auto& [number, held] : live_) {
      if (run_.OneIn(6)) pinned.insert(number);
    }
    if (run_.OneIn(10)) cursor_ = run_.rng()();
    const std::vector<Owner> owners = allocator_.FindWindow(pages, &cursor_, [&](Owner owner) {
      EXPECT_TRUE(live_.contains(owner)) << "the allocator asked about an owner that was freed";
      return pinned.contains(owner) ? std::nullopt : std::optional<double>(1);
    });
    const std::set<uint32_t> distinct(owners.begin(), owners.end());
    ASSERT_EQ(distinct.size(), owners.size());
    const std::optional<uint64_t> cheapest = Cheapest(pages, pinned);
    ASSERT_EQ(!owners.empty(), cheapest.has_value());
    if (owners.empty()) return;
    for (const Owner owner : owners) {
      ASSERT_TRUE(live_.contains(owner) && live_.at(owner).owned && !pinned.contains(owner));
    }
    ASSERT_EQ(LivePages(distinct), *cheapest);
    for (const Owner owner : owners) Free(owner);
    ASSERT_GE(allocator_.largest_free_pages(), pages);
    ++windows_;
  }

  FuzzRun& run_;
  ExtentAllocator allocator_;
  Model model_;
  std::map<uint32_t, Held> live_;  // by number
  uint32_t next_number_ = 1;
  uint64_t cursor_ = 0;
  uint64_t windows_ = 0;
};

TEST(ExtentAllocatorFuzz, AgreesWithAnArrayOfPages) {
  FuzzRun run("extent_allocator_fuzz", 20'000);
  Fuzz fuzz(&run);
  for (uint64_t step = 0; step < run.steps(); ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step << " of seed " << run.seed());
    fuzz.Step();
    if (testing::Test::HasFatalFailure()) return;
    fuzz.Check();
    if (testing::Test::HasFatalFailure()) return;
  }
  if (run.steps() >= 10'000) {
    EXPECT_GT(fuzz.windows(), 0u) << "the fuzz no longer reaches FindWindow";
  }
}

}  // namespace
}  // namespace larder
