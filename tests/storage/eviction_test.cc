#include "storage/eviction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "storage/departed_table.h"

namespace larder {
namespace {

using Departed = DepartedTable::Departed;

constexpr ReuseHistory kEveryMinute = {.gap = 24, .shared = false};

EvictionCandidate After(uint32_t idle_s, ReuseHistory history = kEveryMinute) {
  return {.bytes = MiB(1),
          .tokens = 64,
          .idle_s = idle_s,
          .history = history,
          .elsewhere = false,
          .unwritten = false};
}

TEST(ReuseHistory, TheGapIsAMovingMeanInLogarithms) {
  const ReuseHistory once = UsedAgain({}, 64);
  EXPECT_EQ(once.gap, 1 + 4 * 6);
  EXPECT_EQ(UsedAgain(once, 64), once);
  EXPECT_EQ(UsedAgain(once, 1024).gap, 1 + 4 * 7) << "a quarter of four octaves";
  EXPECT_EQ(UsedAgain(once, 0).gap, UsedAgain(once, 1).gap);
  EXPECT_EQ(UsedAgain({}, 0).gap, 1) << "known, if short";
  EXPECT_TRUE(UsedAgain({.gap = 0, .shared = true}, 5).shared);
}

TEST(ReuseHistory, ClassesAndBucketsAreMonotoneAndBounded) {
  uint32_t last_class = 0, last_bucket = 0;
  for (uint64_t idle_s = 0; idle_s <= UINT32_MAX; idle_s += idle_s / 7 + 1) {
    const auto idle = static_cast<uint32_t>(idle_s);
    const uint32_t reuse_class = ReuseClassOf(UsedAgain({}, idle));
    ASSERT_GE(reuse_class, last_class);
    ASSERT_GE(IdleBucketOf(idle), last_bucket);
    last_class = reuse_class;
    last_bucket = IdleBucketOf(idle);
  }
  EXPECT_EQ(last_class, kReuseClasses - 2);
  EXPECT_EQ(ReuseClassOf({.gap = 127, .shared = true}), kReuseClasses - 1);
  EXPECT_EQ(IdleBucketOf(UINT32_MAX), kIdleBuckets - 1);
  EXPECT_EQ(IdleBucketOf(0), 0u);
  EXPECT_NE(ReuseClassOf({}), ReuseClassOf(UsedAgain({}, 1))) << "unknown is no gap";
}

TEST(EvictionPolicy, KnowingNothingTheLeastRecentLeavesFirst) {
  const EvictionPolicy policy;
  double before = std::numeric_limits<double>::infinity();
  for (const uint32_t idle_s : {0u, 3u, 10u, 60u, 600u, 6000u, 100'000u}) {
    for (const ReuseHistory history : {ReuseHistory{}, kEveryMinute, {.gap = 9, .shared = true}})
      EXPECT_DOUBLE_EQ(policy.Worth(After(idle_s, history)), policy.Worth(After(idle_s)));
    EXPECT_LT(policy.Worth(After(idle_s)), before);
    before = policy.Worth(After(idle_s));
  }
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
  EXPECT_GT(policy.Worth(other), 0) << "unknown, not worthless";
  other = After(100);
  other.elsewhere = true;
  EXPECT_LT(policy.Worth(other), policy.Worth(After(100))) << "it need not be computed";
}

// Whatever is known of those that are there already; but not for long, and not in an outage.
TEST(EvictionPolicy, WhatIsOnItsWayToTheDiskStays) {
  EvictionPolicy policy;
  EvictionCandidate fresh = After(5), stale = After(30);
  fresh.unwritten = stale.unwritten = true;
  EXPECT_DOUBLE_EQ(policy.Worth(fresh), policy.Worth(After(5)));
  policy.SetSpilling(true);
  EvictionCandidate written = After(0, {.gap = 1, .shared = true});
  written.elsewhere = true;
  EXPECT_GT(policy.Worth(fresh), 100 * policy.Worth(written));
  EXPECT_DOUBLE_EQ(policy.Worth(stale), policy.Worth(After(30)));
  policy.SetSpilling(false);
  EXPECT_DOUBLE_EQ(policy.Worth(fresh), policy.Worth(After(5)));
}

// A hazard that is the same at every age is its own index: h uses a second, whatever the horizon.
TEST(EvictionPolicy, LearnsAConstantHazard) {
  constexpr double kUsesPerSecond = 0.01;
  const auto counts = std::make_unique<ReuseCounts>();
  double left = 1e6;
  for (uint32_t idle_s = 0; idle_s < 2000; ++idle_s) {
    const double used = left * -std::expm1(-kUsesPerSecond);
    counts->again[ReuseClassOf(kEveryMinute)][IdleBucketOf(idle_s)] += static_cast<uint64_t>(used);
    left -= used;
  }
  EvictionPolicy policy;
  policy.Learn(*counts);
  for (const uint32_t idle_s : {0u, 10u, 60u, 200u}) {
    const double uses = policy.Worth(After(idle_s)) * static_cast<double>(MiB(1).value()) / 64;
    EXPECT_NEAR(uses, kUsesPerSecond, kUsesPerSecond / 4) << idle_s;
  }
}

TEST(EvictionPolicy, LearnsWhatRecencyDoesNotTell) {
  // Of two classes: one comes back after minutes, all of it; of the other, what did not come back
  // within seconds never does.
  constexpr ReuseHistory kPrompt = {.gap = 24, .shared = true};
  const auto counts = std::make_unique<ReuseCounts>();
  for (int i = 0; i < 10'000; ++i) {
    counts->Again(kPrompt, 200);
    counts->Again(kEveryMinute, 2);
    counts->Forgotten(kEveryMinute, 1000);
  }
  EvictionPolicy policy;
  policy.Learn(*counts);
  EXPECT_GT(policy.Worth(After(100, kPrompt)), policy.Worth(After(10)));
  EXPECT_GT(policy.Worth(After(0)), policy.Worth(After(0, kPrompt))) << "sooner is better";
  EXPECT_DOUBLE_EQ(policy.Worth(After(60, {})), EvictionPolicy().Worth(After(60, {})))
      << "nothing was learned of others";
}

TEST(EvictionPolicy, OldExperienceFades) {
  const auto never = std::make_unique<ReuseCounts>();
  never->forgotten[ReuseClassOf(kEveryMinute)][IdleBucketOf(100)] = 1'000'000;
  const auto always = std::make_unique<ReuseCounts>();
  always->again[ReuseClassOf(kEveryMinute)][IdleBucketOf(100)] = 1'000'000;
  EvictionPolicy changed, fresh;
  for (int i = 0; i < 20; ++i) changed.Learn(*never);
  for (int i = 0; i < 20; ++i) {
    changed.Learn(*always);
    fresh.Learn(*always);
  }
  EXPECT_NEAR(changed.Worth(After(90)) / fresh.Worth(After(90)), 1, 0.1);
}

TEST(EvictionPolicy, IsFiniteAtTheEdges) {
  EvictionPolicy policy;
  const auto counts = std::make_unique<ReuseCounts>();
  for (const bool learned : {false, true}) {
    for (const uint32_t idle_s : {0u, UINT32_MAX}) {
      for (const uint32_t tokens : {0u, UINT32_MAX}) {
        const double worth = policy.Worth({.bytes = ByteCount(0),
                                           .tokens = tokens,
                                           .idle_s = idle_s,
                                           .history = kEveryMinute,
                                           .elsewhere = false,
                                           .unwritten = false});
        EXPECT_TRUE(std::isfinite(worth) && worth > 0) << learned;
      }
    }
    counts->again[ReuseClassOf(kEveryMinute)][kIdleBuckets - 1] = uint64_t{1} << 50;
    counts->forgotten[ReuseClassOf(kEveryMinute)][0] = uint64_t{1} << 50;
    policy.Learn(*counts);
  }
}

TEST(DepartedTable, RemembersUntilTaken) {
  DepartedTable table;
  EXPECT_FALSE(table.Take(77).has_value());
  EXPECT_FALSE(table.Remember(77, {kEveryMinute, 1234}, 1).has_value());
  EXPECT_FALSE(table.Take(78).has_value());
  const auto found = table.Take(77);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->history, kEveryMinute);
  EXPECT_EQ(found->last_use_s, 1234u);
  EXPECT_FALSE(table.Take(77).has_value());
}

TEST(DepartedTable, ForgetsTheOldestOfAFew) {
  DepartedTable table;
  constexpr uint64_t kMany = 10'000;
  uint64_t forgotten = 0, remembered = 0;
  for (uint64_t i = 0; i < kMany; ++i) {
    const uint64_t hash = i * 0x9E3779B97F4A7C15;
    forgotten += table.Remember(hash, {{}, static_cast<uint32_t>(i)}, 1024).has_value() ? 1 : 0;
  }
  for (uint64_t i = 0; i < kMany; ++i) {
    const auto found = table.Take(i * 0x9E3779B97F4A7C15);
    if (!found) continue;
    ++remembered;
    EXPECT_EQ(found->last_use_s, i);
    EXPECT_GT(i, kMany - 3 * 1024) << "younger ones were forgotten before it";
  }
  EXPECT_EQ(remembered + forgotten, kMany);
  EXPECT_GT(remembered, 900u);
  EXPECT_LE(table.memory_bytes(), 8u * 1024);
}

TEST(DepartedTable, GrowsWithTheIndex) {
  DepartedTable table;
  (void)table.Remember(1, {}, 10);
  const uint64_t small = table.memory_bytes();
  (void)table.Remember(2, {}, 100'000);
  EXPECT_GT(table.memory_bytes(), small);
  EXPECT_LE(table.memory_bytes(), 8u * 100'000);
  EXPECT_TRUE(table.Take(2).has_value());
}

}  // namespace
}  // namespace larder
