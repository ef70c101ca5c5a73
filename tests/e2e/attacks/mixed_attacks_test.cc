// Eight processes run the attacks of attacks_test.cc at once, in turns drawn at random, while the
// daemon is killed several times.
//
// LARDER_TEST_SCALE (default 0.1) scales the 10 minutes; below 1 the test runs only 0.4 of that.
// As attacks_test.cc does, the test prints the slowdown of calls, and for comparison the slowdown
// beside eight processes that only take the cores.
#include <algorithm>
#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "tests/e2e/attacks/attack_run.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;

constexpr size_t kAttackers = 8;
constexpr double kRatioMax = 5;
constexpr double kAboveMibMax = 64;
constexpr double kAfterMsMax = 1'000;
constexpr double kSharedMachineFactor = 3;
constexpr double kStallMs = 3'000;  // eight attackers share the cores with the rest

constexpr const char* kAttacks[] = {"descriptor_sideband",
                                    "descriptor_session",
                                    "descriptor_grpc",
                                    "connections_held",
                                    "connections_churned",
                                    "connections_half_open",
                                    "idle",
                                    "damage_reports",
                                    "holds",
                                    "revoked_leases",
                                    "promises",
                                    "sessions",
                                    "device_reports",
                                    "staging",
                                    "deadlines",
                                    "idle_byte_streams",
                                    "store_heads",
                                    "overwrite",
                                    "metadata",
                                    "watchers",
                                    "pins",
                                    "registrations",
                                    "variants",
                                    "contents",
                                    "engine_ids",
                                    "empty_registers",
                                    "cancels",
                                    "named_engines",
                                    "same_keys",
                                    "unread_answers",
                                    "empty_parts",
                                    "heavy_requests",
                                    "partial_requests",
                                    "odd_frames"};

TEST(MixedAttacks, HurtNoOtherClient) {
  if (const std::string why = AttackRun::WhyNot(); !why.empty()) GTEST_SKIP() << why;
  const double scale = testing::TestScale();
  const bool whole = scale >= 1;
  const milliseconds during(static_cast<int64_t>(600'000 * scale * (whole ? 1 : 0.4)));
  const milliseconds turn_max = during / 6;
  std::mt19937 random(testing::TestSeed());
  AttackRun run({.unnamed = true, .pinned = true});
  ASSERT_EQ(run.Start(), "");
  run.Before(milliseconds(static_cast<int64_t>(std::max(2'000.0, 15'000 * scale))));

  const auto begun = std::chrono::steady_clock::now();
  const auto past = [&] {
    return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begun);
  };
  const auto send = [&] {
    run.Reap();
    while (run.attackers() < kAttackers) {
      const milliseconds turn(500 + random() % static_cast<uint32_t>(turn_max.count()));
      run.Attack(kAttacks[random() % std::size(kAttacks)], std::min(turn, during - past()));
    }
  };
  // There is no restart in the last two fifths, so that what the attacks accumulate shows.
  int restarts = 0;
  const auto each = [&] {
    if (past() > during / 5 * (restarts + 1) && restarts < 3) {
      ++restarts;
      ASSERT_TRUE(run.RestartDaemon());
    }
    if (past() < during - milliseconds(500)) send();
  };
  run.During(during, send, each);
  run.After(std::chrono::seconds(20));
  const AttackFigures figures = run.End();
  figures.Print("mixed");

  ExpectAllServed(figures);
  if (kSanitized) {
    std::printf("%s", kNotJudged);
    return;
  }
  // A restore computes the whole prefix if that takes less time than the daemon's answer, which is
  // right, but slow.  One in 1,000 calls may do so.  A short run has so few calls that their number
  // says this only within what chance adds (three standard deviations of a Poisson distribution).
  const double computed_max = static_cast<double>(figures.calls) / 1'000;
  EXPECT_LE(static_cast<double>(figures.computed),
            whole ? computed_max : computed_max + 3 * std::sqrt(computed_max));
  EXPECT_LE(figures.after_ms, kAfterMsMax * (whole ? 1 : kSharedMachineFactor));
  EXPECT_LE(figures.above_mib, kAboveMibMax);
  EXPECT_LE(figures.longest_ms, kStallMs) << figures.longest_call << " hung";
  EXPECT_FALSE(figures.metrics.empty()) << "no metric reports the attacks";
  EXPECT_FALSE(figures.log.empty()) << "no line of the log names the attacker";
  EXPECT_FALSE(figures.status.empty()) << "larderctl status does not name the attacker";
  std::printf("    p99 of the most slowed kind of call x %.1f, goal %.0f\n", figures.worst.ratio(),
              kRatioMax);
}

// A control, whose figures show the machine alone.
TEST(MixedAttacks, EightSpinningProcessesHurtNoOtherClient) {
  if (const std::string why = AttackRun::WhyNot(); !why.empty()) GTEST_SKIP() << why;
  const double scale = testing::TestScale();
  const milliseconds during(static_cast<int64_t>(std::max(2'500.0, 60'000 * scale)));
  AttackRun run({});
  ASSERT_EQ(run.Start(), "");
  run.Before(milliseconds(static_cast<int64_t>(std::max(2'000.0, 15'000 * scale))));
  run.During(during, [&] {
    for (size_t i = 0; i < kAttackers; ++i) run.Attack("spin", during);
  });
  run.After(std::chrono::seconds(20));
  const AttackFigures figures = run.End();
  figures.Print("eight that spin");

  ExpectAllServed(figures);
  std::printf("    p99 of the most slowed kind of call x %.1f\n", figures.worst.ratio());
}

}  // namespace
}  // namespace larder::e2e
