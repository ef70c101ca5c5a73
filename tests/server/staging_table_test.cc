#include "server/staging_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace larder {
namespace {

constexpr ProcessId kOne{1};
constexpr ProcessId kTwo{2};
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

FileDescriptor Memfd(uint64_t bytes, int seals = kSeals, unsigned flags = 0) {
  FileDescriptor fd(memfd_create("staging", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

absl::StatusCode AddCode(StagingTable& table, FileDescriptor fd, uint64_t bytes) {
  return table.Add(kOne, std::move(fd), ByteCount(bytes)).status().code();
}

TEST(StagingTableTest, ShowsWhatTheClientWrites) {
  StagingTable table({});
  FileDescriptor fd = Memfd(5000);  // not whole pages
  const int mine = dup(fd.get());
  auto id = table.Add(kOne, std::move(fd), ByteCount(5000));
  ASSERT_TRUE(id.ok()) << id.status();
  EXPECT_NE(*id, 0u);
  auto segment = table.Get(kOne, *id);
  ASSERT_NE(segment, nullptr);
  ASSERT_EQ(segment->bytes().size(), 5000u);
  ASSERT_EQ(pwrite(mine, "x", 1, 4999), 1);
  EXPECT_EQ(segment->bytes()[4999], std::byte{'x'});
  EXPECT_NE(ftruncate(mine, 0), 0);  // what would be a SIGBUS here
  close(mine);
}

TEST(StagingTableTest, OnlyTheOwnerSeesIt) {
  StagingTable table({});
  const uint32_t id = *table.Add(kOne, Memfd(4096), ByteCount(4096));
  EXPECT_EQ(table.Get(kTwo, id), nullptr);
  EXPECT_FALSE(table.Drop(kTwo, id));
  EXPECT_EQ(table.Get(kOne, id + 1), nullptr);
  EXPECT_NE(table.Get(kOne, id), nullptr);
}

TEST(StagingTableTest, RefusesWhatCouldFaultWhileRead) {
  StagingTable table({});
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(AddCode(table, Memfd(4096, 0), 4096), invalid);
  EXPECT_EQ(AddCode(table, Memfd(4096, F_SEAL_GROW), 4096), invalid);
  EXPECT_EQ(AddCode(table, Memfd(4096, F_SEAL_SHRINK), 4096), invalid);
  EXPECT_EQ(AddCode(table, Memfd(4096), 8192), invalid);  // truncated
  EXPECT_EQ(AddCode(table, Memfd(4096), 4095), invalid);
  EXPECT_EQ(AddCode(table, Memfd(0), 0), invalid);
  EXPECT_EQ(AddCode(table, FileDescriptor(open("/dev/zero", O_RDWR | O_CLOEXEC)), 4096), invalid);
  EXPECT_EQ(AddCode(table, FileDescriptor(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 4096),
            invalid);
  EXPECT_EQ(AddCode(table, FileDescriptor(), 4096), invalid);
  EXPECT_EQ(table.counts().segments, 0u);
}

TEST(StagingTableTest, RefusesDescriptorsThatCannotBeRead) {
  StagingTable table({});
  const FileDescriptor fd = Memfd(4096);
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  EXPECT_EQ(AddCode(table, FileDescriptor(open(path.c_str(), O_WRONLY | O_CLOEXEC)), 4096),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AddCode(table, FileDescriptor(open(path.c_str(), O_PATH | O_CLOEXEC)), 4096),
            absl::StatusCode::kInvalidArgument);
}

TEST(StagingTableTest, RefusesHugePages) {
  StagingTable table({});
  FileDescriptor fd(memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!fd || ftruncate(fd.get(), 2 << 20) != 0) GTEST_SKIP() << "no hugetlb here";
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kSeals), 0);
  EXPECT_EQ(AddCode(table, std::move(fd), 2 << 20), absl::StatusCode::kInvalidArgument);
}

TEST(StagingTableTest, LimitsHoldExactlyAndComeBack) {
  StagingTable table({.process_bytes_max = ByteCount(3 * 4096),
                      .process_segments_max = 2,
                      .total_bytes_max = ByteCount(4 * 4096)});
  const auto full = absl::StatusCode::kResourceExhausted;
  EXPECT_EQ(AddCode(table, Memfd(4 * 4096), 4 * 4096), full);
  const uint32_t first = *table.Add(kOne, Memfd(2 * 4096), ByteCount(2 * 4096));
  EXPECT_EQ(AddCode(table, Memfd(2 * 4096), 2 * 4096), full);
  ASSERT_TRUE(table.Add(kOne, Memfd(4096), ByteCount(4096)).ok());
  EXPECT_EQ(AddCode(table, Memfd(1), 1), full);  // segments
  EXPECT_EQ(table.Add(kTwo, Memfd(2 * 4096), ByteCount(2 * 4096)).status().code(), full);  // total
  EXPECT_TRUE(table.Drop(kOne, first));
  EXPECT_FALSE(table.Drop(kOne, first));
  EXPECT_TRUE(table.Add(kTwo, Memfd(3 * 4096), ByteCount(3 * 4096)).ok());
  EXPECT_EQ(table.counts().bytes, ByteCount(4 * 4096));
  table.DropProcess(kTwo);
  table.DropProcess(kTwo);
  EXPECT_EQ(table.counts().bytes, ByteCount(4096));
  EXPECT_EQ(table.counts().processes, 1u);
}

TEST(StagingTableTest, HugeClaimsDoNotOverflow) {
  StagingTable table({});
  ASSERT_TRUE(table.Add(kOne, Memfd(4096), ByteCount(4096)).ok());
  const uint64_t most = uint64_t{1} << 62;  // sparse
  FileDescriptor fd(memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(fd.get(), static_cast<off_t>(most)) != 0) GTEST_SKIP() << "no such size here";
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kSeals), 0);
  EXPECT_EQ(AddCode(table, std::move(fd), most), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table.counts().bytes, ByteCount(4096));
}

TEST(StagingTableTest, CopyUnderWayKeepsItAlive) {
  StagingTable table({});
  FileDescriptor fd = Memfd(4096);
  ASSERT_EQ(pwrite(fd.get(), "k", 1, 0), 1);
  const uint32_t id = *table.Add(kOne, std::move(fd), ByteCount(4096));
  const std::shared_ptr<const StagingSegment> copying = table.Get(kOne, id);
  const std::weak_ptr<const StagingSegment> watch = copying;
  table.DropProcess(kOne);
  EXPECT_EQ(table.Get(kOne, id), nullptr);
  EXPECT_EQ(copying->bytes()[0], std::byte{'k'});
  EXPECT_EQ(watch.use_count(), 1);  // ours is the last
}

TEST(StagingTableTest, ThreadsAddGetAndDrop) {
  StagingTable table({.process_segments_max = 64});
  const auto work = [&table](ProcessId process) {
    for (int i = 0; i < 200; ++i) {
      const auto id = table.Add(process, Memfd(4096), ByteCount(4096));
      ASSERT_TRUE(id.ok());
      const auto segment = table.Get(process, *id);
      if (segment) {
        EXPECT_EQ(segment->bytes()[0], std::byte{0});
      }
      if (i % 3 == 0) {
        table.DropProcess(process);
      } else {
        table.Drop(process, *id);
      }
    }
  };
  std::thread one(work, kOne);
  std::thread same(work, kOne);
  std::thread two(work, kTwo);
  one.join();
  same.join();
  two.join();
  EXPECT_EQ(table.counts().bytes, ByteCount(0));
}

}  // namespace
}  // namespace larder
