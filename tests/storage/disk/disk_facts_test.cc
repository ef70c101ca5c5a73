// Facts on a disk of several shards: what is forgotten takes no room, and does not come back.
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/disk/block_catalog.h"
#include "storage/disk/file_disk_tier.h"
#include "tests/storage/disk/disk_blocks.h"
#include "tests/temporary_directory.h"

namespace larder::testing {
namespace {

class DiskFacts : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void Open() {
    tier_.reset();
    auto opened = FileDiskTier::Open({.directory = directory_.path() + "/disk",
                                      .limit = MiB(160),
                                      .faults = &faults_,
                                      .faulty_shard = kFaulty,
                                      .warn = {}});
    ASSERT_TRUE(opened.ok()) << opened.status();
    tier_ = *std::move(opened);
    (void)tier_->Recover([](const DiskTier::Entry&) { return 1; }, [] { return false; });
  }
  [[nodiscard]] std::map<std::string, std::string> All() {
    std::map<std::string, std::string> all;
    tier_->ForEachFact([&](const std::string& key, const std::string& value) { all[key] = value; });
    return all;
  }
  // Of one shard, without its tier.
  [[nodiscard]] size_t StoredIn(uint32_t shard) {
    tier_.reset();
    CatalogMemory memory(MiB(8));
    const auto catalog = BlockCatalog::Open(
        {.directory = absl::StrCat(directory_.path(), "/disk/shard-0", shard, "/catalog"),
         .disk_bytes_max = MiB(16),
         .memory = &memory,
         .faults = &faults_,
         .warn = {}});
    size_t stored = 0;
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    if (!catalog.ok()) return 0;
    const auto count = [&](const std::string&, const std::string&) { ++stored; };
    EXPECT_TRUE((*catalog)->ForEachFact(count).ok());
    return stored;
  }

  static constexpr uint32_t kFaulty = 1;
  const TemporaryDirectory directory_;
  FaultPoints faults_;
  std::unique_ptr<FileDiskTier> tier_;
};

TEST_F(DiskFacts, ForgottenTheyTakeNoRoom) {
  ASSERT_TRUE(tier_->PutFact("kept", "1").ok());
  std::vector<DiskTier::Fact> facts;
  for (int i = 0; i < 100; ++i) facts.push_back({absl::StrCat("pin/", i), "until tomorrow"});
  ASSERT_TRUE(tier_->PutFacts(facts).ok());
  EXPECT_EQ(All().size(), 101u);
  for (DiskTier::Fact& fact : facts) fact.value.clear();
  ASSERT_TRUE(tier_->PutFacts(facts).ok());
  EXPECT_EQ(All(), (std::map<std::string, std::string>{{"kept", "1"}}));
  for (uint32_t shard = 0; shard < 4; ++shard) EXPECT_EQ(StoredIn(shard), 1u) << shard;
}

// Who did not hear that it is forgotten has it still.
TEST_F(DiskFacts, ForgottenTheyDoNotComeBackFromAShardThatWasAway) {
  ASSERT_TRUE(tier_->PutFact("pin", "until tomorrow").ok());
  ASSERT_TRUE(faults_.Arm("catalog.open=error").ok());
  Open();
  ASSERT_TRUE(tier_->PutFact("pin", "").ok());
  EXPECT_TRUE(All().empty());
  ASSERT_TRUE(faults_.Arm("").ok());
  Open();
  EXPECT_TRUE(All().empty());
  ASSERT_TRUE(tier_->PutFact("pin", "").ok());
  EXPECT_EQ(StoredIn(kFaulty), 0u) << "now all have heard of it";
}

TEST_F(DiskFacts, AFullCatalogForgets) {
  ASSERT_TRUE(tier_->PutFact("pin", "until tomorrow").ok());
  std::string large(1 << 20, '\0');  // that cannot be compressed
  std::mt19937_64 random(1);
  for (char& c : large) c = static_cast<char>(random());
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = tier_->PutFact(absl::StrCat(i), large);
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_FALSE(tier_->PutFact("pin", "until next week").ok());
  EXPECT_TRUE(tier_->PutFact("pin", "").ok());
  EXPECT_FALSE(All().contains("pin"));
}

}  // namespace
}  // namespace larder::testing
