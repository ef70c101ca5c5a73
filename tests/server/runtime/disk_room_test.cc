// How much space the file system lacks for a given limit of the disk tier.
#include "server/runtime/disk_room.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

constexpr ByteCount kExbibyte = GiB(uint64_t{1} << 30);  // more than any test machine has

TEST(DiskRoomTest, CountsFreeSpaceAndWhatTheTierAlreadyUses) {
  const std::string here = ::testing::TempDir();
  const ByteCount lacking = DiskRoomLacking(here, ByteCount(0), kExbibyte);
  EXPECT_GT(lacking, ByteCount(0));
  EXPECT_LT(lacking, kExbibyte) << "the file system has some free space";
  EXPECT_EQ(DiskRoomLacking(here, GiB(1), GiB(1)), ByteCount(0))
      << "what the disk tier already uses counts";
  EXPECT_EQ(DiskRoomLacking(here, GiB(2), GiB(1)), ByteCount(0));
}

TEST(DiskRoomTest, ReportsNoLackForAnUnreadableFolder) {
  EXPECT_EQ(DiskRoomLacking("/nonexistent", ByteCount(0), kExbibyte), ByteCount(0));
}

}  // namespace
}  // namespace larder
