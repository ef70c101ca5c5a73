#include "storage/memory/extent_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Owner = ExtentAllocator::Owner;

constexpr uint32_t kSlabPages = 100;
constexpr ByteCount kSlabBytes(kSlabPages* kPageBytes);

std::optional<double> AnyOwner(Owner) { return 1; }
std::optional<double> If(bool may_go) { return may_go ? std::optional<double>(1) : std::nullopt; }

Extent At(uint16_t slab, uint32_t page, uint32_t pages) {
  return {.slab = static_cast<SlabId>(slab), .page = page, .pages = pages};
}

class ExtentAllocatorTest : public testing::Test {
 protected:
  ExtentAllocatorTest() { allocator_.AddSlab(SlabId{0}); }
  ~ExtentAllocatorTest() override { allocator_.CheckInvariants(); }

  Extent Take(uint32_t pages, Owner owner = ExtentAllocator::kNoOwner) {
    const std::optional<Extent> extent = allocator_.Allocate(pages);
    EXPECT_TRUE(extent.has_value());
    if (!extent) return {};
    allocator_.SetOwner(*extent, owner);
    return *extent;
  }
  // Allocates extents of `pages` each, with owners 1, 2 and so on, until nothing fits.
  std::vector<Extent> Fill(uint32_t pages) {
    std::vector<Extent> extents;
    while (const std::optional<Extent> extent = allocator_.Allocate(pages)) {
      extents.push_back(*extent);
      allocator_.SetOwner(*extent, static_cast<Owner>(extents.size()));
    }
    return extents;
  }

  ExtentAllocator allocator_{kSlabBytes};
};

TEST_F(ExtentAllocatorTest, NothingFitsWithoutASlab) {
  ExtentAllocator empty(kSlabBytes);
  EXPECT_EQ(empty.total_bytes(), ByteCount(0));
  EXPECT_EQ(empty.largest_free_pages(), 0u);
  EXPECT_FALSE(empty.Allocate(1).has_value());
  uint64_t cursor = 7;
  EXPECT_THAT(empty.FindWindow(1, &cursor, AnyOwner), IsEmpty());
  empty.AddSlab(SlabId{0});
  EXPECT_TRUE(empty.Allocate(1).has_value());
}

TEST_F(ExtentAllocatorTest, CountsBytesExactly) {
  EXPECT_EQ(allocator_.total_bytes(), kSlabBytes);
  EXPECT_EQ(allocator_.free_bytes(), kSlabBytes);
  const Extent extent = Take(30);
  EXPECT_EQ(allocator_.free_bytes(), ByteCount(70 * kPageBytes));
  EXPECT_EQ(allocator_.live_extents(), 1u);
  EXPECT_EQ(allocator_.largest_free_pages(), 70u);
  allocator_.Free(extent);
  EXPECT_EQ(allocator_.free_bytes(), kSlabBytes);
  EXPECT_EQ(allocator_.live_extents(), 0u);
}

TEST_F(ExtentAllocatorTest, TakesTheSmallestRunThatFits) {
  const Extent a = Take(20);
  Take(1);
  const Extent b = Take(10);
  Take(1);  // 68 free pages behind it
  allocator_.Free(a);
  allocator_.Free(b);
  EXPECT_EQ(Take(9), At(0, b.page, 9));
  EXPECT_EQ(Take(11), At(0, a.page, 11));
  EXPECT_EQ(Take(21), At(0, 32, 21));
}

TEST_F(ExtentAllocatorTest, NeighboursMergeInAnyOrderOfFreeing) {
  for (const auto& order : {std::vector{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {2, 1, 0}}) {
    const std::vector<Extent> extents = {Take(40), Take(30), Take(30)};
    for (const int i : order) {
      allocator_.Free(extents[i]);
      allocator_.CheckInvariants();
    }
    EXPECT_EQ(allocator_.largest_free_pages(), kSlabPages);
  }
}

TEST_F(ExtentAllocatorTest, RunsDoNotMergeAcrossSlabs) {
  allocator_.AddSlab(SlabId{1});
  for (const bool first_first : {true, false}) {
    const Extent first = Take(kSlabPages);
    const Extent second = Take(kSlabPages);
    EXPECT_EQ(first, At(0, 0, kSlabPages));
    EXPECT_EQ(second, At(1, 0, kSlabPages));
    allocator_.Free(first_first ? first : second);
    allocator_.Free(first_first ? second : first);
    allocator_.CheckInvariants();
    EXPECT_EQ(allocator_.largest_free_pages(), kSlabPages);
    EXPECT_EQ(allocator_.free_bytes(), ByteCount(2 * kSlabBytes.value()));
  }
}

TEST_F(ExtentAllocatorTest, OwnerLastsAsLongAsItsExtent) {
  const Extent extent = *allocator_.Allocate(5);
  EXPECT_EQ(allocator_.owner(extent), ExtentAllocator::kNoOwner);
  allocator_.SetOwner(extent, 42);
  EXPECT_EQ(allocator_.owner(extent), 42u);
  allocator_.Free(extent);
  const Extent again = *allocator_.Allocate(5);
  EXPECT_EQ(again, extent);
  EXPECT_EQ(allocator_.owner(again), ExtentAllocator::kNoOwner);
}

TEST_F(ExtentAllocatorTest, AWindowNamesTheOwnersBetweenHoles) {
  const std::vector<Extent> extents = Fill(10);  // owners 1..10
  allocator_.Free(extents[2]);
  allocator_.Free(extents[4]);
  uint64_t cursor = 0;
  EXPECT_THAT(allocator_.FindWindow(30, &cursor, AnyOwner), ElementsAre(4));
  EXPECT_EQ(cursor, 50u);
}

TEST_F(ExtentAllocatorTest, AWindowAvoidsExtentsThatMustStay) {
  const std::vector<Extent> extents = Fill(10);
  allocator_.SetOwner(extents[1], ExtentAllocator::kNoOwner);
  allocator_.SetOwner(extents[7], ExtentAllocator::kNoOwner);
  uint64_t cursor = 0;
  const auto not_5 = [](Owner owner) { return If(owner != 5); };
  EXPECT_THAT(allocator_.FindWindow(25, &cursor, not_5), IsEmpty());
  EXPECT_THAT(allocator_.FindWindow(20, &cursor, not_5), ElementsAre(3, 4));
  EXPECT_THAT(allocator_.FindWindow(20, &cursor, not_5), ElementsAre(6, 7));
  EXPECT_THAT(allocator_.FindWindow(20, &cursor, not_5), ElementsAre(9, 10));
  EXPECT_THAT(allocator_.FindWindow(20, &cursor, not_5), ElementsAre(3, 4));  // wrapped around
}

TEST_F(ExtentAllocatorTest, TheWindowOfLeastWorthIsChosen) {
  const std::vector<Extent> extents = Fill(10);
  allocator_.Free(extents[2]);
  uint64_t cursor = 0;
  // One neighbour of the hole would be enough, but two other extents together are worth less than
  // either neighbour.
  const auto dear = [](Owner owner) -> std::optional<double> {
    return owner == 2 || owner == 4 ? 3 : 1;
  };
  EXPECT_THAT(allocator_.FindWindow(20, &cursor, dear), ElementsAre(5, 6));
}

TEST_F(ExtentAllocatorTest, AWindowStaysInOneSlab) {
  allocator_.AddSlab(SlabId{1});
  Fill(60);              // owner 1 and a hole of 40 pages, in both slabs (owner 2)
  uint64_t cursor = 55;  // inside owner 1
  EXPECT_THAT(allocator_.FindWindow(50, &cursor, [](Owner owner) { return If(owner == 2); }),
              ElementsAre(2));
  EXPECT_THAT(
      allocator_.FindWindow(kSlabPages, &cursor, [](Owner owner) { return If(owner == 1); }),
      ElementsAre(1));
}

// A search is bounded, so one call may miss the only window.  Further calls with its cursor find
// it.
TEST_F(ExtentAllocatorTest, BoundedSearchFindsALoneWindowInAFewCalls) {
  constexpr uint32_t kPages = 4 * ExtentAllocator::kWindowTries;
  ExtentAllocator allocator(ByteCount(kPages * kPageBytes));
  allocator.AddSlab(SlabId{0});
  for (uint32_t i = 0; i < kPages; ++i) allocator.SetOwner(*allocator.Allocate(1), i + 1);
  uint64_t cursor = 0;
  uint64_t asked = 0;
  const auto last_four = [&](Owner owner) {
    ++asked;
    return If(owner > kPages - 4);
  };
  EXPECT_THAT(allocator.FindWindow(4, &cursor, last_four), IsEmpty());
  EXPECT_LE(asked, ExtentAllocator::kWindowTries + 4);
  std::vector<Owner> found;
  for (int call = 0; call < 4 && found.empty(); ++call) {
    found = allocator.FindWindow(4, &cursor, last_four);
  }
  EXPECT_THAT(found, ElementsAre(kPages - 3, kPages - 2, kPages - 1, kPages));
}

using ExtentAllocatorDeathTest = ExtentAllocatorTest;

TEST_F(ExtentAllocatorDeathTest, RejectsInvalidCalls) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Extent extent = Take(10);
  Take(10);
  EXPECT_DEATH(allocator_.Free(At(0, 0, 9)), "invariant broken");    // a part of it
  EXPECT_DEATH(allocator_.Free(At(0, 0, 20)), "invariant broken");   // it and its neighbour
  EXPECT_DEATH(allocator_.Free(At(0, 1, 9)), "invariant broken");    // not at its start
  EXPECT_DEATH(allocator_.Free(At(0, 20, 80)), "invariant broken");  // a free run
  EXPECT_DEATH(allocator_.Free(At(1, 0, 10)), "invariant broken");   // no such slab
  EXPECT_DEATH(allocator_.Free(At(0, 5000, 1)), "invariant broken");
  EXPECT_DEATH((void)allocator_.Allocate(0), "invariant broken");
  EXPECT_DEATH((void)allocator_.Allocate(kSlabPages + 1), "invariant broken");
  EXPECT_DEATH(allocator_.AddSlab(SlabId{2}), "invariant broken");
  allocator_.Free(extent);
  EXPECT_DEATH(allocator_.Free(extent), "invariant broken");  // twice
  EXPECT_DEATH(allocator_.SetOwner(extent, 1), "invariant broken");
  EXPECT_DEATH((void)allocator_.owner(extent), "invariant broken");
}

}  // namespace
}  // namespace larder
