// Which blocks continue which blocks, in all tiers.
#include "server/verbs/chain_forest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "storage/index/index_entry.h"
#include "tests/storage/store/store_fixture.h"

namespace larder::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr uint32_t kBytes = 4096;

class ChainForestTest : public ::testing::Test {
 protected:
  // Puts blocks, each the parent of the next.
  std::vector<Digest> PutChain(Digest parent, std::vector<uint32_t> seeds) {
    std::vector<Digest> names;
    for (const uint32_t seed : seeds) {
      EXPECT_EQ(f_.Put(parent, seed, kBytes, std::byte{1}, &parent), BlockStatus::kOk);
      names.push_back(parent);
    }
    return names;
  }
  // Enters a block as a tier does when it finds one at start.
  Digest EnterFromDisk(const Digest& parent, uint32_t seed) {
    const Digest name = Chain(parent, TestTokens(seed)).back();
    EXPECT_NE(f_.store().EnterFromDisk(TestVariant().Id(), name, parent, seed, 1).value, 0u);
    return name;
  }
  [[nodiscard]] uint64_t HashOf(const Digest& digest) const {
    return IndexHash(f_.variant(), digest);
  }
  [[nodiscard]] std::vector<uint64_t> Below(const Digest& name) const {
    const ChainForest::Names names = ChainForest(index()).Below({HashOf(name)});
    return {names.begin(), names.end()};
  }
  [[nodiscard]] std::vector<Digest> Heads() const {
    const ChainForest forest(index());
    std::vector<Digest> heads;
    index().ForEachLink([&](const ChainLink& block) {
      if (forest.IsHead(block)) heads.push_back(block.digest);
    });
    return heads;
  }
  [[nodiscard]] const BlockIndex& index() const {
    return const_cast<StoreFixture&>(f_).store().index();
  }

  StoreFixture f_;
  const Digest content_ = Chain({}, TestTokens(99)).back();
};

TEST_F(ChainForestTest, FindsAllBlocksBelowAName) {
  const auto trunk = PutChain(content_, {1, 2});
  const auto left = PutChain(trunk[1], {3, 4});
  const auto right = PutChain(trunk[1], {5});
  EXPECT_THAT(Below(trunk[1]), UnorderedElementsAre(HashOf(trunk[1]), HashOf(left[0]),
                                                    HashOf(left[1]), HashOf(right[0])));
  EXPECT_THAT(Below(right[0]), ElementsAre(HashOf(right[0])));
  EXPECT_EQ(Below(content_).size(), 6u) << "blocks are found below a name that no block has";
  EXPECT_THAT(Heads(), ElementsAre(trunk[0]));
}

TEST_F(ChainForestTest, KnowsBlocksOnDiskToo) {
  const Digest first = EnterFromDisk(content_, 1);
  const Digest second = EnterFromDisk(first, 2);
  const auto third = PutChain(second, {3});
  EXPECT_THAT(Below(first), UnorderedElementsAre(HashOf(first), HashOf(second), HashOf(third[0])));
  EXPECT_THAT(Heads(), ElementsAre(first));
}

TEST_F(ChainForestTest, ABlockBehindAHoleIsAHead) {
  const auto chain = PutChain(content_, {1, 2, 3, 4});
  ASSERT_TRUE(f_.store().Drop(f_.variant(), chain[1]));
  EXPECT_THAT(Heads(), UnorderedElementsAre(chain[0], chain[2]));
  EXPECT_THAT(Below(chain[0]), ElementsAre(HashOf(chain[0])));
  EXPECT_EQ(Below(chain[1]).size(), 3u) << "the name of the hole still has blocks below it";
}

}  // namespace
}  // namespace larder::testing
