#include "client/staging_area.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {

absl::StatusOr<std::unique_ptr<StagingArea>> StagingArea::Create(ByteCount bytes) {
  const uint64_t size = RoundUp(bytes.value(), kPageBytes);
  if (size == 0) return absl::InvalidArgumentError("staging_bytes is 0");
  FileDescriptor descriptor(memfd_create("larder-staging", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor) return absl::ErrnoToStatus(errno, "cannot make a staging segment");
  if (ftruncate(descriptor.get(), static_cast<off_t>(size)) != 0) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot make a staging segment of ", size, " bytes"));
  }
  if (fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return absl::ErrnoToStatus(errno, "cannot seal the staging segment");
  }
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map the staging segment");
  (void)madvise(memory, size, MADV_DONTFORK);
  return std::unique_ptr<StagingArea>(
      new StagingArea(std::move(descriptor), {static_cast<std::byte*>(memory), size}));
}

StagingArea::StagingArea(FileDescriptor descriptor, std::span<std::byte> memory)
    : descriptor_(std::move(descriptor)), memory_(memory) {
  free_.emplace(0, memory.size());
}

StagingArea::~StagingArea() { munmap(memory_.data(), memory_.size()); }

bool StagingArea::TryAllocate(uint64_t bytes, uint64_t* offset) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [at, size] = *it;
    if (size < bytes) continue;
    free_.erase(it);
    if (size > bytes) free_.emplace(at + bytes, size - bytes);
    *offset = at;
    return true;
  }
  return false;
}

absl::StatusOr<StagingArea::Chunk> StagingArea::Allocate(ByteCount bytes, TimePoint deadline) {
  const uint64_t rounded = RoundUp(bytes.value(), kPageBytes);
  if (bytes.value() == 0 || rounded > memory_.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a block of ", bytes.value(), " bytes is larger than the staging segment of ",
                     memory_.size(), ": raise SessionOptions.staging_bytes"));
  }
  MutexLock lock(mu_);
  uint64_t offset = 0;
  bool in_time = true;
  while (!TryAllocate(rounded, &offset)) {
    if (!in_time) return absl::DeadlineExceededError("no room in the staging segment in time");
    in_time = freed_.WaitUntil(mu_, deadline);
  }
  return Chunk{offset, memory_.subspan(offset, bytes.value())};
}

void StagingArea::Free(const Chunk& chunk) {
  MutexLock lock(mu_);
  const auto [added, fresh] = free_.emplace(chunk.offset, RoundUp(chunk.bytes.size(), kPageBytes));
  LARDER_CHECK(fresh);
  const auto next = std::next(added);
  if (next != free_.end() && added->first + added->second == next->first) {
    added->second += next->second;
    free_.erase(next);
  }
  if (added != free_.begin()) {
    const auto before = std::prev(added);
    LARDER_CHECK(before->first + before->second <= added->first);
    if (before->first + before->second == added->first) {
      before->second += added->second;
      free_.erase(added);
    }
  }
  freed_.NotifyAll();
}

}  // namespace larder
