// A node on which larderd cannot use the memory that seems to be free: its control group may not
// use, or may not reserve, the free huge pages, or there is no memory at all.  The daemon must
// serve from small pages, or report that it does not serve and why.
//
// Needs root, 2 MiB huge pages and control groups with the hugetlb controller; otherwise the tests
// are skipped.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {
namespace {

namespace fs = std::filesystem;
constexpr const char* kHugePages = "/proc/sys/vm/nr_hugepages";
constexpr const char* kPool = "32MiB";  // two slabs of 16 MiB
constexpr int kPoolPages = 16;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

// Returns where control groups of version 2 with the hugetlb controller are mounted, or an empty
// string if they are not.
std::string GroupsWithHugePages() {
  std::ifstream mounts("/proc/self/mounts");
  std::string device, where, type, rest;
  while (mounts >> device >> where >> type && std::getline(mounts, rest)) {
    if (type == "cgroup2" &&
        ReadText(where + "/cgroup.controllers").find("hugetlb") != std::string::npos)
      return where;
  }
  return "";
}

// Makes free huge pages on this host and a control group for the test, and undoes both afterwards.
class PoolMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    groups_ = GroupsWithHugePages();
    if (geteuid() != 0 || groups_.empty())
      GTEST_SKIP() << "needs root and control groups of version 2 with the hugetlb controller";
    pages_before_ = std::stoi(ReadText(kHugePages));
    ASSERT_TRUE(WriteText(kHugePages, std::to_string(pages_before_ + 2 * kPoolPages)));
    if (std::stoi(ReadText(kHugePages)) < pages_before_ + kPoolPages)
      GTEST_SKIP() << "the host cannot provide enough huge pages";
    ASSERT_TRUE(WriteText(groups_ + "/cgroup.subtree_control", "+hugetlb"));
    group_ = groups_ + "/larder-pool-memory-" + std::to_string(getpid());
    ASSERT_TRUE(fs::create_directory(group_));
  }
  void TearDown() override {
    daemon_.reset();
    if (!group_.empty()) rmdir(group_.c_str());
    if (pages_before_ >= 0) WriteText(kHugePages, std::to_string(pages_before_));
  }

  // Starts larderd in the test's control group.  `before` is called in the child, before larderd.
  void Start(
      bool wait = true, const std::function<void()>& before = [] {}) {
    const std::string procs = group_ + "/cgroup.procs";
    daemon_ = std::make_unique<DaemonProcess>(
        std::vector<std::string>{"--pool", kPool, "--slab", "16MiB"},
        DaemonProcess::Options{.wait = wait, .in_child = [procs, before] {
                                 if (!WriteText(procs, "0")) _exit(99);
                                 before();
                               }});
  }

  std::string groups_, group_;
  int pages_before_ = -1;
  std::unique_ptr<DaemonProcess> daemon_;
};

TEST_F(PoolMemoryTest, HugePagesWhereTheGroupMayUseThem) {
  Start();
  ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  EXPECT_EQ(daemon_->Tenant().pages(), "2 MiB hugetlb");
}

TEST_F(PoolMemoryTest, AGroupThatMayUseNoneGetsSmallPages) {
  ASSERT_TRUE(WriteText(group_ + "/hugetlb.2MB.max", "0"));
  Start();
  ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  EXPECT_EQ(daemon_->Tenant().pages(), "4 KiB");
  EXPECT_EQ(daemon_->Tenant().pool_stalled(), "");
}

TEST_F(PoolMemoryTest, AGroupThatMayUseLessThanThePoolGetsBoth) {
  ASSERT_TRUE(WriteText(group_ + "/hugetlb.2MB.max", "20971520"));  // a slab and a quarter
  Start();
  ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  // If the daemon can see the limit, it does not begin with huge pages.
  EXPECT_TRUE(daemon_->Tenant().pages() == "2 MiB hugetlb and 4 KiB" ||
              daemon_->Tenant().pages() == "4 KiB")
      << daemon_->Tenant().pages();
}

TEST_F(PoolMemoryTest, AGroupThatMayReserveLessThanThePoolGetsSmallPages) {
  ASSERT_TRUE(WriteText(group_ + "/hugetlb.2MB.rsvd.max", "20971520"));
  Start();
  ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  EXPECT_EQ(daemon_->Tenant().pages(), "4 KiB");
}

// The daemon starts because there are free huge pages, but its group may use none of them, and
// there is no other memory.
TEST_F(PoolMemoryTest, WithoutMemoryItReportsWhyAndTriesAgain) {
  ASSERT_TRUE(WriteText(group_ + "/hugetlb.2MB.max", "0"));
  const TemporarySocketDirectory folder;
  const std::string meminfo = folder.File("meminfo");
  ASSERT_TRUE(WriteText(meminfo, "MemAvailable: 1024 kB\n"));
  Start(/*wait=*/false, [meminfo] {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(meminfo.c_str(), "/proc/meminfo", nullptr, MS_BIND, nullptr) != 0)
      _exit(98);
  });
  if (!Eventually([&] { return daemon_->Health() == "NOT_SERVING"; })) {
    const bool sees_the_group = daemon_->errors().find("does not fit") != std::string::npos;
    ASSERT_TRUE(sees_the_group) << daemon_->errors();
    GTEST_SKIP() << "on this host larderd sees the limit of its group, so it does not start at all";
  }
  const std::string why = daemon_->Tenant().pool_stalled();
  EXPECT_NE(why.find("0 of 2 slabs are populated"), std::string::npos) << why;
  EXPECT_NE(why.find("free memory or use a smaller --pool"), std::string::npos) << why;
  EXPECT_EQ(daemon_->Metric("larder_pool_stalled"), 1);
  EXPECT_NE(daemon_->errors().find("pool_stalled"), std::string::npos) << daemon_->errors();
  ASSERT_TRUE(WriteText(meminfo, "MemAvailable: 1048576 kB\n"));
  ASSERT_TRUE(Eventually([&] { return daemon_->serves(); })) << daemon_->errors();
  EXPECT_EQ(daemon_->Tenant().pool_stalled(), "");
  EXPECT_EQ(daemon_->Metric("larder_pool_stalled"), 0);
}

}  // namespace
}  // namespace larder::e2e
