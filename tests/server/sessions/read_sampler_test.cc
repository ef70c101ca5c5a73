// Each place of a window is checked equally often relative to its reads, whatever the sizes of the
// windows in which a client asks.
#include "server/sessions/read_sampler.h"

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/test_scale.h"

namespace larder {
namespace {

constexpr uint32_t kReads = 100'000, kOneIn = 64, kWindowMax = 256;

struct Places {
  std::vector<uint64_t> reads = std::vector<uint64_t>(kWindowMax);
  std::vector<uint64_t> checks = std::vector<uint64_t>(kWindowMax);
};

// Reads in sessions of several thousand reads each, because a session's first read is a special
// place.
Places ReadInWindows(uint32_t one_in, std::mt19937_64& random,
                     const std::function<uint32_t()>& window) {
  constexpr uint32_t kPerSession = 5'000;
  Places places;
  for (uint32_t done = 0; done < kReads;) {
    ReadSampler sampler(one_in, random());
    for (uint32_t here = 0; here < kPerSession;) {
      const uint32_t keys = window();
      for (uint32_t place = 0; place < keys; ++place, ++here, ++done) {
        ++places.reads[place];
        places.checks[place] += sampler.Next() ? 1 : 0;
      }
    }
  }
  return places;
}

// Pearson's chi-squared over groups of neighbouring places that together expect 20 checks,
// expressed as standard deviations of a normal variable (Wilson and Hilferty).
double Unevenness(const Places& places, uint32_t one_in) {
  double sum = 0, expected = 0, seen = 0;
  int groups = 0;
  for (uint32_t place = 0; place < kWindowMax; ++place) {
    expected += static_cast<double>(places.reads[place]) / one_in;
    seen += static_cast<double>(places.checks[place]);
    if (expected < 20) continue;
    sum += (seen - expected) * (seen - expected) / (expected * (1 - 1.0 / one_in));
    ++groups;
    expected = seen = 0;
  }
  const double k = groups;
  return (std::cbrt(sum / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
}

class ReadSamplerTest : public ::testing::Test {
 protected:
  std::mt19937_64 random_{testing::TestSeed()};
};

TEST_F(ReadSamplerTest, EveryPlaceOfAWindowIsCheckedEquallyOften) {
  for (const uint32_t keys : {1u, 2u, 16u, 32u, 64u, 128u, 256u}) {
    SCOPED_TRACE(keys);
    const Places places = ReadInWindows(kOneIn, random_, [keys] { return keys; });
    EXPECT_LT(Unevenness(places, kOneIn), 5);
  }
  const Places places = ReadInWindows(
      kOneIn, random_, [this] { return static_cast<uint32_t>(1 + random_() % kWindowMax); });
  uint64_t checks = 0;
  for (const uint64_t count : places.checks) checks += count;
  const double sigmas = Unevenness(places, kOneIn);
  std::printf("%u reads in windows of 1 to %u: %lu checks, chi-square %.1f sigma from even\n",
              kReads, kWindowMax, checks, sigmas);
  EXPECT_LT(sigmas, 5);
}

TEST_F(ReadSamplerTest, ChecksOneReadInN) {
  for (const uint32_t one_in : {2u, 9u, 64u, 1000u}) {
    SCOPED_TRACE(one_in);
    ReadSampler sampler(one_in, random_());
    const double rate = 1.0 / one_in;
    double checks = 0;
    for (uint32_t i = 0; i < kReads; ++i) checks += sampler.Next() ? 1 : 0;
    EXPECT_NEAR(checks, kReads * rate, 6 * std::sqrt(kReads * rate * (1 - rate)));
  }
}

TEST_F(ReadSamplerTest, OneChecksAllReadsAndZeroChecksNone) {
  ReadSampler all(1, random_()), none(0, random_());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(all.Next());
    ASSERT_FALSE(none.Next());
  }
}

// Proves that the test detects the fault which the sampler avoids: a plain count of reads always
// checks the same place of windows of 16.
TEST_F(ReadSamplerTest, TheTestDetectsAFixedStride) {
  Places places;
  for (uint32_t read = 0; read < kReads; ++read) {
    ++places.reads[read % 16];
    places.checks[read % 16] += read % kOneIn == 0 ? 1 : 0;
  }
  EXPECT_GT(Unevenness(places, kOneIn), 50);
}

}  // namespace
}  // namespace larder
