// What the cost model learns, from which observations, and how fast.
#include "client/restore/costs/cost_model.h"

#include <gtest/gtest.h>

#include <random>

namespace larder {
namespace {

constexpr ChannelId kPool{1};
constexpr ComputeCost kTruth = {2e-3, 1e-4, 3e-9};

Profile ProfileOf(ComputeCost cost, double doubt = 0.3) {
  return {.model = "m", .layers = 32, .compute = cost, .channels = {{"pool", 1e9}}, .doubt = doubt};
}

TokenRange Chunk(uint32_t i) { return {512 * i, 512 * (i + 1)}; }

TEST(CostModel, StartsWithItsProfile) {
  const CostModel model(ProfileOf(kTruth));
  EXPECT_NEAR(model.ComputeSeconds(Chunk(3)), kTruth.Seconds(Chunk(3)), 1e-12);
  EXPECT_NEAR(model.ComputeSeconds(Chunk(3), {0, 8}), kTruth.Seconds(Chunk(3)) / 4, 1e-12);
  EXPECT_DOUBLE_EQ(model.LoadSeconds(kPool, 5e8), 0.5);
  EXPECT_NEAR(model.ComputeDoubt(Chunk(3)), 0.3, 0.05);
}

TEST(CostModel, OneStepTellsHowMuchSlowerTheMachineIs) {
  CostModel model(ProfileOf(kTruth));
  model.ObserveCompute(Chunk(0), {0, 32}, kTruth.Seconds(Chunk(0)) * 1.3);
  EXPECT_NEAR(model.ComputeSeconds(Chunk(0)) / kTruth.Seconds(Chunk(0)), 1.3, 0.02);
  EXPECT_NEAR(model.ComputeSeconds(Chunk(40)) / kTruth.Seconds(Chunk(40)), 1.3, 0.08);
  EXPECT_LT(model.ComputeDoubt(Chunk(0)), 0.05);
}

TEST(CostModel, LearnsEachTermDespiteNoise) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(1, 0.02);
  CostModel model(ProfileOf({1e-3, 2e-4, 1e-9}));
  for (int round = 0; round < 10; ++round) {
    for (uint32_t i = 0; i < 64; ++i) {
      model.ObserveCompute(Chunk(i), {0, 32}, kTruth.Seconds(Chunk(i)) * noise(random));
    }
  }
  for (const uint32_t i : {0u, 20u, 63u, 100u}) {
    EXPECT_NEAR(model.ComputeSeconds(Chunk(i)) / kTruth.Seconds(Chunk(i)), 1, 0.05) << i;
  }
}

TEST(CostModel, LearnsFromPartsOfTheLayers) {
  CostModel model(ProfileOf(kTruth));
  for (uint16_t l = 0; l < 32; ++l) {
    model.ObserveCompute(Chunk(0), {l, static_cast<uint16_t>(l + 1)},
                         kTruth.Seconds(Chunk(0)) / 16);
  }
  EXPECT_NEAR(model.ComputeSeconds(Chunk(0)) / kTruth.Seconds(Chunk(0)), 2, 0.05);
}

TEST(CostModel, LayersHaveTheirOwnShares) {
  Profile profile = ProfileOf(kTruth);
  profile.layers = 2;
  profile.layer_shares = {1, 3};
  const CostModel model(profile);
  EXPECT_NEAR(model.ComputeSeconds(Chunk(0), {1, 2}) / kTruth.Seconds(Chunk(0)), 0.75, 1e-9);
}

TEST(CostModel, OneOutlierIsIgnoredAndASecondIsBelieved) {
  CostModel model(ProfileOf(kTruth, 0.05));
  for (uint32_t i = 0; i < 20; ++i) model.ObserveLoad(kPool, 1e6, 1e-3);
  model.ObserveLoad(kPool, 1e6, 1e-2);
  EXPECT_LT(model.LoadSeconds(kPool, 1e6), 2e-3);
  model.ObserveLoad(kPool, 1e6, 1e-2);
  EXPECT_GT(model.LoadSeconds(kPool, 1e6), 8e-3);
  for (int i = 0; i < 3; ++i) model.ObserveLoad(kPool, 1e6, 1e-3);
  EXPECT_LT(model.LoadSeconds(kPool, 1e6), 1.5e-3);
}

TEST(CostModel, FollowsAMachineThatChanges) {
  CostModel model(ProfileOf(kTruth, 0.05));
  for (uint32_t i = 0; i < 32; ++i)
    model.ObserveCompute(Chunk(i), {0, 32}, kTruth.Seconds(Chunk(i)));
  for (uint32_t i = 0; i < 4; ++i)
    model.ObserveCompute(Chunk(i), {0, 32}, 6 * kTruth.Seconds(Chunk(i)));
  EXPECT_NEAR(model.ComputeSeconds(Chunk(4)) / kTruth.Seconds(Chunk(4)), 6, 0.6);
}

TEST(CostModel, DoubtStaysFiniteForUnseenSizes) {
  CostModel model(ProfileOf(kTruth));
  for (int i = 0; i < 5000; ++i) model.ObserveCompute(Chunk(0), {0, 32}, kTruth.Seconds(Chunk(0)));
  EXPECT_LT(model.ComputeDoubt(Chunk(200)), 1.5);
  EXPECT_NEAR(model.ComputeSeconds(Chunk(0)) / kTruth.Seconds(Chunk(0)), 1, 0.01);
}

TEST(CostModel, InvalidObservationsChangeNothing) {
  CostModel model(ProfileOf(kTruth));
  model.ObserveCompute({5, 5}, {0, 32}, 1);
  model.ObserveCompute(Chunk(0), {4, 4}, 1);
  model.ObserveCompute(Chunk(0), {0, 32}, 0);
  model.ObserveLoad(kPool, 0, 1);
  model.ObserveLoad(ChannelId::kNowhere, 5, 1);
  EXPECT_NEAR(model.ComputeSeconds(Chunk(3)), kTruth.Seconds(Chunk(3)), 1e-12);
  EXPECT_DOUBLE_EQ(model.LoadSeconds(kPool, 5e8), 0.5);
}

TEST(CostModel, AcceptsChannelsThatTheProfileLacks) {
  CostModel model(ProfileOf(kTruth));
  const ChannelId peer{3};
  EXPECT_DOUBLE_EQ(model.LoadSeconds(peer, CostModel::kUnknownRate), 1);
  model.SetRate(peer, 2e9);
  EXPECT_DOUBLE_EQ(model.LoadSeconds(peer, 2e9), 1);
  EXPECT_DOUBLE_EQ(model.LoadSeconds(kPool, 1e9), 1);
}

TEST(CostModel, LearntReturnsAProfileForTheNextStart) {
  CostModel model(ProfileOf(kTruth));
  for (int i = 0; i < 20; ++i) model.ObserveLoad(kPool, 1e9, 2);
  EXPECT_NEAR(model.Learnt().channels[0].bytes_per_s, 5e8, 1e7);
}

}  // namespace
}  // namespace larder
