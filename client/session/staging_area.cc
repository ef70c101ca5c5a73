#include "client/session/staging_area.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {

absl::StatusOr<std::shared_ptr<StagingArea>> StagingArea::Create(StagingMemory memory,
                                                                 std::string lacking) {
  const size_t size = memory.bytes.value();
  struct stat file {};
  if (fstat(memory.descriptor.get(), &file) != 0)
    return absl::ErrnoToStatus(errno, "cannot read the size of the staging segment");
  if (size == 0 || file.st_size < 0 || static_cast<uint64_t>(file.st_size) != size) {
    return absl::InternalError(absl::StrCat("the daemon handed out a staging segment of ",
                                            file.st_size, " bytes but announced ", size));
  }
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.descriptor.get(), 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map the staging segment");
  std::shared_ptr<StagingArea> area(
      new StagingArea(memory.id, {static_cast<std::byte*>(base), size}, std::move(lacking)));
  (void)madvise(base, size, MADV_DONTFORK);
  (void)madvise(base, size, MADV_DONTDUMP);
  return area;
}

StagingArea::StagingArea(uint32_t id, std::span<std::byte> memory, std::string lacking)
    : id_(id), memory_(memory), lacking_(std::move(lacking)) {
  free_.emplace(0, memory.size());
}

StagingArea::~StagingArea() {
  if (!fork_guard_.left()) munmap(memory_.data(), memory_.size());
}

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
                     memory_.size(), ": ",
                     lacking_.empty() ? "raise SessionOptions.staging_bytes"
                                      : "larderd had no more when this session attached: it "
                                        "said: ",
                     lacking_));
  }
  MutexLock lock(mu_);
  uint64_t offset = 0;
  bool in_time = true;
  while (!TryAllocate(rounded, &offset)) {
    if (!in_time)
      return absl::DeadlineExceededError(
          "no part of the staging segment became free before the call's deadline");
    in_time = freed_.WaitUntil(mu_, deadline);
  }
  return Chunk{offset, memory_.subspan(offset, bytes.value())};
}

absl::StatusOr<std::shared_ptr<const StagingRoom>> StagingArea::AllocateRoom(ByteCount bytes,
                                                                             TimePoint deadline) {
  LARDER_ASSIGN_OR_RETURN(const Chunk chunk, Allocate(bytes, deadline));
  return std::make_shared<const StagingRoom>(shared_from_this(), chunk);
}

void StagingArea::Free(const Chunk& chunk) {
  if (fork_guard_.left()) return;
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
