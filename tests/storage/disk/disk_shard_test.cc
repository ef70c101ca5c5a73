// One shard of the disk tier by itself.
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/disk/disk_shard.h"
#include "storage/spin_wait.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"

namespace larder::testing {
namespace {

class DiskShardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened =
        DiskShard::Open({.directory = directory_.path(),
                         .file_bytes = MiB(16),
                         .files_max = 1,
                         .catalog_bytes_max = MiB(16),
                         .memory = &memory_,
                         .faults = &faults_,
                         .warn = [this](const std::string& text) { warnings_.push_back(text); }});
    ASSERT_TRUE(opened.ok()) << opened.status();
    shard_ = *std::move(opened);
    ASSERT_TRUE(shard_->Recover().ok());
    shard_->SetTold();
  }
  // Puts the blocks.  Returns where their records lie.
  std::vector<DiskShard::Room> Put(std::span<const DiskBlock> blocks) {
    std::vector<DiskTier::NewBlock> news;
    for (const DiskBlock& block : blocks) news.push_back(block.AsNew());
    std::vector<DiskShard::PutResult> puts(blocks.size());
    shard_->Put(news, puts);
    std::vector<DiskShard::Room> rooms;
    for (size_t i = 0; i < puts.size(); ++i) {
      EXPECT_EQ(puts[i].status, DiskTier::PutStatus::kOk);
      rooms.push_back({blocks[i].key(), puts[i].extent});
    }
    return rooms;
  }
  // Puts the same block each time.
  DiskShard::Room Put() { return Put({&block_, 1}).front(); }
  [[nodiscard]] DiskTier::Stats stats() const {
    DiskTier::Stats stats;
    shard_->AddTo(&stats);
    return stats;
  }

  TemporaryDirectory directory_;
  FaultPoints faults_;
  CatalogMemory memory_{MiB(8)};
  DiskBlock block_{1, 1, 50'000};
  std::vector<std::string> warnings_;
  std::unique_ptr<DiskShard> shard_;
};

// Space that another thread is about to free is still pending.
TEST_F(DiskShardTest, AnErasureUnderWayIsStillPending) {
  const DiskShard::Room room = Put();
  ASSERT_TRUE(faults_.Arm("catalog.erase=error").ok());
  EXPECT_FALSE(shard_->Erase({&room, 1}).ok());
  ASSERT_TRUE(faults_.Arm("catalog.erase=sleep:2s").ok());
  const uint64_t before = faults_.arrivals(FaultPoint::kCatalogErase);
  auto erased = std::async(std::launch::async, [&] { return shard_->Erase({}); });
  ASSERT_TRUE(SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(20),
                        [&] { return faults_.arrivals(FaultPoint::kCatalogErase) > before; }));
  EXPECT_TRUE(absl::IsUnavailable(shard_->Erase({})));
  EXPECT_TRUE(erased.get().ok());
  EXPECT_TRUE(shard_->Erase({}).ok());
  EXPECT_EQ(stats().used, ByteCount(0));
}

// More erasures than the catalog takes in one batch.
TEST_F(DiskShardTest, CompletesAllPendingErasures) {
  std::vector<DiskBlock> blocks;
  for (uint64_t number = 1; number <= 1'500; ++number) blocks.emplace_back(number, 1, 100);
  const std::vector<DiskShard::Room> rooms = Put(blocks);
  const ByteCount used = stats().used;
  ASSERT_TRUE(faults_.Arm("catalog.erase=error").ok());
  EXPECT_FALSE(shard_->Erase(rooms).ok());
  EXPECT_EQ(stats().used, used);
  ASSERT_TRUE(faults_.Arm("").ok());
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(20),
                        [&] { return shard_->Erase({}).ok(); }));
  EXPECT_EQ(stats().used, ByteCount(0));
  EXPECT_EQ(stats().blocks, 0u);
}

// The data files have space for many more blocks, but the catalog has none to record where they
// lie.
TEST_F(DiskShardTest, ReportsThatTheCatalogIsFull) {
  (void)Put();
  EXPECT_EQ(stats().refused_catalog, 0u);
  shard_->SetFactBytes(MiB(12));
  EXPECT_EQ(shard_->free_bytes(), ByteCount(0));
  const DiskBlock block(2, 1, 50'000);
  const DiskTier::NewBlock next = block.AsNew();
  for (uint64_t refused = 1; refused <= 3; ++refused) {
    DiskShard::PutResult result;
    shard_->Put({&next, 1}, {&result, 1});
    EXPECT_EQ(result.status, DiskTier::PutStatus::kNoRoom);
    EXPECT_EQ(stats().refused_catalog, refused);
  }
  ASSERT_EQ(warnings_.size(), 1u) << "the warning is repeated only now and then";
  EXPECT_THAT(warnings_[0], ::testing::HasSubstr("found no space in the catalog"));
  shard_->SetFactBytes(ByteCount(0));
  (void)Put();
  EXPECT_EQ(stats().refused_catalog, 3u);
}

// A block whose name the catalog cannot look up is put all the same.
TEST_F(DiskShardTest, AcceptsABlockThatItCannotLookUp) {
  const DiskShard::Room former = Put();
  ASSERT_TRUE(faults_.Arm("catalog.read=error").ok());
  const DiskShard::Room now = Put();
  EXPECT_EQ(stats().catalog_failures, 1u);
  ASSERT_TRUE(faults_.Arm("").ok());
  EXPECT_TRUE(shard_->Erase({&former, 1}).ok())
      << "the space may belong to another record, so the erasure is a no-op";
  std::optional<DiskTier::Description> known;
  EXPECT_TRUE(shard_->Describe({&now.key, 1}, {&known, 1}).ok());
  EXPECT_TRUE(known);
  EXPECT_TRUE(shard_->Erase({&now, 1}).ok());
  EXPECT_EQ(stats().used, former.extent.bytes())
      << "the old record's space stays in use until the next start";
}

}  // namespace
}  // namespace larder::testing
