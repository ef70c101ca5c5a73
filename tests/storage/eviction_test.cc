#include "storage/eviction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace larder {
namespace {

constexpr EvictionCandidate kUsual = {
    .bytes = MiB(1), .tokens = 64, .idle_s = 100, .frequency = 2, .children = 0};

double Worth(const EvictionCandidate& candidate) { return EvictionPolicy().Worth(candidate); }

TEST(EvictionFrequency, HalvesWithIdleTime) {
  EXPECT_EQ(AgedFrequency(200, 0), 200);
  EXPECT_EQ(AgedFrequency(200, kFrequencyHalfLife_s - 1), 200);
  EXPECT_EQ(AgedFrequency(200, kFrequencyHalfLife_s), 100);
  EXPECT_EQ(AgedFrequency(200, 3 * kFrequencyHalfLife_s), 25);
  EXPECT_EQ(AgedFrequency(255, 8 * kFrequencyHalfLife_s), 0);
  EXPECT_EQ(AgedFrequency(255, UINT32_MAX), 0);
}

TEST(EvictionFrequency, CountsUsesAndSaturates) {
  EXPECT_EQ(UsedAgain(0, 0), 1);
  EXPECT_EQ(UsedAgain(254, 0), 255);
  EXPECT_EQ(UsedAgain(255, 0), 255);
  EXPECT_EQ(UsedAgain(100, kFrequencyHalfLife_s), 51);
}

TEST(EvictionPolicy, IsTheDocumentedFormula) {
  const EvictionPolicy policy({.recency_s = 30, .child_weight = 0.5});
  EXPECT_DOUBLE_EQ(policy.Worth({.bytes = ByteCount(4096),
                                 .tokens = 64,
                                 .idle_s = 2 * kFrequencyHalfLife_s,
                                 .frequency = 12,
                                 .children = 2}),
                   (1.0 + 3) / (2 * kFrequencyHalfLife_s + 30) * 64 * 2 / 4096);
}

TEST(EvictionPolicy, RecentFrequentAndSmallStay) {
  EvictionCandidate other = kUsual;
  other.idle_s = 50;
  EXPECT_GT(Worth(other), Worth(kUsual));
  other = kUsual;
  other.frequency = 3;
  EXPECT_GT(Worth(other), Worth(kUsual));
  other = kUsual;
  other.tokens = 128;
  EXPECT_GT(Worth(other), Worth(kUsual));
  other = kUsual;
  other.children = 1;
  EXPECT_GT(Worth(other), Worth(kUsual));
  other = kUsual;
  other.bytes = MiB(2);
  EXPECT_LT(Worth(other), Worth(kUsual));
}

TEST(EvictionPolicy, OldFameDoesNotBeatPresentUse) {
  EvictionCandidate famous = kUsual;
  famous.frequency = 255;
  famous.idle_s = 8 * kFrequencyHalfLife_s;
  EvictionCandidate fresh = kUsual;
  fresh.frequency = 0;
  fresh.idle_s = 60;
  EXPECT_GT(Worth(fresh), Worth(famous));
}

TEST(EvictionPolicy, IsFiniteAtTheEdges) {
  for (const uint32_t idle_s : {0u, UINT32_MAX}) {
    for (const uint32_t tokens : {0u, UINT32_MAX}) {
      const double worth = Worth({.bytes = ByteCount(0),
                                  .tokens = tokens,
                                  .idle_s = idle_s,
                                  .frequency = 255,
                                  .children = UINT16_MAX});
      EXPECT_TRUE(std::isfinite(worth) && worth > 0);
    }
  }
}

TEST(EvictionOptions, RefusesNonsense) {
  EXPECT_TRUE(EvictionOptions{}.Validate().ok());
  EXPECT_TRUE((EvictionOptions{.recency_s = 1, .child_weight = 0}.Validate().ok()));
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const EvictionOptions& bad :
       {EvictionOptions{.recency_s = 0}, EvictionOptions{.recency_s = kNan},
        EvictionOptions{.child_weight = -0.1}, EvictionOptions{.child_weight = kNan}}) {
    EXPECT_EQ(bad.Validate().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace larder
