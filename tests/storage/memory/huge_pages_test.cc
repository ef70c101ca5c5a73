#include "storage/memory/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/utsname.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "storage/memory/zeroed_memory.h"

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

TEST(HugePagesTest, BacksMemoryWithoutAskingKhugepaged) {
  if (!LinuxIsAtLeast(6, 1)) GTEST_SKIP() << "needs Linux 6.1";
  if (ReadText("/sys/kernel/mm/transparent_hugepage/enabled").find("[madvise]") ==
      std::string::npos)
    GTEST_SKIP() << "the host gives huge pages to all memory, or to none";
  const ZeroedMemory memory(kBytes, /*huge=*/true);
  auto* const bytes = memory.as<char>();
  for (size_t at = 0; at < kBytes; at += kHugePageBytes) bytes[at] = 1;
  if (std::stoul(Smaps(bytes, "AnonHugePages")) == 0) GTEST_SKIP() << "the host has no huge pages";
  EXPECT_EQ(std::stoul(Smaps(bytes, "AnonHugePages")) << 10, kBytes);
  // The kernel gives a process to khugepaged when memory gets the flag "hg" of MADV_HUGEPAGE.
  EXPECT_EQ(Smaps(bytes, "VmFlags").find(" hg"), std::string::npos);
}

TEST(HugePagesTest, MemoryKeepsItsContents) {
  const ZeroedMemory memory(kBytes, /*huge=*/false);
  const std::span<std::byte> bytes(memory.as<std::byte>(), kBytes);
  for (size_t at = 0; at < kBytes; at += kHugePageBytes / 2)
    std::memcpy(&bytes[at], &at, sizeof at);
  UseHugePages(bytes);
  for (size_t at = 0; at < kBytes; at += kHugePageBytes / 2)
    EXPECT_EQ(std::memcmp(&bytes[at], &at, sizeof at), 0) << at;
}

// In a process of its own, because the setting is the process's.
TEST(RefuseOtherHugePagesDeathTest, AnExceptionIsWhatUseHugePagesWasCalledFor) {
  if (!LinuxIsAtLeast(6, 18)) GTEST_SKIP() << "needs Linux 6.18";
  const auto run = [] {
    const bool refused =
        RefuseOtherHugePages() && prctl(PR_GET_THP_DISABLE, 0UL, 0UL, 0UL, 0UL) == 3;
    const ZeroedMemory memory(kBytes, /*huge=*/true);
    const bool has = std::stoul(Smaps(memory.as<const void>(), "AnonHugePages")) > 0;
    const bool never = ReadText("/sys/kernel/mm/transparent_hugepage/enabled").find("[never]") !=
                       std::string::npos;
    std::_Exit(refused && (has || never) ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace larder
