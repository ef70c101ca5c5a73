// Damage checks: a block that is reported often is read once, one process's reports do not displace
// another's, reports beyond the limits are dropped, and the rate of checks is limited.
#include "server/sessions/damage_checks.h"

#include <gtest/gtest.h>

#include "tests/storage/store/store_fixture.h"

namespace larder {
namespace {

using testing::StoreFixture;

Digest Name(uint32_t number) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &number, sizeof number);
  return digest;
}

ShareHolder Process(uint64_t number, uid_t uid) {
  return {.uid = uid, .process = ProcessId{number}, .pid = static_cast<pid_t>(number)};
}

class DamageChecksTest : public ::testing::Test {
 protected:
  StoreFixture store_{MiB(8), MiB(2)};
  Counters counters_;
};

TEST_F(DamageChecksTest, ABlockIsQueuedOncePerProcess) {
  DamageChecks checks(store_.store(), counters_, {.bytes_per_s = ByteCount(1)});
  const std::vector<Digest> same(4096, Name(1));
  for (int i = 0; i < 64; ++i) checks.Report(Process(1, 1000), VariantIndex{0}, same);
  EXPECT_LE(checks.waiting(), 1u) << "zero if the check of the block has begun";
  EXPECT_EQ(counters_.damage_reports_dropped.value(), 0u);
}

TEST_F(DamageChecksTest, DropsReportsBeyondTheLimits) {
  DamageChecks checks(store_.store(), counters_,
                      {.process_max = 8, .processes_max = 2, .bytes_per_s = ByteCount(1)});
  std::vector<Digest> many;
  for (uint32_t i = 0; i < 100; ++i) many.push_back(Name(i));
  for (uint64_t process = 1; process <= 3; ++process)
    checks.Report(Process(process, static_cast<uid_t>(process)), VariantIndex{0}, many);
  EXPECT_LE(checks.waiting(), 16u);
  EXPECT_GE(counters_.damage_reports_dropped.value(), 3 * 100u - 2 * 8 - 1);
}

// Reports of processes that have ended stay queued, so the number of processes that a user starts
// makes no difference.
TEST_F(DamageChecksTest, AUserLeavesSlotsToOthers) {
  DamageChecks checks(store_.store(), counters_,
                      {.process_max = 8, .processes_max = 10, .bytes_per_s = ByteCount(1)});
  const std::vector<Digest> block = {Name(1), Name(2)};
  for (uint64_t process = 1; process <= 100; ++process)
    checks.Report(Process(process, 1000), VariantIndex{0}, block);
  const uint64_t dropped = counters_.damage_reports_dropped.value();
  EXPECT_GE(dropped, 2 * (100u - 5) - 2);
  checks.Report(Process(101, 2000), VariantIndex{0}, block);
  EXPECT_EQ(counters_.damage_reports_dropped.value(), dropped)
      << "the other user's reports must not be dropped";
}

}  // namespace
}  // namespace larder
