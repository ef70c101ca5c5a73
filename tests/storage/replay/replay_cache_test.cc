// What every cache of a replay keeps to, and what each policy is known for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "storage/replay/index_cache.h"
#include "storage/replay/known_policies.h"
#include "storage/replay/replay.h"

namespace larder::replay {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using Make = std::function<std::unique_ptr<ReplayCache>(size_t blocks, const RequestTrace& trace)>;
struct Policy {
  std::string name;
  Make make;
};

// Each request is a turn of one of twelve conversations, and adds blocks to what came before.  One
// turn in four first drops the history and keeps the prompt that all conversations share.
RequestTrace Conversations(uint64_t seed, size_t requests) {
  std::mt19937_64 random(seed);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  std::vector<std::vector<BlockId>> chats(12);
  BlockId next = 1;
  RequestTrace trace;
  for (size_t i = 0; i < requests; ++i) {
    std::vector<BlockId>& chat = chats[below(chats.size())];
    if (below(4) == 0) chat.assign({0});  // the prompt that all share
    for (size_t more = below(5); more > 0; --more) chat.push_back(next++);
    if (!chat.empty()) trace.requests.push_back({static_cast<double>(i), chat});
  }
  return trace;
}

class ReplayCacheTest : public ::testing::TestWithParam<Policy> {
 protected:
  std::unique_ptr<ReplayCache> Of(size_t blocks, const RequestTrace& trace) {
    return GetParam().make(blocks, trace);
  }
};

TEST_P(ReplayCacheTest, ACacheOfAllBlocksFindsAllThatCameBefore) {
  const RequestTrace trace = Conversations(1, 400);
  const auto cache = Of(Footprint(trace), trace);
  std::vector<bool> seen(Footprint(trace) + 1);
  for (const TracedRequest& request : trace.requests) {
    size_t expected = 0;
    while (expected < request.blocks.size() && seen[request.blocks[expected]]) ++expected;
    EXPECT_EQ(cache->Request(request), expected);
    for (const BlockId block : request.blocks) seen[block] = true;
  }
}

// Each block is read from a cache of its own that has seen all of them, because a read changes what
// the cache holds.
TEST_P(ReplayCacheTest, ACacheHoldsAsManyBlocksAsItMayAndNoMore) {
  constexpr size_t kCapacity = 20, kBlocks = 50;
  size_t held = 0;
  for (BlockId asked = 0; asked < kBlocks; ++asked) {
    RequestTrace trace;
    for (BlockId block = 0; block < kBlocks; ++block)
      trace.requests.push_back({static_cast<double>(block), {block}});
    // A future in which every block is used again, so that the clairvoyant keeps some of them.
    for (BlockId block = 0; block < kBlocks; ++block)
      trace.requests.push_back({static_cast<double>(kBlocks + block), {block}});
    const auto cache = Of(kCapacity, trace);
    for (size_t i = 0; i < kBlocks; ++i) EXPECT_EQ(cache->Request(trace.requests[i]), 0u);
    held += cache->Request({static_cast<double>(kBlocks), {asked}});
  }
  EXPECT_EQ(held, kCapacity);
}

TEST_P(ReplayCacheTest, OnlyAPrefixCounts) {
  const RequestTrace trace{.requests = {{0, {1, 2, 3}}, {1, {1, 9, 3}}, {2, {2, 3}}, {3, {8, 1}}}};
  const auto cache = Of(100, trace);
  EXPECT_EQ(cache->Request(trace.requests[0]), 0u);
  EXPECT_EQ(cache->Request(trace.requests[1]), 1u);
  EXPECT_EQ(cache->Request(trace.requests[2]), 2u) << "block 2 begins this prompt";
  EXPECT_EQ(cache->Request(trace.requests[3]), 0u);
}

TEST_P(ReplayCacheTest, EqualTracesGiveEqualHits) {
  const RequestTrace trace = Conversations(2, 600);
  const size_t blocks = Footprint(trace) / 10;
  EXPECT_EQ(Replay(trace, *Of(blocks, trace)).hits, Replay(trace, *Of(blocks, trace)).hits);
}

TEST_P(ReplayCacheTest, NoneBeatsTheKnownFuture) {
  for (const uint64_t seed : {3, 4, 5}) {
    const RequestTrace trace = Conversations(seed, 600);
    for (const size_t percent : {2, 10, 30}) {
      const size_t blocks = std::max<size_t>(1, Footprint(trace) * percent / 100);
      EXPECT_LE(Replay(trace, *Of(blocks, trace)).hits,
                Replay(trace, *MakeClairvoyant(blocks, trace)).hits)
          << percent << " %, seed " << seed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ReplayCacheTest,
    ::testing::Values(
        Policy{"LruHeadFirst",
               [](size_t n, const RequestTrace&) { return MakeLru(n, UseOrder::kHeadFirst); }},
        Policy{"LruTailFirst",
               [](size_t n, const RequestTrace&) { return MakeLru(n, UseOrder::kTailFirst); }},
        Policy{"ArcHeadFirst",
               [](size_t n, const RequestTrace&) { return MakeArc(n, UseOrder::kHeadFirst); }},
        Policy{"ArcTailFirst",
               [](size_t n, const RequestTrace&) { return MakeArc(n, UseOrder::kTailFirst); }},
        Policy{"S3FifoHeadFirst",
               [](size_t n, const RequestTrace&) { return MakeS3Fifo(n, UseOrder::kHeadFirst); }},
        Policy{"S3FifoTailFirst",
               [](size_t n, const RequestTrace&) { return MakeS3Fifo(n, UseOrder::kTailFirst); }},
        Policy{"Clairvoyant",
               [](size_t n, const RequestTrace& trace) { return MakeClairvoyant(n, trace); }},
        Policy{"IndexHost",
               [](size_t n, const RequestTrace&) { return MakeIndexCache(n, Tier::kHost); }},
        Policy{"IndexDisk",
               [](size_t n, const RequestTrace&) { return MakeIndexCache(n, Tier::kDisk); }}),
    [](const ::testing::TestParamInfo<Policy>& policy) { return policy.param.name; });

// ---- each policy

// Requests of one block each, one a second.
RequestTrace Singles(const std::vector<BlockId>& blocks) {
  RequestTrace trace;
  for (const BlockId block : blocks)
    trace.requests.push_back({static_cast<double>(trace.requests.size()), {block}});
  return trace;
}

// Block 0 is used every other time; all others are used once.
RequestTrace OneHotBlockAmongMany(size_t requests) {
  std::vector<BlockId> blocks;
  for (BlockId i = 1; i < requests; ++i) blocks.insert(blocks.end(), {0, i});
  return Singles(blocks);
}

TEST(KnownPolicies, LruLosesTheBlockUsedLongestAgo) {
  const RequestTrace trace = Singles({1, 2, 3, 1, 4, 1, 2});  // 4 pushes 2 out of three places
  EXPECT_EQ(Replay(trace, *MakeLru(3, UseOrder::kHeadFirst)).hits, 2u);
  const RequestTrace loop = Singles({1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4});
  EXPECT_EQ(Replay(loop, *MakeLru(3, UseOrder::kHeadFirst)).hits, 0u);
  EXPECT_GT(Replay(loop, *MakeClairvoyant(3, loop)).hits, 0u);
}

TEST(KnownPolicies, TailFirstKeepsTheHeadOfAPromptThatIsTooLong) {
  const std::vector<BlockId> prompt = {1, 2, 3, 4};
  const RequestTrace trace{.requests = {{0, prompt}, {1, prompt}}};
  EXPECT_EQ(Replay(trace, *MakeLru(3, UseOrder::kHeadFirst)).hits, 0u);
  EXPECT_EQ(Replay(trace, *MakeLru(3, UseOrder::kTailFirst)).hits, 3u);
}

TEST(KnownPolicies, ArcAndS3FifoKeepABlockThatIsUsedAgainThroughAScan) {
  // Blocks 0 to 4 are used again and again; then 200 others pass once.
  std::vector<BlockId> blocks;
  for (int round = 0; round < 5; ++round) {
    for (BlockId hot = 0; hot < 5; ++hot) blocks.push_back(hot);
  }
  for (BlockId once = 100; once < 300; ++once) blocks.push_back(once);
  const size_t before = blocks.size();
  for (BlockId hot = 0; hot < 5; ++hot) blocks.push_back(hot);
  const RequestTrace trace = Singles(blocks);
  const auto hits_at_last = [&](std::unique_ptr<ReplayCache> cache) {
    size_t hits = 0;
    for (size_t i = 0; i < trace.requests.size(); ++i) {
      const size_t hit = cache->Request(trace.requests[i]);
      if (i >= before) hits += hit;
    }
    return hits;
  };
  EXPECT_EQ(hits_at_last(MakeLru(10, UseOrder::kHeadFirst)), 0u);
  EXPECT_EQ(hits_at_last(MakeArc(10, UseOrder::kHeadFirst)), 5u);
  EXPECT_EQ(hits_at_last(MakeS3Fifo(10, UseOrder::kHeadFirst)), 5u);
}

// The hits of requests of one block each, 1 or 0.
std::vector<size_t> HitsOf(ReplayCache& cache, const std::vector<BlockId>& blocks) {
  std::vector<size_t> hits;
  for (const TracedRequest& request : Singles(blocks).requests)
    hits.push_back(cache.Request(request));
  return hits;
}

// Worked by hand from Figure 4 of the paper, for two blocks; T2 is what was used twice.
TEST(KnownPolicies, ArcRemembersTheNamesOfBlocksThatHaveLeft) {
  const auto arc = MakeArc(2, UseOrder::kHeadFirst);
  // T1 = {1}; 1 again: T2 = {1}; T1 = {2}; 3 pushes 2 into B1.
  EXPECT_THAT(HitsOf(*arc, {1, 1, 2, 3}), ElementsAre(0, 1, 0, 0));
  // 2 is in B1, so p grows to 1: T1 = {3} is not larger than p, and 1 leaves T2 for B2.
  EXPECT_THAT(HitsOf(*arc, {2, 3}), ElementsAre(0, 1));
  // 1 is in B2, so p falls to 0, and T2 = {2, 3} gives up 2.
  EXPECT_THAT(HitsOf(*arc, {1, 3, 2}), ElementsAre(0, 1, 0));
}

// A cache of ten blocks has a small queue of one, and remembers the names of nine that have left.
TEST(KnownPolicies, S3FifoTakesWhatComesBackIntoItsMainQueue) {
  const auto cache = MakeS3Fifo(10, UseOrder::kHeadFirst);
  std::vector<BlockId> once;
  for (BlockId block = 1; block <= 11; ++block) once.push_back(block);
  EXPECT_THAT(HitsOf(*cache, once), Each(0));        // 11 pushes 1 out
  EXPECT_THAT(HitsOf(*cache, {1}), ElementsAre(0));  // a ghost, now in the main queue; 2 left
  std::vector<BlockId> others;
  for (BlockId block = 100; block < 200; ++block) others.push_back(block);
  EXPECT_THAT(HitsOf(*cache, others), Each(0));
  EXPECT_THAT(HitsOf(*cache, {1, 11}), ElementsAre(1, 0))
      << "only the main queue keeps through a scan";
}

TEST(KnownPolicies, AllFindAHotBlock) {
  const RequestTrace trace = OneHotBlockAmongMany(100);
  EXPECT_EQ(Replay(trace, *MakeLru(10, UseOrder::kHeadFirst)).hits, 98u);
  EXPECT_EQ(Replay(trace, *MakeArc(10, UseOrder::kHeadFirst)).hits, 98u);
  EXPECT_EQ(Replay(trace, *MakeS3Fifo(10, UseOrder::kHeadFirst)).hits, 98u);
}

TEST(Replay, CountsWhatHitsSave) {
  const RequestTrace trace{.requests = {{0, {1, 2}}, {1, {1, 2}}}, .block_tokens = 1'000};
  const ReplayResult result =
      Replay(trace, *MakeLru(10, UseOrder::kHeadFirst), {.doubled_at_tokens = 1'000});
  EXPECT_EQ(result.blocks, 4u);
  EXPECT_EQ(result.hits, 2u);
  EXPECT_EQ(result.hit_share(), 0.5);
  EXPECT_EQ(result.cost, 2 * (2'000 + 2'000.0 * 2'000 / 2'000));
  EXPECT_EQ(result.saved_share(), 0.5);
}

TEST(Replay, DeepTokensCostMore) {
  const ComputeCurve curve{.doubled_at_tokens = 100};
  EXPECT_EQ(CostOf(curve, 0), 0);
  const double first = CostOf(curve, 1), later = CostOf(curve, 101) - CostOf(curve, 100);
  EXPECT_NEAR(later / first, 2, 0.01);
}

}  // namespace
}  // namespace larder::replay
