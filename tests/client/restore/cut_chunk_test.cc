// Chunks that an engine cuts between tokens: which part of a chunk a step computes, which part it
// leaves to loads, and when it waits for them.
#include <gtest/gtest.h>

#include <vector>

#include "tests/client/restore/hand_driven.h"

namespace larder {
namespace {

using testing::HandDriven;
using testing::kLayers;
using testing::Spec;

RequestSpec CutSpec(uint32_t blocks) {
  RequestSpec spec = Spec(1, blocks, 32, 256);
  spec.cut_tokens = 64;
  return spec;
}

std::vector<uint32_t> BlocksOf(HandDriven& bench) {
  std::vector<uint32_t> blocks;
  for (auto loads = bench.Loads(); !loads.empty(); loads = bench.Loads())
    blocks.push_back(loads[0].block);
  return blocks;
}

// One block of a chunk does not arrive: only the cut that contains it is computed.
TEST(CutChunk, OnlyTheCutWithTheMissingBlockIsComputed) {
  for (const uint32_t missing : {3u, 4u, 7u, 8u, 11u}) {
    HandDriven bench({}, 10, 1e9);
    ASSERT_TRUE(bench.scheduler.Add(CutSpec(12), 0).ok());
    std::vector<Load> given;
    for (auto loads = bench.Loads(0); !loads.empty(); loads = bench.Loads(0))
      given.push_back(loads[0]);
    ASSERT_EQ(given.size(), 12u);
    for (const Load& load : given) {
      if (load.block == missing) {
        bench.scheduler.OnLoadFailed(load.id, LoadFailure::kGone, 0);
      } else {
        EXPECT_EQ(bench.scheduler.OnLoaded(load.id, 0), Landing::kPlace);
      }
    }
    const auto step = bench.scheduler.NextCompute(0, 1 << 20, 0);
    ASSERT_TRUE(step.has_value());
    const uint32_t begin = missing / 2 * 64;
    EXPECT_EQ(step->tokens, (TokenRange{begin, begin + 64}));
    bench.scheduler.OnComputed(step->id, 0.1);
    EXPECT_EQ(bench.scheduler.TakeOutcomes().size(), 1u);
  }
}

// The last chunk is divided between computing and loading: the engine computes a cut as fast as its
// blocks are loaded.
TEST(CutChunk, ComputingAndLoadingMeetInsideAChunk) {
  HandDriven bench({}, 0.010, 1e5 / 0.00125);  // a cut (two blocks) takes 2.5 ms either way
  ASSERT_TRUE(bench.scheduler.Add(CutSpec(8), 0).ok());
  const auto step = bench.scheduler.NextCompute(0, 1 << 20, 0);
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->tokens, (TokenRange{0, 128}));
  EXPECT_EQ(BlocksOf(bench), (std::vector<uint32_t>{7, 6, 5, 4}));
}

TEST(CutChunk, AroundAHoleOnlyItsCutIsComputed) {
  HandDriven bench({}, 10, 1e9);
  RequestSpec spec = CutSpec(12);
  spec.stages[0].ranks[0].channel_of_block[3] = ChannelId::kNowhere;
  ASSERT_TRUE(bench.scheduler.Add(spec, 0).ok());
  EXPECT_FALSE(bench.scheduler.NextCompute(0, 1 << 20, 0))
      << "the blocks before the hole are loaded sooner than they could be computed";
  EXPECT_EQ(BlocksOf(bench), (std::vector<uint32_t>{1, 0, 11, 10, 9, 8, 7, 6, 5, 4}));
  EXPECT_FALSE(bench.scheduler.NextCompute(0, 1 << 20, 0)) << "they still are";
  const auto loads = bench.scheduler.TakeCancelledLoads();
  EXPECT_TRUE(loads.empty());
  EXPECT_EQ(bench.scheduler.OnLoaded(LoadId{1}, 1e-4), Landing::kPlace);
  EXPECT_EQ(bench.scheduler.OnLoaded(LoadId{2}, 2e-4), Landing::kPlace);
  EXPECT_EQ(bench.scheduler.NextCompute(0, 1 << 20, 2e-4)->tokens, (TokenRange{64, 128}));
}

// A block whose load has begun is not computed as well, however slow the channel seems to be.
TEST(CutChunk, AStepEndsWhereTheLoadsOfItsChunkBegin) {
  HandDriven bench({}, 0.001, 1e5 / 0.01);
  ASSERT_TRUE(bench.scheduler.Add(CutSpec(8), 0).ok());
  for (int i = 0; i < 3; ++i) ASSERT_EQ(bench.Loads().size(), 1u);
  EXPECT_EQ(bench.scheduler.NextCompute(0, 1 << 20, 0)->tokens, (TokenRange{0, 192}));
}

TEST(CutChunk, AStepIsAbandonedWhenItsBlocksHaveLanded) {
  HandDriven bench({.engine = {.abandons_steps = true}}, 0.001, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(CutSpec(8), 0).ok());
  const auto step = bench.scheduler.NextCompute(0, 64, 0);
  ASSERT_TRUE(step.has_value());
  std::vector<Load> hedges;
  for (auto loads = bench.Loads(0.1); !loads.empty(); loads = bench.Loads(0.1)) {
    if (loads[0].hedge) hedges.push_back(loads[0]);
  }
  ASSERT_EQ(hedges.size(), 2u);
  for (const Load& load : hedges)
    EXPECT_EQ(bench.scheduler.OnLoaded(load.id, 0.1), Landing::kPlace);
  EXPECT_EQ(bench.scheduler.TakeAbandonedSteps(), std::vector<StepId>{step->id});
}

// Loading alone would miss the deadline, so computing is worthwhile, but not for blocks that land
// before they could be computed.
TEST(CutChunk, BlocksThatLandSoonerAreNotComputed) {
  HandDriven bench({.patience_s_min = 10}, 0.020, 1e5 / 0.00125);  // a cut: 7 ms, or 2.5
  RequestSpec spec = CutSpec(8);
  spec.deadline_s = 0.0105;
  ASSERT_TRUE(bench.scheduler.Add(spec, 0).ok());
  std::vector<Load> given;
  for (auto loads = bench.Loads(); !loads.empty(); loads = bench.Loads()) given.push_back(loads[0]);
  ASSERT_EQ(given.size(), 8u);
  bench.scheduler.OnLoadFailed(given[0].id, LoadFailure::kTransient, 0);
  bench.scheduler.OnRateChange(ChannelId{1}, 1e5 / 0.0014);
  EXPECT_FALSE(bench.scheduler.NextCompute(0, 1 << 20, 0).has_value());
  for (size_t i = 2; i < given.size(); ++i) (void)bench.scheduler.OnLoaded(given[i].id, 0.009);
  EXPECT_EQ(bench.scheduler.NextCompute(0, 1 << 20, 0.009)->tokens, (TokenRange{192, 256}));
}

// When the hole is computed, only the first loads have been given out.
TEST(CutChunk, AStepEndsWithTheHole) {
  HandDriven bench({}, 1, 1e5 / 0.003);
  RequestSpec spec = CutSpec(64);
  spec.stages[0].ranks[0].channel_of_block[3] = ChannelId::kNowhere;
  ASSERT_TRUE(bench.scheduler.Add(spec, 0).ok());
  EXPECT_FALSE(bench.scheduler.NextCompute(0, 256, 0).has_value());
  for (const double now_s : {0.003, 0.006})
    EXPECT_EQ(bench.scheduler.OnLoaded(bench.Loads(now_s - 0.003).at(0).id, now_s),
              Landing::kPlace);
  EXPECT_EQ(bench.scheduler.NextCompute(0, 256, 0.006)->tokens, (TokenRange{64, 128}));
}

// If loading the blocks behind the hole takes longer than computing it, the engine does not wait
// for anything.
TEST(CutChunk, TheEngineDoesNotWaitIfLoadingTakesLongest) {
  HandDriven bench({}, 1, 1e5 / 0.1);
  RequestSpec spec = Spec(1, 35, 32, 256);
  for (uint32_t block = 8; block < 16; ++block)
    spec.stages[0].ranks[0].channel_of_block[block] = ChannelId::kNowhere;
  ASSERT_TRUE(bench.scheduler.Add(spec, 0).ok());
  EXPECT_TRUE(bench.scheduler.NextCompute(0, 256, 0).has_value());
}

// While the engine decodes, a hedge is no longer than its budget.  The hedge of an overdue load is
// no longer than that either, but uses all of it.
TEST(CutChunk, AHedgeOfACutChunkKeepsToItsBudget) {
  for (const bool overdue : {false, true}) {
    HandDriven bench({.patience = 1e6}, 0.010, 1e5 / 0.02);  // loading all of it takes 160 ms
    ASSERT_TRUE(bench.scheduler.Add(CutSpec(8), 0).ok());
    ASSERT_EQ(BlocksOf(bench).size(), 8u);
    const double now_s = overdue ? 0.1 : 0;
    const auto hedge = bench.scheduler.NextCompute(0, 128, now_s);
    ASSERT_TRUE(hedge.has_value());
    EXPECT_TRUE(hedge->hedge);
    EXPECT_EQ(hedge->tokens, (TokenRange{0, overdue ? 128u : 64u}));
  }
}

TEST(CutChunk, ARemainderShorterThanACutJoinsTheCutBefore) {
  HandDriven bench({}, 0.001, 1e3);  // no load is worthwhile
  ASSERT_TRUE(bench.scheduler.Add(CutSpec(11), 0).ok());
  const auto next = [&] {
    const auto step = bench.scheduler.NextCompute(0, 64, 0);
    if (step) bench.scheduler.OnComputed(step->id, 0);
    return step ? step->tokens : TokenRange{};
  };
  for (uint32_t begin = 0; begin < 256; begin += 64)
    EXPECT_EQ(next(), (TokenRange{begin, begin + 64}));
  EXPECT_EQ(next(), (TokenRange{256, 352})) << "a step may exceed its budget by less than a cut";
  EXPECT_EQ(bench.scheduler.TakeOutcomes().size(), 1u);
}

// No other event occurs while the only load stalls.
TEST(CutChunk, WakesWhenALoadIsOverdue) {
  HandDriven bench({.patience = 1e6}, 0.05, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(CutSpec(8), 0).ok());
  ASSERT_EQ(BlocksOf(bench).size(), 8u);
  // A load takes a millisecond, and computing everything takes 50.
  double now_s = 0.001;
  for (; !bench.scheduler.NextCompute(0, 1 << 20, now_s).has_value(); now_s += 1e-5)
    ASSERT_LT(now_s, 0.01);
  HandDriven asleep({.patience = 1e6}, 0.05, 1e8);
  ASSERT_TRUE(asleep.scheduler.Add(CutSpec(8), 0).ok());
  ASSERT_EQ(BlocksOf(asleep).size(), 8u);
  double wakes_s = 0;
  while (!asleep.scheduler.NextCompute(0, 1 << 20, wakes_s).has_value()) {
    wakes_s = asleep.scheduler.NextWakeup(wakes_s);
    ASSERT_LT(wakes_s, 1);
  }
  EXPECT_NEAR(wakes_s, now_s, 2e-5);
}

TEST(CutChunk, ABudgetBelowACutComputesNothing) {
  HandDriven bench({}, 0.01, 1e8);
  ASSERT_TRUE(bench.scheduler.Add(CutSpec(8), 0).ok());
  EXPECT_FALSE(bench.scheduler.NextCompute(0, 63, 0).has_value());
  EXPECT_EQ(bench.scheduler.NextCompute(0, 127, 0)->tokens, (TokenRange{0, 64}));
}

TEST(CutChunk, TheLengthOfCutsIsValidated) {
  RequestSpec spec = Spec(1, 8, 32, 256);
  for (const uint32_t cut : {16u, 48u, 96u, 512u}) {
    spec.cut_tokens = cut;
    EXPECT_FALSE(Validate(spec, kLayers).ok()) << cut;
  }
  spec.cut_tokens = 64;
  EXPECT_TRUE(Validate(spec, kLayers).ok());
  SchedulerOptions options;
  options.engine.splits_layers = true;
  EXPECT_FALSE(HandDriven(options, 1, 1).scheduler.Add(spec, 0).ok());
}

}  // namespace
}  // namespace larder
