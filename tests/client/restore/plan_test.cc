// Plans compared with every possible staircase, and bounds compared with plans.
#include "client/restore/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "client/restore/staircase.h"

namespace larder {
namespace {

constexpr ChannelId kPool{1}, kDisk{2};

// Visits each profile of depths that does not increase, by brute force.
void ForEachStaircase(size_t chunks, uint16_t layers,
                      const std::function<void(const std::vector<uint16_t>&)>& visit) {
  std::vector<uint16_t> depths;
  const std::function<void(uint16_t)> descend = [&](uint16_t most) {
    if (depths.size() == chunks) return visit(depths);
    for (int depth = most; depth >= 0; --depth) {
      depths.push_back(static_cast<uint16_t>(depth));
      descend(static_cast<uint16_t>(depth));
      depths.pop_back();
    }
  };
  descend(layers);
}

double BruteForce(const PlanInput& input) {
  double best = std::numeric_limits<double>::infinity();
  ForEachStaircase(input.chunks.size(), input.layers, [&](const std::vector<uint16_t>& depths) {
    best = std::min(best, CostOf(input, depths).seconds());
  });
  return best;
}

struct Drawing {
  size_t chunks_max = 12;
  uint16_t layers_max = 6;
  bool two_channels = false, holes = false, odd_layers = false;
};

std::vector<double> DrawShares(std::mt19937_64& random, uint16_t layers) {
  std::vector<double> shares(layers);
  double sum = 0;
  for (double& share : shares)
    sum += share = std::uniform_real_distribution<double>(0.2, 1)(random);
  for (double& share : shares) share /= sum;
  return shares;
}

PlanInput Draw(std::mt19937_64& random, const Drawing& drawing) {
  const auto real = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  PlanInput input;
  input.layers = std::uniform_int_distribution<uint16_t>(1, drawing.layers_max)(random);
  const size_t chunks = std::uniform_int_distribution<size_t>(1, drawing.chunks_max)(random);
  const double growth = real(0, 0.3), load = std::exp(real(-3, 3));
  for (size_t i = 0; i < chunks; ++i) {
    PlanChunk chunk{1 + growth * static_cast<double>(i)};
    chunk.loads.push_back({kPool, load});
    if (drawing.two_channels && real(0, 1) < 0.5) chunk.loads.back() = {kDisk, load * real(1, 4)};
    if (drawing.two_channels && real(0, 1) < 0.2) chunk.loads.push_back({kDisk, load * real(0, 1)});
    if (drawing.holes && real(0, 1) < 0.1) chunk.loads.clear();
    input.chunks.push_back(chunk);
  }
  if (drawing.odd_layers) input.layer_compute_shares = DrawShares(random, input.layers);
  if (drawing.odd_layers) input.layer_load_shares = DrawShares(random, input.layers);
  return input;
}

constexpr Drawing kDrawings[] = {
    {},
    {.two_channels = true},
    {.holes = true},
    {.odd_layers = true},
    {.two_channels = true, .holes = true, .odd_layers = true},
};

TEST(Staircase, TheOptimumMatchesBruteForce) {
  std::mt19937_64 random(7);
  for (const Drawing& drawing : kDrawings) {
    for (int i = 0; i < 20; ++i) {
      const PlanInput input = Draw(random, drawing);
      const auto optimum = BestStaircase(input);
      ASSERT_TRUE(optimum.has_value());
      EXPECT_NEAR(optimum->seconds, BruteForce(input), 1e-9);
      EXPECT_NEAR(optimum->seconds, CostOf(input, optimum->depths).seconds(), 1e-9);
      EXPECT_TRUE(std::is_sorted(optimum->depths.rbegin(), optimum->depths.rend()));
    }
  }
}

TEST(Staircase, TheBoundIsBelowTheOptimumAndCloseForManyChunks) {
  std::mt19937_64 random(11);
  for (const Drawing& drawing : kDrawings) {
    for (int i = 0; i < 100; ++i) {
      const PlanInput input = Draw(random, drawing);
      EXPECT_LE(LowerBound(input), BestStaircase(input)->seconds * (1 + 1e-9));
    }
  }
  for (int i = 0; i < 50; ++i) {
    PlanInput input = Draw(random, {.chunks_max = 12, .layers_max = 6});
    const PlanChunk last = input.chunks.back();
    while (input.chunks.size() < 200) input.chunks.push_back(last);
    EXPECT_LE(MakePlan(input).restore_s, LowerBound(input) * 1.02);
  }
}

TEST(Plan, IsNearTheOptimumAndNeverSlowerThanOneResource) {
  std::mt19937_64 random(13);
  double worst = 1;
  for (const Drawing& drawing : kDrawings) {
    for (int i = 0; i < 200; ++i) {
      const PlanInput input = Draw(random, drawing);
      const Plan plan = MakePlan(input);
      EXPECT_TRUE(std::is_sorted(plan.depths.rbegin(), plan.depths.rend()));
      EXPECT_NEAR(plan.restore_s, CostOf(input, plan.depths).seconds(), 1e-9);
      EXPECT_LE(plan.restore_s, std::min(plan.compute_only_s, plan.load_only_s) * (1 + 1e-9));
      const double ratio = plan.restore_s / BestStaircase(input)->seconds;
      EXPECT_GE(ratio, 1 - 1e-9);
      const bool plain = !drawing.two_channels && !drawing.odd_layers;
      EXPECT_LE(ratio, plain ? 1.0 + 1e-9 : 1.5);
      worst = std::max(worst, ratio);
    }
  }
  RecordProperty("worst_ratio", std::to_string(worst));
}

PlanInput Even(size_t chunks, double compute_s, double load_s, uint16_t layers) {
  PlanInput input;
  input.layers = layers;
  for (size_t i = 0; i < chunks; ++i) {
    input.chunks.push_back(
        {compute_s / static_cast<double>(chunks), {{kPool, load_s / static_cast<double>(chunks)}}});
  }
  return input;
}

TEST(Plan, ReportsItsModeAndShape) {
  const Plan both = MakePlan(Even(10, 1, 1, 4));
  EXPECT_EQ(both.mode, PlanMode::kBoth);
  EXPECT_EQ(both.shape, PlanShape::kTokenWise);
  EXPECT_DOUBLE_EQ(both.restore_s, DivisibleBound(1, 1));
  EXPECT_EQ(MakePlan(Even(10, 1, 1000, 4)).mode, PlanMode::kComputeOnly);
  EXPECT_EQ(MakePlan(Even(10, 1000, 1, 4)).mode, PlanMode::kLoadOnly);
  const Plan single = MakePlan(Even(1, 1, 1, 4));
  EXPECT_EQ(single.shape, PlanShape::kLayerWise);
  EXPECT_EQ(single.depths, std::vector<uint16_t>{2});
}

TEST(Plan, WithoutLayersADepthIsAllOrNothing) {
  PlanInput input = Even(3, 1, 1, 4);
  input.splits_layers = false;
  const Plan plan = MakePlan(input);
  for (const uint16_t depth : plan.depths) EXPECT_TRUE(depth == 0 || depth == 4);
  EXPECT_NEAR(plan.restore_s, 2.0 / 3, 1e-9);
}

TEST(Plan, BelowTheCrossoverAllDepthsAreEqual) {
  PlanInput input = Even(5, 1, 1, 4);
  input.crossover_chunks = 6;
  EXPECT_EQ(MakePlan(input).shape, PlanShape::kLayerWise);
  EXPECT_EQ(MakePlan(input).depths, std::vector<uint16_t>(5, 2));
}

TEST(Plan, ComputesUpToTheLastHole) {
  PlanInput input = Even(10, 1, 0.1, 4);
  input.chunks[6].loads.clear();
  const Plan plan = MakePlan(input);
  for (size_t i = 0; i <= 6; ++i) EXPECT_EQ(plan.depths[i], 4);
  EXPECT_EQ(plan.depths[9], 0);
  EXPECT_EQ(plan.load_only_s, std::numeric_limits<double>::infinity());
}

TEST(Plan, AnOverlappedSuffixEndsComputingEarlier) {
  PlanInput input = Even(100, 1, 1, 40);
  input.suffix_s = 0.5;
  const Plan plain = MakePlan(input);
  EXPECT_NEAR(plain.first_token_s, 1, 1e-9);
  input.overlaps_suffix = true;
  const Plan overlapped = MakePlan(input);
  EXPECT_LT(overlapped.first_token_s, OverlapBound(1, 1, 0.5, 40) * 1.03);
  EXPECT_GE(plain.first_token_s / overlapped.first_token_s, 1.15);
  EXPECT_LT(CostOf(input, overlapped.depths).compute_s, CostOf(input, plain.depths).compute_s);
}

TEST(Plan, ReportsWhetherTheDeadlineIsMet) {
  PlanInput input = Even(10, 1, 1, 4);
  input.deadline_s = 0.6;
  EXPECT_TRUE(MakePlan(input).in_time);
  input.deadline_s = 0.4;
  EXPECT_FALSE(MakePlan(input).in_time);
}

TEST(Plan, AcceptsBlocksSmallerAndLargerThanChunks) {
  const CostModel costs({.layers = 4, .compute = {1, 0.01, 0}, .channels = {{"pool", 100}}});
  const PlanInput small = MakePlanInput(costs, 512, 128, 256, std::vector<ChannelId>(4, kPool), 50);
  ASSERT_EQ(small.chunks.size(), 2u);
  EXPECT_NEAR(small.chunks[0].compute_s, 3.56, 0.02);
  EXPECT_EQ(small.chunks[0].loads.size(), 2u);
  const PlanInput large = MakePlanInput(costs, 512, 512, 256, {ChannelId::kNowhere}, 50);
  ASSERT_EQ(large.chunks.size(), 1u);
  EXPECT_NEAR(large.chunks[0].compute_s, 7.12, 0.04);  // two steps
  EXPECT_TRUE(large.chunks[0].loads.empty());
}

}  // namespace
}  // namespace larder
