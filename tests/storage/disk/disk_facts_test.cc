// Facts on a disk of several shards: forgotten facts take no space and do not come back.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "storage/disk/block_catalog.h"
#include "storage/disk/file_disk_tier.h"
#include "storage/spin_wait.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"

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
                                      .warn = [this](const std::string& text) {
                                        MutexLock lock(mu_);
                                        warnings_.push_back(text);
                                      }});
    ASSERT_TRUE(opened.ok()) << opened.status();
    tier_ = *std::move(opened);
    (void)tier_->Recover([](const DiskTier::Entry&) { return 1; }, [] { return false; });
  }
  [[nodiscard]] std::string CatalogOf(uint32_t shard) const {
    return absl::StrCat(directory_.path(), "/disk/shard-0", shard, "/catalog");
  }
  [[nodiscard]] std::map<std::string, std::string> All() {
    std::map<std::string, std::string> all;
    tier_->ForEachFact([&](const std::string& key, const std::string& value) { all[key] = value; });
    return all;
  }
  // Opens the catalog of a shard without the tier.  REQUIRES: the tier is closed; `memory` outlives
  // the catalog.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<BlockCatalog>> OpenCatalog(uint32_t shard,
                                                                          CatalogMemory* memory) {
    return BlockCatalog::Open({.directory = CatalogOf(shard),
                               .disk_bytes_max = MiB(16),
                               .memory = memory,
                               .faults = &faults_,
                               .warn = {}});
  }
  // Returns how many facts one shard stores, read without the tier.
  [[nodiscard]] size_t StoredIn(uint32_t shard) {
    tier_.reset();
    CatalogMemory memory(MiB(8));
    const auto catalog = OpenCatalog(shard, &memory);
    size_t stored = 0;
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    if (!catalog.ok()) return 0;
    const auto count = [&](const std::string&, const std::string&) { ++stored; };
    EXPECT_TRUE((*catalog)->ForEachFact(count).ok());
    return stored;
  }

  // Damages the catalog of a shard beyond use.
  void Lose(uint32_t shard) {
    tier_.reset();
    ASSERT_TRUE(std::filesystem::remove(CatalogOf(shard) + "/CURRENT"));
  }

  static constexpr uint32_t kFaulty = 1;
  const TemporaryDirectory directory_;
  FaultPoints faults_;
  Mutex mu_;
  std::vector<std::string> warnings_;  // read while no tier is busy
  std::unique_ptr<FileDiskTier> tier_;
};

TEST_F(DiskFacts, ForgottenFactsTakeNoSpace) {
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

// A shard that missed the erasure of a fact still has it.
TEST_F(DiskFacts, ForgottenFactsDoNotComeBackFromAShardThatWasClosed) {
  ASSERT_TRUE(tier_->PutFact("pin", "until tomorrow").ok());
  ASSERT_TRUE(faults_.Arm("catalog.open=error").ok());
  Open();
  ASSERT_TRUE(tier_->PutFact("pin", "").ok());
  EXPECT_TRUE(All().empty());
  ASSERT_TRUE(faults_.Arm("").ok());
  Open();
  EXPECT_TRUE(All().empty());
  ASSERT_TRUE(tier_->PutFact("pin", "").ok());
  EXPECT_EQ(StoredIn(kFaulty), 0u) << "all shards have been told to forget it";
}

// A shard that fails for a moment keeps a forgotten fact, which counts as stored.  The next write
// removes it.
TEST_F(DiskFacts, AFailedForgetIsCompletedByTheNextWrite) {
  const auto pins = [&] {
    return tier_->stats().facts[static_cast<size_t>(DiskTier::FactKind::kPin)].facts;
  };
  ASSERT_TRUE(tier_->PutFact("pin/1", "one").ok());
  ASSERT_TRUE(faults_.Arm("catalog.facts=error").ok());
  EXPECT_TRUE(tier_->PutFact("pin/1", "").ok()) << "the other shards have forgotten it";
  EXPECT_EQ(pins(), 1u);
  ASSERT_TRUE(faults_.Arm("").ok());
  ASSERT_TRUE(tier_->PutFact("pin/2", "two").ok());
  EXPECT_EQ(pins(), 1u) << "only the new fact is left";
  EXPECT_EQ(All(), (std::map<std::string, std::string>{{"pin/2", "two"}}));
  EXPECT_EQ(StoredIn(kFaulty), 1u);
}

// However many shards are lost one after another, the shards that are left fill the new ones up.
TEST_F(DiskFacts, AnEmptyShardGetsTheFactsOfTheOthers) {
  const std::map<std::string, std::string> facts = {{"pin/1", "until tomorrow"},
                                                    {"registration/1", "an engine"}};
  for (const auto& [key, value] : facts) ASSERT_TRUE(tier_->PutFact(key, value).ok());
  for (uint32_t shard = 0; shard < 4; ++shard) {
    SCOPED_TRACE(shard);
    Lose(shard);
    ASSERT_NO_FATAL_FAILURE(Open());
    EXPECT_EQ(tier_->stats().shards_set_aside, 1u);
    EXPECT_EQ(All(), facts);
  }
  for (uint32_t shard = 0; shard < 4; ++shard) EXPECT_EQ(StoredIn(shard), 2u) << shard;
}

// A shard that could not be opened for a while gets the facts that it missed, and keeps no older
// ones.
TEST_F(DiskFacts, AShardThatWasClosedGetsTheFactsItMissed) {
  ASSERT_TRUE(tier_->PutFact("pin/1", "until tomorrow").ok());
  ASSERT_TRUE(faults_.Arm("catalog.open=error").ok());
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_TRUE(tier_->PutFact("pin/1", "until Sunday").ok());
  ASSERT_TRUE(tier_->PutFact("pin/2", "until Monday").ok());
  ASSERT_TRUE(faults_.Arm("").ok());
  ASSERT_NO_FATAL_FAILURE(Open());
  for (const uint32_t shard : {0u, 2u, 3u}) Lose(shard);
  ASSERT_NO_FATAL_FAILURE(Open());
  EXPECT_EQ(tier_->stats().shards_set_aside, 3u);
  EXPECT_EQ(All(), (std::map<std::string, std::string>{{"pin/1", "until Sunday"},
                                                       {"pin/2", "until Monday"}}));
}

std::string Random(size_t bytes, uint32_t seed) {  // cannot be compressed
  std::string text(bytes, '\0');
  std::mt19937_64 random(seed);
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST_F(DiskFacts, AFullPartStillAllowsForgetting) {
  ASSERT_TRUE(tier_->PutFact("pin", "until tomorrow").ok());
  absl::Status status;
  for (uint32_t i = 0; i < 10'000 && status.ok(); ++i)
    status = tier_->PutFact(absl::StrCat(i), Random(1000, i));
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_TRUE(absl::IsResourceExhausted(tier_->PutFact("pin", Random(2000, 1))));
  EXPECT_TRUE(tier_->PutFact("pin", "until now").ok()) << "a smaller value still fits";
  EXPECT_TRUE(tier_->PutFact("pin", "").ok());
  EXPECT_FALSE(All().contains("pin"));
  EXPECT_TRUE(tier_->PutFact("0", "").ok());
  EXPECT_TRUE(tier_->PutFact("1", "").ok());
  EXPECT_TRUE(tier_->PutFact("pin", Random(1000, 1)).ok()) << "there is space again";
}

// Registrations of engines take no space from blocks or pins, in this process and in the next.
TEST_F(DiskFacts, RegistrationsTakeNoSpaceFromBlocksAndPins) {
  uint32_t refused = 0;
  for (uint32_t i = 0; i < 400; ++i) {
    const absl::Status status =
        tier_->PutFact(absl::StrCat("registration/", i), Random(100'000, i));
    if (status.ok()) continue;
    ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
    ++refused;
  }
  EXPECT_GT(refused, 300u);
  for (uint64_t start = 0; start < 3; ++start) {
    const DiskTier::FactUses uses = tier_->stats().facts;
    EXPECT_EQ(uses[1].facts, 400u - refused);
    EXPECT_GT(uses[1].bytes, ByteCount(100'000));
    EXPECT_LE(uses[1].bytes, uses[1].bytes_max);
    EXPECT_TRUE(tier_->PutFact(absl::StrCat("pin/", start), "until tomorrow").ok());
    for (uint64_t number = 1; number <= 8; ++number) {
      EXPECT_EQ(PutOne(*tier_, DiskBlock(start * 100 + number, 2, 50'000)).status,
                DiskTier::PutStatus::kOk);
    }
    ASSERT_NO_FATAL_FAILURE(Open());
  }
  EXPECT_EQ(tier_->stats().blocks, 24u);
}

// A catalog as an older daemon filled it: the oldest registrations are forgotten, and blocks become
// durable again.
TEST_F(DiskFacts, TooManyFactsOfAnOlderDaemonAreForgottenOldestFirst) {
  tier_.reset();
  constexpr uint32_t kRegistrations = 64, kShards = 4;
  for (uint32_t shard = 0; shard < kShards; ++shard) {
    CatalogMemory memory(MiB(8));
    const auto catalog = OpenCatalog(shard, &memory);
    ASSERT_TRUE(catalog.ok()) << catalog.status();
    for (uint64_t i = 0; i <= kRegistrations; ++i) {
      std::string sequence(sizeof i, '\0');
      std::memcpy(sequence.data(), &i, sizeof i);
      const DiskTier::Fact fact =
          i == 0 ? DiskTier::Fact{"pin/the oldest", sequence + "until tomorrow"}
                 : DiskTier::Fact{absl::StrCat("registration/", i),
                                  sequence + Random(100'000, static_cast<uint32_t>(i))};
      ASSERT_TRUE((*catalog)->PutFacts({&fact, 1}).ok());
    }
  }
  for (int start = 0; start < 2; ++start) {
    ASSERT_NO_FATAL_FAILURE(Open());
    const auto all = All();
    EXPECT_TRUE(all.contains("pin/the oldest"));
    EXPECT_TRUE(all.contains(absl::StrCat("registration/", kRegistrations)));
    EXPECT_FALSE(all.contains("registration/1"));
    EXPECT_LE(tier_->stats().facts[1].bytes, tier_->stats().facts[1].bytes_max);
    const DiskBlock block(static_cast<uint64_t>(start) + 1, 2, 50'000);
    EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(20), [&] {
      return PutOne(*tier_, block).status == DiskTier::PutStatus::kOk;
    }));
  }
  EXPECT_EQ(
      std::ranges::count_if(
          warnings_, [](const std::string& text) { return text.find("forgotten") != text.npos; }),
      1);
}

}  // namespace
}  // namespace larder::testing
