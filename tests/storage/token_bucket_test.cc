// An emulated link, on a clock that moves only when the test advances it.
#include "storage/token_bucket.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

using std::chrono::milliseconds;

constexpr double kRate = 1e6;  // 1 KB takes a millisecond
constexpr ByteCount kKilobyte(1'000);

class TokenBucketTest : public testing::Test {
 protected:
  // Returns the milliseconds from now until `kilobytes` that are handed over now have passed.
  double Pass(uint64_t kilobytes) {
    const TimePoint now = clock_.Now();
    const Duration takes = link_.Pass(ByteCount(kilobytes * kKilobyte.value()), now) - now;
    return std::chrono::duration<double, std::milli>(takes).count();
  }

  ManualClock clock_;
  TokenBucket link_{kRate, milliseconds(10)};
};

TEST_F(TokenBucketTest, BytesTakeTheirTime) { EXPECT_DOUBLE_EQ(Pass(100), 100); }

TEST_F(TokenBucketTest, BytesQueueBehindEarlierOnes) {
  EXPECT_DOUBLE_EQ(Pass(100), 100);
  EXPECT_DOUBLE_EQ(Pass(50), 150);
  clock_.Advance(milliseconds(120));
  EXPECT_DOUBLE_EQ(Pass(20), 50);
}

TEST_F(TokenBucketTest, AShortPauseIsCompensated) {
  EXPECT_DOUBLE_EQ(Pass(100), 100);
  clock_.Advance(milliseconds(107));
  EXPECT_DOUBLE_EQ(Pass(100), 93);
}

TEST_F(TokenBucketTest, ALongPauseIsNotCompensated) {
  EXPECT_DOUBLE_EQ(Pass(100), 100);
  clock_.Advance(milliseconds(111));
  EXPECT_DOUBLE_EQ(Pass(100), 100);
}

// The rate does not depend on how many bytes are asked for at once or on how late a thread wakes
// up.
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
