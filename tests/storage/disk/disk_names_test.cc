// If a name is put again, the shard that has a record of it, or may have one, takes the new record.
#include <map>

#include <gtest/gtest.h>

#include "storage/disk/file_disk_tier.h"
#include "storage/spin_wait.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"

namespace larder::testing {
namespace {

using Status = DiskTier::PutStatus;

// Faults concern the first of two shards, where the first block goes.
class DiskNames : public ::testing::Test {
 protected:
  DiskNames() { Open(); }
  void Open() {
    tier_.reset();
    FileDiskTier::Options options;
    options.directory = directory_.path() + "/disk";
    options.limit = FileDiskTier::kLimitMin;
    options.faults = &faults_;
    options.faulty_shard = 0;
    auto tier = FileDiskTier::Open(options);
    LARDER_CHECK(tier.ok());
    tier_ = *std::move(tier);
  }
  void OpenAndRecover() {
    Open();
    (void)RecoverFirsts(*tier_);
  }
  [[nodiscard]] Status Put(const DiskBlock& block) { return Put(block, DiskLocation::kNone); }
  [[nodiscard]] Status Put(const DiskBlock& block, DiskLocation instead_of) {
    DiskTier::NewBlock one = block.AsNew();
    one.instead_of = instead_of;
    DiskTier::PutResult put;
    tier_->Put({&one, 1}, {&put, 1});
    if (put.status == Status::kOk) place_ = places_[block.tokens().front()] = put.location;
    return put.status;
  }
  void Arm(std::string_view text) { ASSERT_TRUE(faults_.Arm(text).ok()); }
  void Erase(const DiskBlock& block, DiskLocation place) { EraseOne(*tier_, {block.key(), place}); }

  TemporaryDirectory directory_;
  FaultPoints faults_;
  std::unique_ptr<FileDiskTier> tier_;
  DiskLocation place_ = DiskLocation::kNone;  // of the last put
  std::map<uint64_t, DiskLocation> places_;   // by number
  const DiskBlock older_{1, 4, 50'000}, newer_{1, 3, 50'000};
};

TEST_F(DiskNames, WaitForTheShardThatHasThem) {
  OpenAndRecover();
  ASSERT_EQ(Put(older_), Status::kOk);
  const DiskLocation older = place_;
  for (const char* broken : {"data.write=error", "data.sync=error", "catalog.commit=error"}) {
    Arm(broken);
    EXPECT_EQ(Put(newer_), Status::kFailed) << broken;
    EXPECT_EQ(Put(DiskBlock(2, 1, 1'000)), Status::kOk) << "another name goes to the other shard";
    EXPECT_TRUE(Has(*tier_, older_, older)) << broken;
  }
  Arm("");
  ASSERT_EQ(Put(newer_), Status::kOk);
  EXPECT_TRUE(Has(*tier_, newer_, place_));
}

// A record that was given up and cannot be erased is found by the next start.
TEST_F(DiskNames, WaitForTheShardThatCannotEraseThem) {
  OpenAndRecover();
  ASSERT_EQ(Put(older_), Status::kOk);
  Arm("catalog.erase=error");
  Erase(older_, place_);
  Arm("catalog.erase=error,data.write=error");
  EXPECT_EQ(Put(newer_), Status::kFailed);
  EXPECT_EQ(Put(DiskBlock(2, 1, 1'000)), Status::kOk);
  Arm("catalog.erase=error");
  ASSERT_EQ(Put(newer_), Status::kOk);
  Arm("");
  OpenAndRecover();
  const std::optional<DiskTier::Description> known = DescribeOne(*tier_, {newer_.key(), place_});
  ASSERT_TRUE(known);
  EXPECT_EQ(known->header, newer_.header());
}

// A shard that cannot look up what it has takes the new record, so that its record is the newest.
TEST_F(DiskNames, GoToTheShardThatCannotLookThemUp) {
  OpenAndRecover();
  ASSERT_EQ(Put(older_), Status::kOk);
  Arm("catalog.read=error");
  ASSERT_EQ(Put(newer_), Status::kOk);
  Arm("");
  Open();
  const std::vector<DiskTier::Entry> found = RecoverFirsts(*tier_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(Has(*tier_, newer_, found[0].location));
}

// A block for which its full shard has no space waits, even if another shard has space.  A record
// that is only encoded again need not wait.
TEST_F(DiskNames, WaitForSpaceInTheirShardExceptWhenEncodedAgain) {
  OpenAndRecover();
  ASSERT_EQ(Put(older_), Status::kOk);
  const DiskLocation older = place_;
  uint64_t last = 1;
  while (Put(DiskBlock(last + 1, 8, 100'000)) == Status::kOk) ++last;
  // The first shard frees nothing, the second as much as one block takes.
  Arm("catalog.erase=error");
  const DiskBlock another(1'000, 8, 100'000);
  for (uint64_t number = 2; number <= last && Put(another) != Status::kOk; ++number)
    Erase(DiskBlock(number, 8, 100'000), places_.at(number));
  ASSERT_TRUE(places_.contains(1'000));
  Erase(another, places_.at(1'000));
  EXPECT_EQ(Put(DiskBlock(1, 8, 100'000)), Status::kNoRoom);
  DiskBlock encoded(1, 8, 100'000);
  encoded.SetEncoded(110'000);
  EXPECT_EQ(Put(encoded), Status::kNoRoom);
  ASSERT_EQ(Put(encoded, older), Status::kOk) << "the encoded record goes to the other shard";
  Arm("");
  Erase(older_, older);
  EXPECT_TRUE(Has(*tier_, encoded, place_));
}

// A catalog that cannot be read does not mean that a name is free.  A shard that the start had to
// skip is not waited for.
TEST_F(DiskNames, AreNotFreeBecauseTheDiskFails) {
  OpenAndRecover();
  ASSERT_EQ(Put(older_), Status::kOk);
  Open();
  const BlockKey none = DiskBlock(2, 1, 1'000).key();
  EXPECT_TRUE(tier_->FindUntold(older_.key())->has_value());
  EXPECT_FALSE(tier_->FindUntold(none)->has_value());
  Arm("catalog.read=error");
  EXPECT_FALSE(tier_->FindUntold(older_.key()).ok());
  EXPECT_FALSE(tier_->FindUntold(none).ok());
  Arm("catalog.read=error,catalog.scan=error");
  ASSERT_TRUE(absl::IsUnavailable(
      tier_->Recover([](const DiskTier::Entry&) { return 1u; }, [] { return false; })));
  ASSERT_TRUE(tier_->FindUntold(older_.key()).ok());
  EXPECT_FALSE(tier_->FindUntold(older_.key())->has_value());
  EXPECT_EQ(Put(newer_), Status::kOk) << "the skipped shard must be treated as closed";
  Arm("");
}

// Until a shard has reported what it has, the same bytes may go to another shard, and other bytes
// may not.
TEST_F(DiskNames, OfAnUnreportedShardGetNoOtherBytes) {
  OpenAndRecover();
  ASSERT_EQ(Put(older_), Status::kOk);
  Open();
  Arm("catalog.scan=error");
  ASSERT_TRUE(absl::IsUnavailable(
      tier_->Recover([](const DiskTier::Entry&) { return 1u; }, [] { return false; })));
  EXPECT_EQ(Put(newer_), Status::kNotNow) << "this is not a failure of the disk";
  EXPECT_EQ(Put(older_), Status::kOk);
  EXPECT_EQ(Put(DiskBlock(2, 1, 1'000)), Status::kOk);
  Arm("");
}

}  // namespace
}  // namespace larder::testing
