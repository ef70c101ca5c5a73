#include "storage/spin_wait.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace larder {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kLong{60};

TimePoint Now() { return std::chrono::steady_clock::now(); }
TimePoint At(int64_t us) { return TimePoint(std::chrono::hours(1) + microseconds(us)); }

TEST(IdleSpinTest, SpinsUntilItsTimeIsOver) {
  IdleSpin look(At(100));
  for (int us = 0; us < 100; us += 10) EXPECT_TRUE(look.On(At(us))) << us;
  EXPECT_FALSE(look.On(At(100)));
  EXPECT_FALSE(look.On(At(101)));
}

TEST(IdleSpinTest, TheFirstLookIsNeverLate) {
  EXPECT_TRUE(IdleSpin(At(100)).On(At(0)));
  EXPECT_TRUE(IdleSpin(TimePoint::max()).On(At(99)));
}

TEST(IdleSpinTest, ASpinOfNoTimeEndsAtOnce) {
  EXPECT_FALSE(IdleSpin(TimePoint()).On(At(0)));
  EXPECT_FALSE(IdleSpin(At(100)).On(At(100)));
}

TEST(IdleSpinTest, ALateLookEndsTheSpin) {
  const int64_t late = IdleSpin::kLate.count();
  IdleSpin look(At(1000));
  EXPECT_TRUE(look.On(At(0)));
  EXPECT_TRUE(look.On(At(late))) << "a look after exactly kLate is not late";
  EXPECT_FALSE(look.On(At(2 * late + 1)));
  EXPECT_FALSE(look.On(At(2 * late + 2)))
      << "an early look after a late one must not resume the spin";
}

TEST(SpinWhileIdleTest, EndsWhenTheConditionHolds) {
  int asked = 0;
  EXPECT_TRUE(SpinWhileIdle(Now() + kLong, [&] { return ++asked > 0; }));
  EXPECT_EQ(asked, 1);
}

TEST(SpinWhileIdleTest, DoesNotTestTheConditionAfterItsTime) {
  int asked = 0;
  EXPECT_FALSE(SpinWhileIdle(Now(), [&] { return ++asked > 0; }));
  EXPECT_FALSE(SpinWhileIdle(TimePoint(), [&] { return ++asked > 0; }));
  EXPECT_EQ(asked, 0);
}

// The sleep stands for a thread that was off its core.
TEST(SpinWhileIdleTest, StopsSpinningAfterItWasOffTheCore) {
  const TimePoint begin = Now();
  int asked = 0;
  EXPECT_FALSE(SpinWhileIdle(begin + kLong, [&] {
    ++asked;
    std::this_thread::sleep_for(milliseconds(1));
    return false;
  }));
  EXPECT_EQ(asked, 1);
  EXPECT_LT(Now(), begin + kLong);
}

TEST(SpinUntilTest, ContinuesAfterItWasOffTheCore) {
  int asked = 0;
  EXPECT_TRUE(SpinUntil(Now() + kLong, [&] {
    std::this_thread::sleep_for(milliseconds(1));
    return ++asked == 3;
  }));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace larder
