#include "storage/memory/zeroed_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

#include "storage/check.h"
#include "storage/memory/huge_pages.h"
#include "storage/types.h"

namespace larder {
namespace {

std::byte* Map(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LARDER_CHECK(memory != MAP_FAILED);
  return static_cast<std::byte*>(memory);
}

// Returns memory that begins at a multiple of `align`.  Maps `align` bytes more than needed, and
// unmaps the bytes before and after the aligned part.
std::byte* MapAligned(size_t bytes, size_t align) {
  std::byte* const mapped = Map(bytes + align);
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  const size_t before = RoundUp(address, align) - address;
  if (before > 0) munmap(mapped, before);
  if (before < align) munmap(mapped + before + bytes, align - before);
  return mapped + before;
}

}  // namespace

ZeroedMemory::ZeroedMemory(size_t bytes, bool huge) : bytes_(RoundUp(bytes, kPageBytes)) {
  const bool aligned = bytes_ >= kHugePageBytes;
  memory_ = aligned ? MapAligned(bytes_, kHugePageBytes) : Map(bytes_);
  if (!aligned) return;
  if (huge) {
    UseHugePages({static_cast<std::byte*>(memory_), bytes_});
  } else {
    (void)madvise(memory_, bytes_, MADV_NOHUGEPAGE);  // fails if the kernel has no huge pages
  }
}

ZeroedMemory::~ZeroedMemory() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

ZeroedMemory::ZeroedMemory(ZeroedMemory&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

ZeroedMemory& ZeroedMemory::operator=(ZeroedMemory&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace larder
