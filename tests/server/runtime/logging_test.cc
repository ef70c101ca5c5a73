// Each event is one line, whatever bytes its values contain.  Floods of lines are thinned, and the
// suppressed lines are counted.
#include "server/runtime/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

namespace larder {
namespace {

using ::testing::MatchesRegex;

TEST(LogTest, TextLines) {
  std::ostringstream out;
  const Log log(LogLevel::kInfo, LogFormat::kText, out);
  log.Debug("not_shown");
  log.Info("session_attached", {{"session", 7},
                                {"engine", "llama 0"},
                                {"role", "both"},
                                {"share", 0.25},
                                {"empty", ""},
                                {"trusted", true}});
  EXPECT_THAT(out.str(),
              MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z info session_attached "
                           "session=7 engine=\"llama 0\" role=both share=0.25 empty=\"\" "
                           "trusted=true\n"));
}

TEST(LogTest, JsonLinesParse) {
  std::ostringstream out;
  const Log log(LogLevel::kDebug, LogFormat::kJson, out);
  log.Warning("frame_refused", {{"why", "quote \" back \\ slash"},
                                {"max", std::numeric_limits<uint64_t>::max()},
                                {"min", std::numeric_limits<int64_t>::min()},
                                {"rate", std::numeric_limits<double>::infinity()},
                                {"trusted", false}});
  const auto line = nlohmann::json::parse(out.str());
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["event"], "frame_refused");
  EXPECT_EQ(line["why"], "quote \" back \\ slash");
  EXPECT_EQ(line["max"], std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(line["min"], std::numeric_limits<int64_t>::min());
  EXPECT_TRUE(line["rate"].is_null());
  EXPECT_EQ(line["trusted"], false);
}

TEST(LogTest, HostileValuesCannotAddALine) {
  std::string hostile;
  for (int c = 0; c < 256; ++c) hostile.push_back(static_cast<char>(c));
  hostile += "\n2026-01-01T00:00:00.000Z info forged %s {} {0}";
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    std::ostringstream out;
    const Log log(LogLevel::kInfo, format, out);
    log.Info("event", {{"value", hostile}, {"long", std::string(100'000, 'x')}});
    const std::string line = out.str();
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
    EXPECT_LT(line.size(), 8 * kLogValueBytesMax);
    for (const char c : line.substr(0, line.size() - 1)) {
      EXPECT_TRUE(c >= 0x20 && c < 0x7f);
    }
    if (format == LogFormat::kJson) {
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    }
  }
}

TEST(LogLimiterTest, LimitsLinesPerSecondAndCountsTheSuppressedOnes) {
  ManualClock clock;
  LogLimiter limiter(clock, 2);
  EXPECT_TRUE(limiter.Pass());
  EXPECT_TRUE(limiter.Pass());
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(limiter.Pass());
  clock.Advance(std::chrono::milliseconds(999));
  EXPECT_FALSE(limiter.Pass());
  clock.Advance(std::chrono::milliseconds(1));
  const auto line = limiter.Pass();
  ASSERT_TRUE(line);
  EXPECT_EQ(line->suppressed, 6u);
  EXPECT_EQ(limiter.Pass()->suppressed, 0u);
  EXPECT_FALSE(limiter.Pass());
}

TEST(LogRepeatsTest, PassesEachTextOncePerPeriod) {
  ManualClock clock;
  LogRepeats repeats(clock, std::chrono::hours(1));
  EXPECT_EQ(repeats.Pass("shard 1")->suppressed, 0u);
  clock.Advance(std::chrono::minutes(59));
  EXPECT_TRUE(repeats.Pass("shard 2")) << "a different text is limited separately";
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(repeats.Pass("shard 1"));
  clock.Advance(std::chrono::minutes(1));
  EXPECT_EQ(repeats.Pass("shard 1")->suppressed, 5u);
  EXPECT_FALSE(repeats.Pass("shard 1"));
  EXPECT_FALSE(repeats.Pass("shard 2"));
}

TEST(LogRepeatsTest, ForgetsTheOldestTextBeyondTheMaximum) {
  ManualClock clock;
  LogRepeats repeats(clock, std::chrono::hours(1));
  for (size_t i = 0; i <= LogRepeats::kTextsMax; ++i) {
    EXPECT_TRUE(repeats.Pass(std::to_string(i)));
    clock.Advance(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(repeats.Pass("1"));
  EXPECT_TRUE(repeats.Pass("0")) << "the limiter has forgotten this text";
}

}  // namespace
}  // namespace larder
