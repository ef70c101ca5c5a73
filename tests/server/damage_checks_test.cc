// Damage checks: a block reported often is read once, one process's reports do not keep another's
// waiting, what is too much is dropped, and the rate holds.
#include "server/damage_checks.h"

#include <gtest/gtest.h>

#include "tests/storage/store_fixture.h"

namespace larder {
namespace {

using testing::StoreFixture;

Digest Name(uint32_t number) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &number, sizeof number);
  return digest;
}

class DamageChecksTest : public ::testing::Test {
 protected:
  StoreFixture store_{MiB(8), MiB(2)};
  Counters counters_;
};

TEST_F(DamageChecksTest, ABlockWaitsOnceForAProcess) {
  DamageChecks checks(store_.store(), counters_, {.bytes_per_s = ByteCount(1)});
  const std::vector<Digest> same(4096, Name(1));
  for (int i = 0; i < 64; ++i) checks.Report(ProcessId{1}, VariantIndex{0}, same);
  EXPECT_LE(checks.waiting(), 1u) << "the first may be under way";
  EXPECT_EQ(counters_.damage_reports_dropped.value(), 0u);
}

TEST_F(DamageChecksTest, WhatIsTooMuchIsDropped) {
  DamageChecks checks(store_.store(), counters_,
                      {.process_max = 8, .processes_max = 2, .bytes_per_s = ByteCount(1)});
  std::vector<Digest> many;
  for (uint32_t i = 0; i < 100; ++i) many.push_back(Name(i));
  for (uint64_t process = 1; process <= 3; ++process)
    checks.Report(ProcessId{process}, VariantIndex{0}, many);
  EXPECT_LE(checks.waiting(), 16u);
  EXPECT_GE(counters_.damage_reports_dropped.value(), 3 * 100u - 2 * 8 - 1);
}

}  // namespace
}  // namespace larder
