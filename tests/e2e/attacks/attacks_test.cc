// A process of another user runs one attack at a time, beside two engines and a router.  None of
// their calls may fail, they must read their own bytes, they must be served quickly again as soon
// as the attacker has gone, the daemon's memory must stay bounded, and the daemon must report the
// attack.
//
// LARDER_TEST_SCALE (default 0.1) scales the 60 s of each attack.  The slowdown of calls is printed
// and does not decide the test, except for a call that hangs: it depends on the machine as much as
// on the daemon, since an attacker that takes a core slows calls no less than "spin" or any other
// program.  The attacks "nothing" and "spin" are controls: they send nothing, so their figures show
// the machine alone.
#include <algorithm>

#include "gmock/gmock.h"
#include "tests/e2e/attacks/attack_run.h"
#include "tests/e2e/attacks/daemon_words.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kRatioMax = 3;
constexpr double kAboveMibMax = 64;
// For the whole run.  On a machine with other work, a call may wait for a core for longer, so the
// short run multiplies the limit by kSharedMachineFactor.
constexpr double kAfterMsMax = 1'000;
constexpr double kSharedMachineFactor = 3;
// A call that takes longer did not merely wait for a core: something hung.
constexpr double kStallMs = 1'500;

// Where the daemon must report the attack: in a counter of refusals, or by the attackers' names in
// the log or in `larderctl status`.
enum Said : uint8_t { kNowhere = 0, kMetric = 1, kLog = 2, kStatus = 4 };

struct Case {
  const char* attack;
  int said = kMetric;
  bool unnamed = false;      // the attacker also calls without a sideband
  uint64_t descriptors = 0;  // the daemon's limit of open files
  // For attacks that do only what is allowed, so that nothing is refused: a kind of share of which
  // at least `held_min` must be held during the attack, far more than bystanders hold.
  const char* held = nullptr;
  double held_min = 0;
  bool kernel_refuses = false;    // a kernel that can (Linux 6.16) keeps the attack from the daemon
  int processes = 1;              // the number of attackers
  const char* counted = nullptr;  // a cause or kind in the name of a counter that must grow
};

constexpr Case kCases[] = {
    {"nothing", kNowhere},
    {"spin", kNowhere},
    {.attack = "descriptor_sideband", .kernel_refuses = true},
    {.attack = "descriptor_session", .kernel_refuses = true},
    {.attack = "descriptor_grpc", .kernel_refuses = true},
    {.attack = "connections_held", .said = kMetric | kLog, .descriptors = 1'024},
    {.attack = "connections_churned", .said = kNowhere, .descriptors = 1'024},
    {.attack = "connections_half_open", .said = kMetric | kLog, .descriptors = 1'024},
    {"idle", kMetric | kStatus},
    // The messages wait at the limit of messages under way, and are not refused.
    {.attack = "damage_reports", .said = kStatus, .held = "message_bytes", .held_min = 1 << 20},
    {.attack = "holds", .said = kStatus, .held = "sessions", .held_min = 32},
    {"revoked_leases", kMetric | kLog | kStatus, true},
    {"promises", kMetric | kLog | kStatus},
    {"sessions", kMetric | kLog | kStatus, true},
    {"device_reports"},
    {"staging", kNowhere},
    {"deadlines", kMetric | kLog | kStatus},
    {"idle_byte_streams", kMetric | kLog, true},
    {.attack = "store_heads",
     .said = kStatus,
     .unnamed = true,
     .held = "byte_streams",
     .held_min = 12},
    {"overwrite", kNowhere, true},
    {"metadata", kMetric, true},
    {"watchers", kMetric, true},
    {"pins", kMetric, true},
    {"registrations", kMetric, true},
    {"variants", kMetric, true},
    {"contents", kMetric | kLog, true},
    {"engine_ids", kMetric, true},
    {"empty_registers", kNowhere},
    {"cancels", kNowhere},
    {.attack = "named_engines",
     .said = kStatus,
     .unnamed = true,
     .held = "engines",
     .held_min = 100},
    {"same_keys", kNowhere},
    {"unread_answers", kMetric},
    {"empty_parts", kMetric, true},
    {"heavy_requests", kMetric, true},
    // Two processes, because gRPC's memory quota can free enough memory for one.
    {.attack = "partial_requests",
     .said = kMetric | kLog,
     .unnamed = true,
     .processes = 2,
     .counted = "data_incoming"},
    {.attack = "odd_frames", .said = kMetric | kLog, .counted = "data_incoming"},
};

// Controls show the figures of the machine alone, and nothing may count as a report of an attack.
bool IsControl(const std::string& attack) { return attack == "nothing" || attack == "spin"; }

// ---- what counts as a report of an attack

TEST(DaemonWords, OnlyLinesThatNameAttackersAreFound) {
  const std::string before = "uid 64901 was here\n";
  const std::string held = "callers without a sideband holds 6, 1 more wanted";
  const std::string many = "byte_streams 17 of 64; callers without a sideband 16, uid 0 1";
  const std::string text = before +
                           "uid 64901 pid 77 holds 3\n"
                           "pid 77: refused\n"
                           "77 of 128, uid 649010 77, pid 770 77\n"
                           "a connection of uid 64901 was refused\n"
                           "byte_streams 1 of 64; callers without a sideband 1\n" +
                           "message_bytes 16 KiB; callers without a sideband 16 KiB\n" + held +
                           "\n" + many + "\n";
  const std::vector<std::string> named = {"uid 64901 pid 77 holds 3", "pid 77: refused",
                                          "a connection of uid 64901 was refused"};
  std::vector<std::string> with_unnamed = named;
  with_unnamed.insert(with_unnamed.end(), {held, many});
  EXPECT_EQ(LinesThatName(text, before, {.uid = 64'901, .pids = {77}}), named);
  EXPECT_EQ(LinesThatName(text, before, {.uid = 64'901, .pids = {77}, .unnamed = true}),
            with_unnamed);
}

TEST(DaemonWords, OnlyCountersOfRefusalsAreFound) {
  const std::string before =
      "# HELP larder_shares_refused_total\n"
      "larder_share_held{kind=\"calls\"} 1\n"
      "larder_shares_refused_total{kind=\"calls\"} 1\n"
      "larder_shares_refused_total{kind=\"leases\"} 4\n"
      "larder_sessions_total{result=\"refused\"} 0\n"
      "larder_sessions_total{result=\"attached\"} 5\n"
      "larder_disk_promote_total{result=\"refused\"} 2\n";
  const std::string now =
      "larder_share_held{kind=\"calls\"} 9\n"
      "larder_shares_refused_total{kind=\"calls\"} 3\n"
      "larder_shares_refused_total{kind=\"leases\"} 4\n"
      "larder_sessions_total{result=\"refused\"} 1\n"
      "larder_sessions_total{result=\"attached\"} 9\n"
      "larder_disk_promote_total{result=\"refused\"} 7\n"
      "larder_invalid_messages_total 2\n";
  EXPECT_THAT(MetricsThatGrew(before, now),
              ElementsAre(HasSubstr("invalid_messages"), HasSubstr("result=\"refused\""),
                          HasSubstr("kind=\"calls\"")));
}

// ---- attacks

void PrintTo(const Case& one, std::ostream* out) { *out << one.attack; }

class Attacks : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, Attacks, ::testing::ValuesIn(kCases),
                         [](const auto& one) { return std::string(one.param.attack); });

void ExpectSaid(const Case& one, const AttackFigures& figures, bool whole) {
  const bool nothing_came = figures.attackers.find(": 0 done") != std::string::npos;
  if (one.kernel_refuses && nothing_came) return;
  if ((one.said & kMetric) != 0) {
    EXPECT_THAT(figures.metrics, Not(IsEmpty())) << "no metric reports the attack";
  }
  if (one.counted != nullptr) {
    EXPECT_THAT(figures.metrics, Contains(HasSubstr(one.counted)))
        << "the attack was refused in another way";
  }
  if (one.held != nullptr) {
    const auto held = figures.held.find(one.held);
    ASSERT_NE(held, figures.held.end()) << one.held;
    EXPECT_GE(held->second, one.held_min) << "the metric does not show what the attacker holds";
  }
  // In a short run some attackers do not reach their limits, so nothing is refused.
  if (!whole) return;
  if ((one.said & kLog) != 0) {
    EXPECT_THAT(figures.log, Not(IsEmpty())) << "no line of the log names the attacker";
  }
  if ((one.said & kStatus) != 0) {
    EXPECT_THAT(figures.status, Not(IsEmpty())) << "larderctl status does not name the attacker";
  }
}

TEST_P(Attacks, HurtNoOtherClient) {
  if (const std::string why = AttackRun::WhyNot(); !why.empty()) GTEST_SKIP() << why;
  const double scale = testing::TestScale();
  const bool whole = scale >= 1;
  // All attacks together must fit into the three minutes of the short run.
  const milliseconds before(static_cast<int64_t>(std::max(800.0, 15'000 * scale)));
  const milliseconds during(static_cast<int64_t>(whole ? 60'000 * scale : 2'500));
  AttackRun run({.descriptors = GetParam().descriptors, .unnamed = GetParam().unnamed});
  ASSERT_EQ(run.Start(), "");
  run.Before(before);
  run.During(during, [&] {
    for (int i = 0; i < GetParam().processes; ++i) run.Attack(GetParam().attack, during);
  });
  run.After(std::chrono::seconds(whole ? 20 : 5));
  const AttackFigures figures = run.End();
  figures.Print(GetParam().attack);

  ExpectAllServed(figures);
  if (kSanitized) {
    std::printf("%s", kNotJudged);
    return;
  }
  EXPECT_EQ(figures.computed, 0u);
  EXPECT_LE(figures.after_ms, kAfterMsMax * (whole ? 1 : kSharedMachineFactor));
  EXPECT_LE(figures.above_mib, kAboveMibMax);
  EXPECT_LE(figures.longest_ms, kStallMs) << figures.longest_call << " hung";
  if (IsControl(GetParam().attack)) {
    EXPECT_THAT(figures.metrics, IsEmpty());
    EXPECT_THAT(figures.log, IsEmpty());
    EXPECT_THAT(figures.status, IsEmpty());
  }
  ExpectSaid(GetParam(), figures, whole);
  std::printf("    p99 of the most slowed kind of call x %.1f, goal %.0f\n", figures.worst.ratio(),
              kRatioMax);
}

}  // namespace
}  // namespace larder::e2e
