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
#include <string>

#include "storage/check.h"

namespace larder {
namespace {

// Returns whether the host's setting of transparent huge pages is "always", "madvise" or "never".
bool HostIsSetTo(const std::string& setting) {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string settings;
  return std::getline(file, settings) && settings.find("[" + setting + "]") != std::string::npos;
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

// Private memory with three whole huge pages, a byte of each of which has been written.
class Memory {
 public:
  Memory()
      : base_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    LARDER_CHECK(base_ != MAP_FAILED);
    // Memory with another setting than its neighbours' has lines of its own in smaps.
    LARDER_CHECK(madvise(base_, kBytes, MADV_DONTDUMP) == 0);
    for (size_t at = 0; at < kBytes; at += kHugePageBytes) bytes()[at] = std::byte{1};
  }
  ~Memory() { munmap(base_, kBytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(base_), kBytes};
  }
  [[nodiscard]] size_t huge_bytes() const {
    return std::stoul(Smaps(base_, "AnonHugePages")) << 10;
  }
  // Returns whether it has the flag of MADV_HUGEPAGE, with which the kernel registers the process
  // with khugepaged.
  [[nodiscard]] bool asks_khugepaged() const {
    return Smaps(base_, "VmFlags").find(" hg") != std::string::npos;
  }

 private:
  static constexpr size_t kBytes = 4 * kHugePageBytes;
  void* const base_;
};

// Returns why UseHugePages can do nothing here, or an empty string.
std::string WhyNone() {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const Memory probe;
  if (Smaps(probe.bytes().data(), "AnonHugePages").empty()) return "/proc has no smaps";
  if (HostIsSetTo("never")) return "the host's setting of transparent huge pages is never";
  if (madvise(probe.bytes().data(), probe.bytes().size(), kCollapse) != 0)
    return "Linux before 6.1, or the host has no huge page left";
  return "";
}

TEST(HugePagesTest, BacksMemoryThatKeepsItsContentsWithoutAskingKhugepaged) {
  if (const std::string why = WhyNone(); !why.empty()) GTEST_SKIP() << why;
  const Memory memory;
  const std::span<std::byte> bytes = memory.bytes();
  for (size_t at = 0; at < bytes.size(); at += kHugePageBytes / 2)
    std::memcpy(&bytes[at], &at, sizeof at);
  UseHugePages(bytes);
  for (size_t at = 0; at < bytes.size(); at += kHugePageBytes / 2)
    EXPECT_EQ(std::memcmp(&bytes[at], &at, sizeof at), 0) << at;
  EXPECT_GE(memory.huge_bytes(), kHugePageBytes);
  EXPECT_FALSE(memory.asks_khugepaged());
}

// In a process of its own, because the setting is the process's.
TEST(RefuseOtherHugePagesDeathTest, OnlyUseHugePagesGivesHugePages) {
  if (!LinuxIsAtLeast(6, 18)) GTEST_SKIP() << "Linux before 6.18";
  if (const std::string why = WhyNone(); !why.empty()) GTEST_SKIP() << why;
  const auto run = [] {
    constexpr int kExceptAdvised = 3;  // 1 | PR_THP_DISABLE_EXCEPT_ADVISED
    const bool refused =
        RefuseOtherHugePages() && prctl(PR_GET_THP_DISABLE, 0UL, 0UL, 0UL, 0UL) == kExceptAdvised;
    const Memory memory;
    const bool none_yet = memory.huge_bytes() == 0;
    UseHugePages(memory.bytes());
    std::_Exit(refused && none_yet && memory.huge_bytes() > 0 ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace larder
