#include "storage/memory/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "storage/types.h"

namespace larder {
namespace {

constexpr size_t kBytes = 3 * kHugePageBytes;

std::string ReadText(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the value of `field` in /proc/self/smaps for the memory at `address`.
std::string Smaps(const void* address, const std::string& field) {
  std::ifstream file("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      inside = begin <= reinterpret_cast<uintptr_t>(address) &&
               reinterpret_cast<uintptr_t>(address) < end;
    if (inside && line.starts_with(field + ":")) return line.substr(field.size() + 1);
  }
  return "";
}

bool LinuxIsAtLeast(int major, int minor) {
  utsname name{};
  int has_major = 0, has_minor = 0;
  if (uname(&name) != 0 || std::sscanf(name.release, "%d.%d", &has_major, &has_minor) != 2)
    return false;
  return has_major > major || (has_major == major && has_minor >= minor);
}

constexpr int kCollapse = 25;  // MADV_COLLAPSE

// Private memory of small pages that begins at a huge page, with a byte of each huge page written.
class HugePagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    mapped_ = mmap(nullptr, kBytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped_, MAP_FAILED);
    const auto address = reinterpret_cast<uintptr_t>(mapped_);
    bytes_ = {static_cast<std::byte*>(mapped_) + (RoundUp(address, kHugePageBytes) - address),
              kBytes};
    for (size_t at = 0; at < kBytes; at += kHugePageBytes) bytes_[at] = std::byte{1};
    // If the test's own request fails as well, the kernel or the host has no huge pages to give.
    void* const probe = mmap(nullptr, 2 * kHugePageBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(probe, MAP_FAILED);
    std::memset(probe, 1, 2 * kHugePageBytes);
    const bool gives = madvise(probe, 2 * kHugePageBytes, kCollapse) == 0;
    munmap(probe, 2 * kHugePageBytes);
    if (!gives) GTEST_SKIP() << "needs Linux 6.1 and a free huge page";
    if (Smaps("AnonHugePages").empty()) GTEST_SKIP() << "needs /proc/self/smaps";
    if (ReadText("/sys/kernel/mm/transparent_hugepage/enabled").find("[madvise]") ==
        std::string::npos)
      GTEST_SKIP() << "the host gives huge pages to all memory, or to none";
  }
  void TearDown() override {
    if (mapped_ != MAP_FAILED) munmap(mapped_, kBytes + kHugePageBytes);
  }
  [[nodiscard]] std::string Smaps(const std::string& field) const {
    return larder::Smaps(bytes_.data(), field);
  }

  void* mapped_ = MAP_FAILED;
  std::span<std::byte> bytes_;
};

TEST_F(HugePagesTest, BacksMemoryThatKeepsItsContentsWithoutAskingKhugepaged) {
  for (size_t at = 0; at < kBytes; at += kHugePageBytes / 2)
    std::memcpy(&bytes_[at], &at, sizeof at);
  UseHugePages(bytes_);
  for (size_t at = 0; at < kBytes; at += kHugePageBytes / 2)
    EXPECT_EQ(std::memcmp(&bytes_[at], &at, sizeof at), 0) << at;
  EXPECT_GE(std::stoul(Smaps("AnonHugePages")) << 10, kHugePageBytes);
  // The kernel registers a process with khugepaged when memory gets the flag "hg" of MADV_HUGEPAGE.
  EXPECT_EQ(Smaps("VmFlags").find(" hg"), std::string::npos);
}

// In a process of its own, because the setting is the process's.
TEST_F(HugePagesTest, OnlyUseHugePagesGivesHugePages) {
  if (!LinuxIsAtLeast(6, 18)) GTEST_SKIP() << "needs Linux 6.18";
  const auto run = [this] {
    constexpr int kExceptAdvised = 3;  // 1 | PR_THP_DISABLE_EXCEPT_ADVISED
    const bool refused =
        RefuseOtherHugePages() && prctl(PR_GET_THP_DISABLE, 0UL, 0UL, 0UL, 0UL) == kExceptAdvised;
    UseHugePages(bytes_);
    std::_Exit(refused && std::stoul(Smaps("AnonHugePages")) > 0 ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace larder
