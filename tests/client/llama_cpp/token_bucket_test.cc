// An emulated link, on a clock that only moves when told.
#include "client/llama_cpp/token_bucket.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

using std::chrono::milliseconds;

constexpr double kRate = 1e6;  // 1 KB takes a millisecond
constexpr ByteCount kKilobyte(1'000);

class TokenBucketTest : public testing::Test {
 protected:
  // Milliseconds from now until so many kilobytes, handed over now, are through.
  double Pass(uint64_t kilobytes) {
    const TimePoint now = clock_.Now();
    const Duration takes = link_.Pass(ByteCount(kilobytes * kKilobyte.value()), now) - now;
    return std::chrono::duration<double, std::milli>(takes).count();
  }

  ManualClock clock_;
  TokenBucket link_{kRate, milliseconds(10)};
};

TEST_F(TokenBucketTest, BytesTakeTheirTime) { EXPECT_DOUBLE_EQ(Pass(100), 100); }

TEST_F(TokenBucketTest, TheyQueueBehindThoseBeforeThem) {
  EXPECT_DOUBLE_EQ(Pass(100), 100);
  EXPECT_DOUBLE_EQ(Pass(50), 150);
  clock_.Advance(milliseconds(120));
  EXPECT_DOUBLE_EQ(Pass(20), 50);
}

TEST_F(TokenBucketTest, AShortPauseIsMadeUpFor) {
  EXPECT_DOUBLE_EQ(Pass(100), 100);
  clock_.Advance(milliseconds(107));
  EXPECT_DOUBLE_EQ(Pass(100), 93);
}

TEST_F(TokenBucketTest, ALongOneIsNot) {
  EXPECT_DOUBLE_EQ(Pass(100), 100);
  clock_.Advance(milliseconds(111));
  EXPECT_DOUBLE_EQ(Pass(100), 100);
}

// However many bytes are asked for at once, and whoever is woken late: the rate is what it is.
TEST_F(TokenBucketTest, TheRateHoldsOverManySmallLoads) {
  const TimePoint begin = clock_.Now();
  for (int i = 0; i < 1000; ++i) {
    const TimePoint through = link_.Pass(kKilobyte, clock_.Now());
    clock_.Advance(through - clock_.Now() + milliseconds(i % 3));
  }
  const double took_ms = std::chrono::duration<double, std::milli>(clock_.Now() - begin).count();
  EXPECT_GE(took_ms, 1000);
  EXPECT_LE(took_ms, 1010);
}

}  // namespace
}  // namespace larder
