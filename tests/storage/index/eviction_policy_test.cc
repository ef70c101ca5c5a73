#include "storage/index/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "storage/index/ghost_table.h"

namespace larder {
namespace {

using Departed = GhostTable::Departed;

// Returns a history of `uses` uses that are `gap_s` apart.
ReuseHistory Regular(int uses, uint32_t gap_s) {
  ReuseHistory history;
  for (int i = 0; i < uses; ++i) history = UsedAgain(history, gap_s);
  return history;
}
const ReuseHistory kEveryMinute = Regular(10, 60);
const ReuseHistory kSharedEveryMinute = {
    .span = kEveryMinute.span, .uses = kEveryMinute.uses, .shared = 1};

EvictionCandidate After(uint32_t idle_s, ReuseHistory history = kEveryMinute) {
  return {.bytes = MiB(1),
          .tokens = 64,
          .idle_s = idle_s,
          .history = history,
          .elsewhere = false,
          .unwritten = false};
}

TEST(ReuseHistory, CountsUsesAndTheTimeTheyTook) {
  const ReuseHistory once = UsedAgain({}, 60);
  EXPECT_EQ(once.uses, 1);
  EXPECT_EQ(SpanSeconds(once), 60u);
  const ReuseHistory twice = UsedAgain(once, 3);
  EXPECT_EQ(twice.uses, 2);
  EXPECT_EQ(SpanSeconds(twice), 63u);
  EXPECT_EQ(UsedAgain(twice, 0), twice) << "uses within one second count once";
  EXPECT_EQ(UsedAgain({.span = 0, .uses = 0, .shared = 1}, 5).shared, 1);
}

// The number of uses has four bits.  The rate is kept, and a new rate shows after a few uses.
TEST(ReuseHistory, ForgetsTheOlderHalfOfTheUses) {
  ReuseHistory history;
  for (int i = 0; i < 1000; ++i) history = UsedAgain(history, 100);
  EXPECT_NEAR(SpanSeconds(history) / history.uses, 100, 5);
  for (int i = 0; i < 30; ++i) history = UsedAgain(history, 10);
  EXPECT_NEAR(SpanSeconds(history) / history.uses, 10, 5);
}

TEST(ReuseHistory, SpansAreMonotoneBoundedAndNearlyExact) {
  uint32_t last_span = 0, last_class = 0;
  for (uint64_t idle_s = 0; idle_s <= UINT32_MAX; idle_s += idle_s / 1000 + 1) {
    const ReuseHistory history = UsedAgain({}, static_cast<uint32_t>(idle_s));
    const double expected = static_cast<double>(std::min<uint64_t>(idle_s, (1u << 31) - 1));
    ASSERT_NEAR(SpanSeconds(history), expected, expected / 50);
    ASSERT_GE(SpanSeconds(history), last_span);
    ASSERT_GE(ReuseClassOf(history), last_class);
    ASSERT_LT(ReuseClassOf(history), kReuseClasses);
    last_span = SpanSeconds(history);
    last_class = ReuseClassOf(history);
  }
  EXPECT_EQ(ReuseClassOf({.span = 0x7FF, .uses = 15, .shared = 1}), kReuseClasses - 1);
  EXPECT_NE(ReuseClassOf({}), ReuseClassOf(UsedAgain({}, 1)))
      << "an unknown gap must not be taken for a gap of zero";
}

// Of blocks with equal histories, whatever the history is.
TEST(EvictionPolicy, OfEqualHistoriesTheLeastRecentLeavesFirst) {
  const EvictionPolicy policy;
  for (const ReuseHistory history : {ReuseHistory{}, kEveryMinute, kSharedEveryMinute}) {
    double before = std::numeric_limits<double>::infinity();
    for (const uint32_t idle_s : {0u, 3u, 10u, 60u, 600u, 6000u, 100'000u}) {
      EXPECT_LT(policy.Worth(After(idle_s, history)), before);
      before = policy.Worth(After(idle_s, history));
    }
  }
}

TEST(EvictionPolicy, AFrequentBlockThatStopsLosesItsWorthSooner) {
  const EvictionPolicy policy;
  const ReuseHistory by_the_hour = Regular(10, 3600);
  EXPECT_GT(policy.Worth(After(10)), policy.Worth(After(10, by_the_hour)));
  EXPECT_LT(policy.Worth(After(1200)), policy.Worth(After(1200, by_the_hour)))
      << "after twenty times its gap, the use has probably ended";
}

TEST(EvictionPolicy, ASharedPromptKeepsItsWorth) {
  const EvictionPolicy policy;
  EXPECT_GT(policy.Worth(After(300, kSharedEveryMinute)), 5 * policy.Worth(After(300)));
}

TEST(EvictionPolicy, OneGapCountsLessThanTen) {
  const EvictionPolicy policy;
  const ReuseHistory one = Regular(1, 6), ten = Regular(10, 6);
  EXPECT_LT(policy.Worth(After(6, one)), policy.Worth(After(6, ten)));
  EXPECT_GT(policy.Worth(After(60, one)), policy.Worth(After(60, ten)));
}

TEST(EvictionPolicy, ABurstAndAPauseCountMoreThanNoHistory) {
  const EvictionPolicy policy;
  for (const int uses : {3, 11, 15}) {
    EXPECT_GT(policy.Worth(After(300, Regular(uses, 5))), policy.Worth(After(3600, {}))) << uses;
    EXPECT_LT(policy.Worth(After(300, Regular(uses, 5))), policy.Worth(After(300, {}))) << uses;
  }
}

// The expected rate is that of a use that never ends, if many uses were seen.
TEST(EvictionPolicy, ExpectsUsesAtTheSeenRate) {
  const EvictionPolicy policy;
  const double uses =
      policy.Worth(After(60, kSharedEveryMinute)) * static_cast<double>(MiB(1).value()) / 64;
  EXPECT_NEAR(uses, 1.0 / 60, 0.2 / 60);
}

TEST(EvictionPolicy, WorthIsPerByteAndByTokens) {
  const EvictionPolicy policy;
  EvictionCandidate other = After(100);
  other.tokens = 128;
  EXPECT_DOUBLE_EQ(policy.Worth(other), 2 * policy.Worth(After(100)));
  other = After(100);
  other.bytes = MiB(2);
  EXPECT_DOUBLE_EQ(policy.Worth(other), policy.Worth(After(100)) / 2);
  other.tokens = 0;
  EXPECT_GT(policy.Worth(other), 0)
      << "an unknown number of tokens must not make the block worthless";
  other = After(100);
  other.elsewhere = true;
  EXPECT_LT(policy.Worth(other), policy.Worth(After(100)))
      << "a block with another copy need not be computed again";
}

// Whatever is known of the blocks on disk; but not for long, and not while the disk does not spill.
TEST(EvictionPolicy, AFreshUnwrittenBlockStaysWhileTheDiskSpills) {
  EvictionPolicy policy;
  EvictionCandidate fresh = After(5), stale = After(30);
  fresh.unwritten = stale.unwritten = true;
  EXPECT_DOUBLE_EQ(policy.Worth(fresh), policy.Worth(After(5)));
  policy.SetSpilling(true);
  EvictionCandidate written = After(0, kSharedEveryMinute);
  written.elsewhere = true;
  EXPECT_GT(policy.Worth(fresh), 100 * policy.Worth(written));
  EXPECT_DOUBLE_EQ(policy.Worth(stale), policy.Worth(After(30)));
  policy.SetSpilling(false);
  EXPECT_DOUBLE_EQ(policy.Worth(fresh), policy.Worth(After(5)));
}

TEST(EvictionPolicy, WorthIsFiniteAtTheExtremes) {
  const EvictionPolicy policy;
  constexpr ReuseHistory kMost = {.span = 0x7FF, .uses = 15, .shared = 0};
  for (const ReuseHistory history : {ReuseHistory{}, kMost, Regular(15, 0)}) {
    for (const uint32_t idle_s : {0u, UINT32_MAX}) {
      for (const uint32_t tokens : {0u, UINT32_MAX}) {
        const double worth = policy.Worth({.bytes = ByteCount(0),
                                           .tokens = tokens,
                                           .idle_s = idle_s,
                                           .history = history,
                                           .elsewhere = false,
                                           .unwritten = false});
        EXPECT_TRUE(std::isfinite(worth) && worth > 0) << history.uses << ' ' << idle_s;
      }
    }
  }
}

TEST(GhostTable, RemembersUntilTaken) {
  GhostTable table;
  EXPECT_FALSE(table.Take(77).has_value());
  table.Remember(77, {kEveryMinute, 1234}, 1);
  EXPECT_FALSE(table.Take(78).has_value());
  const auto found = table.Take(77);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->history, kEveryMinute);
  EXPECT_EQ(found->last_use_s, 1234u);
  EXPECT_FALSE(table.Take(77).has_value());
}

TEST(GhostTable, ForgetsTheOldestOfAFew) {
  GhostTable table;
  constexpr uint64_t kMany = 10'000;
  uint64_t remembered = 0;
  for (uint64_t i = 0; i < kMany; ++i) {
    const uint64_t hash = i * 0x9E3779B97F4A7C15;
    table.Remember(hash, {{}, static_cast<uint32_t>(i)}, 1024);
  }
  for (uint64_t i = 0; i < kMany; ++i) {
    const auto found = table.Take(i * 0x9E3779B97F4A7C15);
    if (!found) continue;
    ++remembered;
    EXPECT_EQ(found->last_use_s, i);
    EXPECT_GT(i, kMany - 6 * 1024) << "younger ghost entries were forgotten before it";
  }
  EXPECT_GT(remembered, 1800u);
  EXPECT_LE(table.memory_bytes(), 16u * 1024);
}

TEST(GhostTable, GrowsWithTheIndex) {
  GhostTable table;
  (void)table.Remember(1, {}, 10);
  const uint64_t small = table.memory_bytes();
  (void)table.Remember(2, {}, 100'000);
  EXPECT_GT(table.memory_bytes(), small);
  EXPECT_LE(table.memory_bytes(), 16u * 100'000);
  EXPECT_TRUE(table.Take(2).has_value());
}

}  // namespace
}  // namespace larder
