// The memory that a burst of messages leaves free is returned to the kernel, even if the process
// does not grow further.
#include "server/runtime/malloc_tuning.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
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

}  // namespace
}  // namespace larder
