#include "storage/look.h"

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

TEST(IdleLookTest, ItGoesOnUntilTheTimeIsOver) {
  IdleLook look(At(100));
  for (int us = 0; us < 100; us += 10) EXPECT_TRUE(look.On(At(us))) << us;
  EXPECT_FALSE(look.On(At(100)));
  EXPECT_FALSE(look.On(At(101)));
}

TEST(IdleLookTest, TheFirstLookIsNeverLate) {
  EXPECT_TRUE(IdleLook(At(100)).On(At(0)));
  EXPECT_TRUE(IdleLook(TimePoint::max()).On(At(99)));
}

TEST(IdleLookTest, WhereNobodyLooksItIsOverAtOnce) {
  EXPECT_FALSE(IdleLook(TimePoint()).On(At(0)));
  EXPECT_FALSE(IdleLook(At(100)).On(At(100)));
}

TEST(IdleLookTest, ALateLookEndsItForGood) {
  const int64_t late = IdleLook::kLate.count();
  IdleLook look(At(1000));
  EXPECT_TRUE(look.On(At(0)));
  EXPECT_TRUE(look.On(At(late))) << "that is not late yet";
  EXPECT_FALSE(look.On(At(2 * late + 1)));
  EXPECT_FALSE(look.On(At(2 * late + 2))) << "a quick one after it";
}

TEST(LookWhileIdleTest, ItEndsWithWhatItLooksFor) {
  int asked = 0;
  EXPECT_TRUE(LookWhileIdle(Now() + kLong, [&] { return ++asked > 0; }));
  EXPECT_EQ(asked, 1);
}

TEST(LookWhileIdleTest, WhenTheTimeIsOverItDoesNotAsk) {
  int asked = 0;
  EXPECT_FALSE(LookWhileIdle(Now(), [&] { return ++asked > 0; }));
  EXPECT_FALSE(LookWhileIdle(TimePoint(), [&] { return ++asked > 0; }));
  EXPECT_EQ(asked, 0);
}

// Being off the core is here a sleep.
TEST(LookWhileIdleTest, WhoWasOffTheCoreSleeps) {
  const TimePoint begin = Now();
  int asked = 0;
  EXPECT_FALSE(LookWhileIdle(begin + kLong, [&] {
    ++asked;
    std::this_thread::sleep_for(milliseconds(1));
    return false;
  }));
  EXPECT_EQ(asked, 1);
  EXPECT_LT(Now(), begin + kLong);
}

TEST(LookUntilTest, WhoWasOffTheCoreGoesOn) {
  int asked = 0;
  EXPECT_TRUE(LookUntil(Now() + kLong, [&] {
    std::this_thread::sleep_for(milliseconds(1));
    return ++asked == 3;
  }));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace larder
