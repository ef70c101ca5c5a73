#include "storage/store/pin_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using AddResult = PinTable::AddResult;

PinKey Key(uint8_t name, Tier tier = Tier::kHost) {
  PinKey key{.variant = VariantIndex{1}, .digest = {}, .tier = tier};
  key.digest.bytes.fill(std::byte{name});
  return key;
}

bool OfA(std::string_view owner, const PinKey&) { return owner == "a"; }

class PinTableTest : public testing::Test {
 protected:
  ~PinTableTest() override { table_.CheckInvariants(); }
  PinTable table_{3};
};

TEST_F(PinTableTest, CountsOncePerOwnerAndKey) {
  EXPECT_EQ(table_.Add("a", Key(1), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("a", Key(1), 200), AddResult::kMoved);
  EXPECT_EQ(table_.Add("b", Key(1), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Count(Key(1)), 2u);
  EXPECT_EQ(table_.size(), 2u);
  EXPECT_TRUE(table_.Remove("a", Key(1)));
  EXPECT_FALSE(table_.Remove("a", Key(1)));
  EXPECT_EQ(table_.Count(Key(1)), 1u);
}

TEST_F(PinTableTest, TiersAndVariantsAreDifferentKeys) {
  PinKey other_variant = Key(1);
  other_variant.variant = VariantIndex{2};
  EXPECT_EQ(table_.Add("a", Key(1, Tier::kHost), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("a", Key(1, Tier::kDisk), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("a", other_variant, 100), AddResult::kAdded);
  EXPECT_EQ(table_.Count(Key(1)), 1u);
}

TEST_F(PinTableTest, LimitIsExact) {
  for (uint8_t i = 0; i < 3; ++i) EXPECT_EQ(table_.Add("a", Key(i), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("a", Key(3), 100), AddResult::kFull);
  EXPECT_EQ(table_.Count(Key(3)), 0u);
  EXPECT_EQ(table_.Add("a", Key(2), 50), AddResult::kMoved) << "moving a deadline adds no pin";
  EXPECT_TRUE(table_.Remove("a", Key(0)));
  EXPECT_EQ(table_.Add("a", Key(3), 100), AddResult::kAdded);
}

TEST_F(PinTableTest, ExpiresAtTheDeadlineEarliestFirst) {
  EXPECT_EQ(table_.Add("a", Key(1), 300), AddResult::kAdded);
  EXPECT_EQ(table_.Add("a", Key(2), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("b", Key(2), 200), AddResult::kAdded);
  EXPECT_THAT(table_.Expire(99), IsEmpty());
  EXPECT_THAT(table_.Expire(300, 2), ElementsAre(Pin{"a", Key(2), 100}, Pin{"b", Key(2), 200}));
  EXPECT_THAT(table_.Expire(300), ElementsAre(Pin{"a", Key(1), 300}));
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(PinTableTest, PinningAgainMovesTheDeadlineBothWays) {
  EXPECT_EQ(table_.Add("a", Key(1), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("a", Key(1), 200), AddResult::kMoved);
  EXPECT_THAT(table_.Expire(100), IsEmpty());
  EXPECT_EQ(table_.Add("a", Key(1), 50), AddResult::kMoved);
  EXPECT_THAT(table_.Expire(100), ElementsAre(Pin{"a", Key(1), 50}));
}

TEST_F(PinTableTest, APinWithoutADeadlineDoesNotExpire) {
  EXPECT_EQ(table_.Add("a", Key(1), PinTable::kNoDeadline_ms), AddResult::kAdded);
  EXPECT_THAT(table_.Expire(UINT64_MAX), IsEmpty());
}

TEST_F(PinTableTest, RemovesAllOfAnOwner) {
  EXPECT_EQ(table_.Add("a", Key(1), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("a", Key(2), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("b", Key(2), 100), AddResult::kAdded);
  EXPECT_THAT(table_.RemoveIf(OfA),
              UnorderedElementsAre(Pin{"a", Key(1), 100}, Pin{"a", Key(2), 100}));
  EXPECT_EQ(table_.Count(Key(2)), 1u);
  EXPECT_THAT(table_.RemoveIf(OfA), IsEmpty());
}

TEST_F(PinTableTest, ForEachVisitsEveryPin) {
  EXPECT_EQ(table_.Add("a", Key(1), 100), AddResult::kAdded);
  EXPECT_EQ(table_.Add("b", Key(2), 200), AddResult::kAdded);
  std::vector<std::string> seen;
  table_.ForEach([&](std::string_view owner, const PinKey& key, uint64_t deadline_ms) {
    EXPECT_EQ(key, owner == "a" ? Key(1) : Key(2));
    EXPECT_EQ(deadline_ms, owner == "a" ? 100u : 200u);
    seen.emplace_back(owner);
  });
  EXPECT_THAT(seen, UnorderedElementsAre("a", "b"));
}

TEST_F(PinTableTest, CountsWhatEachUserHolds) {
  EXPECT_EQ(table_.HoldingOf("router"), std::nullopt) << "an operator has no limit";
  EXPECT_EQ(table_.Add("uid:7/a", Key(1), 100, 5), AddResult::kAdded);
  EXPECT_EQ(table_.Add("uid:7/a", Key(1), 200, 5), AddResult::kMoved)
      << "a repeated pin counts once";
  EXPECT_EQ(table_.Add("uid:7/b", Key(1, Tier::kDisk), 100, 5), AddResult::kAdded);
  EXPECT_EQ(table_.Add("", Key(2), 100, 3), AddResult::kAdded);
  const PinTable::Holding both{.pins = 2, .host_pages = 5, .disk_pages = 5};
  EXPECT_EQ(table_.HoldingOf("uid:7/another"), both);
  EXPECT_EQ(table_.HoldingOf("uid:70/a"), PinTable::Holding{});
  EXPECT_EQ(table_.HoldingOf("")->host_pages, 3u);
  EXPECT_TRUE(table_.Remove("uid:7/a", Key(1)));
  EXPECT_EQ(table_.Expire(100).size(), 2u);
  EXPECT_EQ(table_.HoldingOf("uid:7/a"), PinTable::Holding{});
}

}  // namespace
}  // namespace larder
