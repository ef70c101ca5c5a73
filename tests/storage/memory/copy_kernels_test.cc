#include "storage/memory/copy_kernels.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "storage/format/layout.h"

namespace larder {
namespace {

constexpr std::byte kGuard{0xA5};
constexpr size_t kGuardBytes = 256;

std::vector<std::byte> Pattern(size_t bytes) {
  std::vector<std::byte> out(bytes);
  uint32_t state = 1;
  for (std::byte& b : out)
    b = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
  return out;
}

// Lengths around every unrolled step and threshold, at every kind of misalignment, with guard bytes
// on both sides.
template <typename Copy>
void ForEachShape(const Copy& copy) {
  const std::vector<std::byte> source = Pattern(200'000);
  for (const size_t bytes : {0, 1, 63, 64, 127, 128, 129, 255, 256, 257, 4095, 4096, 4097, 4223,
                             6143, 6144, 65'537, 131'072 + 191}) {
    for (const size_t from_offset : {0, 1, 31, 64}) {
      for (const size_t to_offset : {0, 1, 15, 32, 63}) {
        std::vector<std::byte> target(bytes + to_offset + 2 * kGuardBytes, kGuard);
        const std::span<const std::byte> from = std::span(source).subspan(from_offset, bytes);
        const std::span<std::byte> to = std::span(target).subspan(kGuardBytes + to_offset, bytes);
        copy(to, from);
        StoreFence();
        ASSERT_TRUE(std::equal(from.begin(), from.end(), to.begin()))
            << bytes << " " << from_offset << " " << to_offset;
        for (size_t i = 0; i < kGuardBytes; ++i) {
          ASSERT_EQ(target[i], kGuard) << bytes;
          ASSERT_EQ(target[target.size() - 1 - i], kGuard) << bytes;
        }
      }
    }
  }
}

TEST(CopyKernels, CopyEveryLengthAndAlignment) {
  for (const CopyKernel& kernel : AllKernels()) {
    SCOPED_TRACE(kernel.name());
    ForEachShape([&](auto to, auto from) { kernel.Copy(to, from); });
  }
}

// The kernels of this CPU, and one that has no combined copy and hash.
std::vector<CopyKernel> HashingKernels() {
  std::vector<CopyKernel> kernels = AllKernels();
  kernels.push_back(MemcpyKernel());
  return kernels;
}

TEST(CopyKernels, CopyAndHashCopiesAndHashes) {
  for (const CopyKernel& kernel : HashingKernels()) {
    SCOPED_TRACE(kernel.name());
    ForEachShape(
        [&](auto to, auto from) { ASSERT_EQ(kernel.CopyAndHash(to, from), HashBytes(from)); });
  }
}

// A client may change staged bytes while the daemon copies them: the hash must be of the bytes that
// were stored.
TEST(CopyKernels, CopyAndHashHashesWhatItWroteWhileTheSourceChanges) {
  constexpr size_t kBytes = 256 << 10;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::span<std::byte> source(static_cast<std::byte*>(memory), kBytes);
  const pid_t writer = fork();
  if (writer == 0) {
    for (int round = 0;; ++round) std::memset(source.data(), round, source.size());
  }
  std::vector<std::byte> target(kBytes);
  for (const CopyKernel& kernel : HashingKernels()) {
    SCOPED_TRACE(kernel.name());
    for (int i = 0; i < 50; ++i) {
      const uint64_t hash = kernel.CopyAndHash(target, source);
      StoreFence();
      EXPECT_EQ(hash, HashBytes(target));
    }
  }
  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  munmap(memory, kBytes);
}

TEST(CopyKernels, MemcpyIsAlwaysAvailableAndTheChosenKernelIsListed) {
  const std::vector<CopyKernel> kernels = AllKernels();
  ASSERT_FALSE(kernels.empty());
  EXPECT_EQ(kernels[0].name(), std::string_view("memcpy"));
  const CopyKernel chosen = ChooseKernel();
  EXPECT_TRUE(std::any_of(kernels.begin(), kernels.end(), [&](const CopyKernel& k) {
    return k.name() == std::string_view(chosen.name());
  }));
}

}  // namespace
}  // namespace larder
