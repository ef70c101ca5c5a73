// How much of the limit of a disk its file system lacks.
#include "server/runtime/disk_room.h"

#include <gtest/gtest.h>

namespace larder {
namespace {

constexpr ByteCount kExbibyte = GiB(uint64_t{1} << 30);  // more than any file system of ours has

TEST(DiskRoomTest, CountsWhatIsFreeAndWhatIsTaken) {
  const std::string here = ::testing::TempDir();
  const ByteCount lacking = DiskRoomLacking(here, ByteCount(0), kExbibyte);
  EXPECT_GT(lacking, ByteCount(0));
  EXPECT_LT(lacking, kExbibyte) << "something is free";
  EXPECT_EQ(DiskRoomLacking(here, GiB(1), GiB(1)), ByteCount(0)) << "it is there already";
  EXPECT_EQ(DiskRoomLacking(here, GiB(2), GiB(1)), ByteCount(0));
}

TEST(DiskRoomTest, SaysNothingOfWhatItCannotSee) {
  EXPECT_EQ(DiskRoomLacking("/nonexistent", ByteCount(0), kExbibyte), ByteCount(0));
}

}  // namespace
}  // namespace larder
