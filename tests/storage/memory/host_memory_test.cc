#include "storage/memory/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

// A temporary folder with the files of a host's /proc and /sys.
class HostMemoryTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteMeminfo() {
    Write("/proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n"
          "MemAvailable:    8388608 kB\n");
  }

  const TemporaryDirectory directory_;
  const std::string root_ = directory_.path();
};

TEST_F(HostMemoryTest, ThisHostHasAvailableMemory) {
  const HostMemory memory = ReadHostMemory();
  EXPECT_GT(memory.available, MiB(1));
  EXPECT_LT(memory.available, GiB(1 << 20));
}

TEST_F(HostMemoryTest, UnreadableFilesSetNoLimit) {
  EXPECT_EQ(ReadHostMemory(root_).available, ByteCount(UINT64_MAX));
  EXPECT_EQ(ReadHostMemory(root_).huge_pages_free, ByteCount(0));
}

TEST_F(HostMemoryTest, ReadsMeminfo) {
  WriteMeminfo();
  EXPECT_EQ(ReadHostMemory(root_).available, GiB(8));
}

TEST_F(HostMemoryTest, ReadsAVersion2GroupAndItsParents) {
  WriteMeminfo();
  Write("/proc/self/cgroup", "0::/system.slice/larderd.service\n");
  const std::string slice = "/sys/fs/cgroup/system.slice";
  Write(slice + "/larderd.service/memory.max", "max\n");
  EXPECT_EQ(ReadHostMemory(root_).available, GiB(8));
  Write(slice + "/memory.max", "4294967296\n");
  Write(slice + "/memory.current", "3221225472\n");
  EXPECT_EQ(ReadHostMemory(root_).available, GiB(1));
  Write(slice + "/memory.stat", "anon 1\ninactive_file 536870912\nactive_file 536870912\n");
  EXPECT_EQ(ReadHostMemory(root_).available, GiB(2));  // page cache can be reclaimed
}

TEST_F(HostMemoryTest, ReadsAVersion2GroupInsideAContainer) {
  WriteMeminfo();
  Write("/proc/self/cgroup", "0::/../../not/visible/here\n");
  Write("/sys/fs/cgroup/memory.max", "2147483648\n");
  Write("/sys/fs/cgroup/memory.current", "0\n");
  EXPECT_EQ(ReadHostMemory(root_).available, GiB(2));
}

TEST_F(HostMemoryTest, ReadsAVersion1GroupAndItsParents) {
  WriteMeminfo();
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/\n");
  const std::string group = "/sys/fs/cgroup/memory/a";
  Write(group + "/b/memory.limit_in_bytes", "9223372036854771712\n");  // means unlimited
  EXPECT_EQ(ReadHostMemory(root_).available, GiB(8));
  Write(group + "/memory.limit_in_bytes", "3221225472\n");
  Write(group + "/memory.usage_in_bytes", "1073741824\n");
  Write(group + "/memory.stat", "inactive_file 1\ntotal_inactive_file 536870912\n");
  EXPECT_EQ(ReadHostMemory(root_).available, MiB(2560));
}

TEST_F(HostMemoryTest, AGroupAboveItsLimitHasNothingLeft) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1000\n");
  Write("/sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(ReadHostMemory(root_).available, ByteCount(0));
}

TEST_F(HostMemoryTest, ReservedHugePagesAreNotFree) {
  const std::string pages = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  Write(pages + "free_hugepages", "10\n");
  Write(pages + "resv_hugepages", "4\n");
  EXPECT_EQ(ReadHostMemory(root_).huge_pages_free, MiB(12));
  Write(pages + "resv_hugepages", "11\n");
  EXPECT_EQ(ReadHostMemory(root_).huge_pages_free, ByteCount(0));
}

TEST_F(HostMemoryTest, HugePagesAreLimitedByTheGroup) {
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100\n");
  Write("/proc/self/cgroup", "0::/engines/larderd\n");
  const std::string above = "/sys/fs/cgroup/engines";
  Write(above + "/larderd/hugetlb.2MB.max", "max\n");
  Write(above + "/larderd/hugetlb.2MB.rsvd.max", "max\n");
  EXPECT_EQ(ReadHostMemory(root_).huge_pages_free, MiB(200));
  Write(above + "/hugetlb.2MB.max", "20971520\n");
  Write(above + "/hugetlb.2MB.current", "4194304\n");
  EXPECT_EQ(ReadHostMemory(root_).huge_pages_free, MiB(16));
  Write(above + "/hugetlb.2MB.rsvd.max", "20971520\n");
  Write(above + "/hugetlb.2MB.rsvd.current", "20971520\n");
  EXPECT_EQ(ReadHostMemory(root_).huge_pages_free, ByteCount(0));
}

TEST_F(HostMemoryTest, HugePagesAreLimitedByAVersion1Group) {
  Write("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "100\n");
  Write("/proc/self/cgroup", "7:hugetlb:/a\n");
  Write("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.limit_in_bytes", "8388608\n");
  Write("/sys/fs/cgroup/hugetlb/a/hugetlb.2MB.usage_in_bytes", "2097152\n");
  EXPECT_EQ(ReadHostMemory(root_).huge_pages_free, MiB(6));
}

}  // namespace
}  // namespace larder
