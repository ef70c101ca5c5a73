// The memory that a burst of messages leaves free is returned to the kernel, even if the process
// does not grow further.
#include "server/runtime/malloc_tuning.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace larder {
namespace {

constexpr size_t kMiB = 1 << 20;

size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Allocates `bytes` from the heap and writes to all of them.
std::vector<std::unique_ptr<char[]>> Burst(size_t bytes) {
  constexpr size_t kPiece = 16 << 10;
  std::vector<std::unique_ptr<char[]>> pieces;
  for (size_t done = 0; done < bytes; done += kPiece) {
    pieces.emplace_back(new char[kPiece]);
    std::memset(pieces.back().get(), 1, kPiece);
  }
  return pieces;
}

TEST(MallocTrimmerTest, ReturnsTheMemoryOfABurstToTheKernel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer replaces the heap";
#endif
  MallocTrimmer heap;
  heap.Check();
  std::vector<std::unique_ptr<char[]>> burst = Burst(64 * kMiB);
  heap.Check();  // all of it is in use: the process has grown and can return nothing
  const size_t grown = ResidentBytes();

  // The last piece prevents the allocator from shrinking the heap below it.
  burst.erase(burst.begin(), burst.end() - 1);
  ASSERT_GT(ResidentBytes() + 8 * kMiB, grown);
  heap.Check();
  EXPECT_LT(ResidentBytes() + 48 * kMiB, grown);
}

// Returns the lines of the process's memory map for private, writable memory without a file.
std::vector<std::string> WritableMemory() {
  std::ifstream file("/proc/self/maps");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.find(" rw-p 00000000 00:00 0") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

size_t SizeOf(const std::string& line) {
  size_t begin = 0, end = 0;
  return std::sscanf(line.c_str(), "%zx-%zx", &begin, &end) == 2 ? end - begin : 0;
}

// The map changes whenever glibc makes more of an arena writable.  This test runs in a process of
// its own, because KeepHeapWarm must come before the first thread.
TEST(KeepHeapWarmDeathTest, AThreadThatAllocatesDoesNotChangeTheMemoryMap) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer replaces the heap";
#endif
  const auto run = [] {
    const size_t before = ResidentBytes();
    KeepHeapWarm();
    const bool little = ResidentBytes() < before + 2 * kMiB;
    size_t ready = 0;
    for (const std::string& line : WritableMemory()) ready += SizeOf(line) >= kHeapReadyBytes;
    bool changed = true;
    std::thread([&changed] {
      const auto first = Burst(kMiB);
      const std::vector<std::string> map = WritableMemory();
      const auto second = Burst(32 * kMiB);
      changed = WritableMemory() != map;
    }).join();
    std::fprintf(stderr, "%zu arenas ready, %s, %s", ready, changed ? "changed" : "unchanged",
                 little ? "little used" : "much used");
    std::_Exit(ready + 1 >= kHeapArenasLeast && !changed && little ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "arenas ready, unchanged, little used");
}

}  // namespace
}  // namespace larder
