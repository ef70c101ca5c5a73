// A catalog or a FORMAT was copied over another shard's, as a restore to the wrong place does.
// What it overwrote is lost, and nothing else.
#include <array>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/disk/block_catalog.h"
#include "storage/disk/file_disk_tier.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace larder::testing {
namespace {

namespace fs = std::filesystem;

constexpr ByteCount kLimit = MiB(560);  // 8 shards of 4 files each
constexpr uint32_t kShards = 8;
constexpr uint64_t kBlocks = 64;

enum class What : uint8_t { kCatalog, kFormat, kBoth };
constexpr std::array kAll = {What::kCatalog, What::kFormat, What::kBoth};

DiskBlock BlockNumbered(uint64_t number) { return {number, 2, 20'000}; }

class Misplaced : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Make("disk")); }

  // Makes a directory with some blocks in each shard, and a copy of everything but the data files.
  void Make(const std::string& name) {
    auto tier = Open(name);
    ASSERT_NE(tier, nullptr);
    ASSERT_EQ(tier->stats().shards, kShards);
    ASSERT_TRUE(RecoverAll(*tier).empty());
    for (uint64_t number = 1; number <= kBlocks; ++number)
      ASSERT_EQ(PutOne(*tier, BlockNumbered(number)).status, DiskTier::PutStatus::kOk);
    tier.reset();
    for (uint32_t shard = 0; shard < kShards; ++shard)
      Copy(What::kBoth, Shard(name, shard), Shard(name + "-kept", shard));
    if (name == "disk") FindHomes();
  }
  std::unique_ptr<FileDiskTier> Open(const std::string& name = "disk") {
    auto tier = FileDiskTier::Open({.directory = directory_.path() + "/" + name,
                                    .limit = kLimit,
                                    .faults = nullptr,
                                    .faulty_shard = std::nullopt,
                                    .warn = {}});
    EXPECT_TRUE(tier.ok()) << tier.status();
    return tier.ok() ? *std::move(tier) : nullptr;
  }
  [[nodiscard]] fs::path Shard(const std::string& name, uint32_t shard) const {
    return fs::path(directory_.path()) / name / absl::StrCat("shard-0", shard);
  }
  static void Copy(What what, const fs::path& from, const fs::path& to) {
    fs::create_directories(to);
    if (what != What::kFormat) {
      fs::remove_all(to / "catalog");
      fs::copy(from / "catalog", to / "catalog", fs::copy_options::recursive);
    }
    if (what != What::kCatalog)
      fs::copy_file(from / "FORMAT", to / "FORMAT", fs::copy_options::overwrite_existing);
  }
  void Restore() {
    for (uint32_t shard = 0; shard < kShards; ++shard)
      Copy(What::kBoth, Shard("disk-kept", shard), Shard("disk", shard));
  }

  // Finds the shard of each block from the catalogs.
  void FindHomes() {
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      CatalogMemory memory(MiB(8));
      FaultPoints faults;
      const auto catalog = BlockCatalog::Open({.directory = Shard("disk", shard) / "catalog",
                                               .disk_bytes_max = MiB(8),
                                               .memory = &memory,
                                               .faults = &faults,
                                               .warn = {}});
      ASSERT_TRUE(catalog.ok()) << catalog.status();
      size_t blocks = 0;
      ASSERT_TRUE((*catalog)
                      ->ForEachPlace([&](const BlockKey& key, const CatalogPlace&) {
                        homes_[key.digest] = shard;
                        return ++blocks > 0;
                      })
                      .ok());
      ASSERT_GT(blocks, 0u) << shard;
    }
    ASSERT_EQ(homes_.size(), kBlocks);
  }
  // Returns how many blocks of all shards except `but` are missing or wrong.
  uint64_t LostBeyond(std::optional<uint32_t> but) {
    const auto tier = Open();
    if (!tier) return kBlocks;
    std::map<Digest, DiskLocation> there;
    for (const DiskTier::Entry& entry : RecoverAll(*tier)) {
      EXPECT_TRUE(there.emplace(entry.key.digest, entry.location).second)
          << "Recover reported a block twice";
    }
    set_aside_ = tier->stats().shards_set_aside;
    uint64_t lost = 0;
    for (uint64_t number = 1; number <= kBlocks; ++number) {
      const DiskBlock block = BlockNumbered(number);
      const auto found = there.find(block.key().digest);
      const bool has = found != there.end() && Has(*tier, block, found->second);
      EXPECT_TRUE(has || found == there.end()) << "Recover reported a block that has wrong bytes";
      if (homes_.at(block.key().digest) != but) lost += has ? 0 : 1;
    }
    return lost;
  }

  TemporaryDirectory directory_;
  std::map<Digest, uint32_t> homes_;  // the shard of each block
  uint32_t set_aside_ = 0;            // at the last check
};

// All pairs in both directions, of catalog, FORMAT and both.  At a small test scale, one kind for
// each pair, in turn.
TEST_F(Misplaced, CostsOnlyTheShardThatItOverwrote) {
  const bool all = TestScale() >= 1;
  uint64_t lost = 0, copies = 0;
  for (uint32_t from = 0; from < kShards; ++from) {
    for (uint32_t to = 0; to < kShards; ++to) {
      for (const What what : kAll) {
        if (from == to || (!all && (from + to) % 3 != static_cast<uint32_t>(what))) continue;
        SCOPED_TRACE(absl::StrCat(from, " over ", to, ", kind ", static_cast<int>(what)));
        Restore();
        Copy(what, Shard("disk-kept", from), Shard("disk", to));
        lost += LostBeyond(what == What::kFormat ? std::nullopt : std::optional(to));
        EXPECT_EQ(set_aside_, what == What::kFormat ? 0u : 1u);
        EXPECT_EQ(LostBeyond(what == What::kFormat ? std::nullopt : std::optional(to)), 0u)
            << "the next start must find the same";
        EXPECT_EQ(set_aside_, 0u);
        ++copies;
      }
    }
  }
  std::printf("%lu copies over another shard: %lu blocks lost beyond it\n", copies, lost);
  EXPECT_EQ(lost, 0u);
}

// The same with another daemon's directory: the shard number is right, but the directory id is not.
TEST_F(Misplaced, FromAnotherDirectoryCostsOnlyThatShard) {
  ASSERT_NO_FATAL_FAILURE(Make("other"));
  for (const What what : kAll) {
    SCOPED_TRACE(static_cast<int>(what));
    Restore();
    Copy(what, Shard("other-kept", 3), Shard("disk", 3));
    EXPECT_EQ(LostBeyond(what == What::kFormat ? std::nullopt : std::optional(3u)), 0u);
    EXPECT_EQ(set_aside_, what == What::kFormat ? 0u : 1u);
  }
}

// Either of the two places that identify a shard may be missing: the catalogs and the FORMAT files
// both know it.
TEST_F(Misplaced, TheIdIsRestoredFromTheCatalogs) {
  const auto id = [&](uint32_t shard) {
    std::string text;
    std::getline(std::ifstream(Shard("disk", shard) / "FORMAT"), text, '\0');
    return text.substr(0, text.rfind("shard "));
  };
  const std::string before = id(0);
  for (uint32_t shard = 0; shard < kShards; ++shard) fs::remove(Shard("disk", shard) / "FORMAT");
  EXPECT_EQ(LostBeyond(std::nullopt), 0u);
  for (uint32_t shard = 0; shard < kShards; ++shard) EXPECT_EQ(id(shard), before);
}

}  // namespace
}  // namespace larder::testing
