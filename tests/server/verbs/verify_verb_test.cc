// Verify: damaged blocks are removed and counted, the others stay, and a caller can stop the call.
#include "server/verbs/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

#include "tests/server/verbs/scope_fixture.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kBoth;
using testing::kDiskBit;
using testing::kHostBit;

class VerifyVerbTest : public testing::ScopeTest {
 protected:
  absl::Status TryVerify(
      const wire::VerifyQuery& query, wire::VerifyProgress* last,
      const VerifyVerb::Report& report = [](const auto&) { return true; }) {
    VerifyVerb verifier(store(), {&process_->tier, &*process_->work}, process_->counters);
    return verifier.Verify(query, [&](const wire::VerifyProgress& progress) {
      EXPECT_GE(progress.blocks_done, last->blocks_done);
      EXPECT_LE(progress.blocks_done, progress.blocks);
      *last = progress;
      return report(progress);
    });
  }
  wire::VerifyProgress Verify(Tier tier) {
    wire::VerifyProgress last;
    const absl::Status status = TryVerify({.tier = tier}, &last);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(last.blocks_done, last.blocks);
    EXPECT_EQ(last.bytes_done, last.bytes);
    EXPECT_EQ(last.whole + last.damaged + last.missing + last.unread, last.blocks);
    return last;
  }
  void DamageInHost(const Digest& digest) {
    const BlockIndex::Held held = store().HoldUntouched(process_->f.variant(), digest);
    ASSERT_NE(held.ref.value, 0u);
    store().Bytes(held.extent)[5] ^= std::byte{1};
    store().Unhold({&held.ref, 1});
  }
  template <class Change>
  void OnDisk(const Digest& digest, Change change) {
    MutexLock lock(medium_.mu);
    for (auto& [location, record] : medium_.records) {
      if (record.key.digest == digest) change(record);
    }
  }
};

TEST_F(VerifyVerbTest, VerifiesHost) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 5, /*spilled=*/false));
  EXPECT_EQ(Verify(Tier::kHost).whole, 5u);
  EXPECT_EQ(process_->counters.host_checks.value(), 5u);
  DamageInHost(Name("a", 3));
  const wire::VerifyProgress found = Verify(Tier::kHost);
  EXPECT_EQ(found.whole, 4u);
  EXPECT_EQ(found.damaged, 1u);
  EXPECT_EQ(store().stats().damaged, 1u);
  EXPECT_THAT(TiersOf("a", 5), ElementsAre(kHostBit, kHostBit, 0, kHostBit, kHostBit));
  EXPECT_EQ(Verify(Tier::kHost).blocks, 4u);
}

TEST_F(VerifyVerbTest, VerifiesTheDiskCopyOfBlocksThatAreInHost) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 4));
  OnDisk(Name("a", 2), [](MemoryDiskTier::Record& record) { record.payload[0] ^= std::byte{1}; });
  OnDisk(Name("a", 3), [](MemoryDiskTier::Record& record) { record.unreadable = true; });
  const wire::VerifyProgress found = Verify(Tier::kDisk);
  EXPECT_EQ(found.whole, 2u);
  EXPECT_EQ(found.damaged, 1u);
  EXPECT_EQ(found.unread, 1u);
  EXPECT_EQ(process_->tier.stats().damaged, 1u);
  EXPECT_THAT(TiersOf("a", 4), ElementsAre(kBoth, 0, kBoth, kBoth));
  EXPECT_EQ(store().stats().leases, 0u);
}

// While Compress rewrites a record, a reader may see the description of one record and the place of
// the other.
TEST_F(VerifyVerbTest, ARecordThatIsBeingRewrittenIsNotDamaged) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 1));
  Spiller& spiller = process_->work->spiller();
  const std::pair name(process_->f.variant(), Name("a", 1));
  ASSERT_TRUE(spiller.Claim(name.first, name.second));
  OnDisk(name.second, [](MemoryDiskTier::Record& record) { record.payload[0] ^= std::byte{1}; });
  EXPECT_EQ(Verify(Tier::kDisk).missing, 1u);
  EXPECT_THAT(TiersOf("a", 1), ElementsAre(kBoth));
  spiller.Unclaim({&name, 1});
  EXPECT_EQ(Verify(Tier::kDisk).damaged, 1u);
}

TEST_F(VerifyVerbTest, RepeatedReadFailuresEndTheCall) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", VerifyVerb::kFailuresMax + 4));
  for (uint32_t i = 1; i <= VerifyVerb::kFailuresMax + 4; ++i)
    OnDisk(Name("a", i), [](MemoryDiskTier::Record& record) { record.unreadable = true; });
  wire::VerifyProgress last;
  const absl::Status status = TryVerify({.tier = Tier::kDisk}, &last);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(last.unread, static_cast<uint64_t>(VerifyVerb::kFailuresMax));
  EXPECT_EQ(last.damaged, 0u);
}

TEST_F(VerifyVerbTest, StopsWhenTheCallerStops) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 5));
  wire::VerifyProgress last;
  EXPECT_EQ(TryVerify({.tier = Tier::kHost}, &last, [](const auto&) { return false; }).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(last.blocks_done, 0u);
  // The call also stops during the hours in which it waits for its rate.
  const auto stop_later = [](const wire::VerifyProgress& progress) {
    return progress.blocks_done == 0;
  };
  EXPECT_EQ(TryVerify({.tier = Tier::kHost, .bytes_per_s = 1}, &last, stop_later).code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(last.blocks_done, 1u);
}

TEST_F(VerifyVerbTest, RefusesTiersThatItCannotRead) {
  Start();
  wire::VerifyProgress last;
  EXPECT_EQ(TryVerify({.tier = Tier::kDevice}, &last).code(), absl::StatusCode::kUnimplemented);
  VerifyVerb diskless(store(), {}, process_->counters);
  const absl::Status status =
      diskless.Verify({.tier = Tier::kDisk}, [](const auto&) { return true; });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--disk"));
}

}  // namespace
}  // namespace larder
