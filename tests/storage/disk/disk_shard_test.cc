// One part of the disk by itself.
#include <future>

#include <gtest/gtest.h>

#include "storage/disk/disk_shard.h"
#include "storage/look.h"
#include "tests/storage/disk/disk_blocks.h"
#include "tests/temporary_directory.h"

namespace larder::testing {
namespace {

// Room that another thread is about to give back is owed still.
TEST(DiskShard, OwesWhatIsBeingErased) {
  const TemporaryDirectory directory;
  FaultPoints faults;
  CatalogMemory memory(MiB(8));
  auto opened = DiskShard::Open({.directory = directory.path(),
                                 .file_bytes = MiB(16),
                                 .files_max = 1,
                                 .catalog_bytes_max = MiB(16),
                                 .memory = &memory,
                                 .faults = &faults,
                                 .warn = {}});
  ASSERT_TRUE(opened.ok()) << opened.status();
  DiskShard& shard = **opened;
  ASSERT_TRUE(shard.Recover().ok());
  shard.SetTold();
  const DiskBlock block(1, 1, 50'000);
  const DiskTier::NewBlock one = block.AsNew();
  DiskShard::PutResult put;
  shard.Put({&one, 1}, {&put, 1});
  ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
  ASSERT_TRUE(faults.Arm("catalog.erase=error").ok());
  const DiskShard::Room room{block.key(), put.extent};
  EXPECT_FALSE(shard.Erase({&room, 1}).ok());
  ASSERT_TRUE(faults.Arm("catalog.erase=sleep:500ms").ok());
  const uint64_t before = faults.arrivals(FaultPoint::kCatalogErase);
  auto erased = std::async(std::launch::async, [&] { return shard.Erase({}); });
  ASSERT_TRUE(LookUntil(std::chrono::steady_clock::now() + std::chrono::seconds(20),
                        [&] { return faults.arrivals(FaultPoint::kCatalogErase) > before; }));
  EXPECT_TRUE(absl::IsUnavailable(shard.Erase({})));
  EXPECT_TRUE(erased.get().ok());
  EXPECT_TRUE(shard.Erase({}).ok());
  DiskTier::Stats stats;
  shard.AddTo(&stats);
  EXPECT_EQ(stats.used, ByteCount(0));
}

}  // namespace
}  // namespace larder::testing
