#include "server/staging_table.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace larder {
namespace {

absl::Status CheckMemfd(int fd, ByteCount claimed) {
  const int seals = fcntl(fd, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & kNeeded) != kNeeded) {
    return absl::InvalidArgumentError(
        "a staging segment is a memfd with the seals F_SEAL_SHRINK and F_SEAL_GROW");
  }
  struct statfs system {};
  if (fstatfs(fd, &system) != 0) return absl::ErrnoToStatus(errno, "fstatfs of a staging segment");
  if (system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("a staging segment has no huge pages (MFD_HUGETLB)");
  }
  struct stat file {};
  if (fstat(fd, &file) != 0) return absl::ErrnoToStatus(errno, "fstat of a staging segment");
  if (file.st_size <= 0 || static_cast<uint64_t>(file.st_size) != claimed.value()) {
    return absl::InvalidArgumentError(absl::StrCat("a staging segment of ", file.st_size,
                                                   " bytes is announced with ", claimed.value()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const StagingSegment>> Map(int fd, ByteCount bytes) {
  const size_t size = bytes.value();
  void* base = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return errno == ENOMEM ? absl::ResourceExhaustedError("no address space for a staging segment")
                           : absl::InvalidArgumentError(absl::StrCat(
                                 "a staging segment that cannot be read (errno ", errno, ")"));
  }
  auto segment =
      std::make_shared<const StagingSegment>(std::span(static_cast<const std::byte*>(base), size));
  if (madvise(base, size, MADV_DONTFORK) != 0 || madvise(base, size, MADV_DONTDUMP) != 0) {
    return absl::ErrnoToStatus(errno, "madvise of a staging segment");
  }
  return segment;
}

}  // namespace

StagingSegment::~StagingSegment() {
  munmap(const_cast<std::byte*>(mapping_.data()), mapping_.size());
}

absl::Status StagingTable::CheckRoom(ProcessId process, ByteCount bytes) const {
  const auto found = processes_.find(process);
  const size_t segments = found == processes_.end() ? 0 : found->second.segments.size();
  const ByteCount held = found == processes_.end() ? ByteCount(0) : found->second.bytes;
  if (segments >= options_.process_segments_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a process has at most ", options_.process_segments_max, " staging segments; drop one"));
  }
  // Sums that cannot overflow: what is held is below its limit.
  if (bytes > options_.process_bytes_max || held > options_.process_bytes_max - bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a process has at most ", options_.process_bytes_max.value(),
                     " bytes of staging; use a smaller segment, or drop one"));
  }
  if (bytes > options_.total_bytes_max || total_ > options_.total_bytes_max - bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the daemon maps at most ",
                                                     options_.total_bytes_max.value(),
                                                     " bytes of staging in all; try again later"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> StagingTable::Add(ProcessId process, FileDescriptor memfd,
                                           ByteCount claimed) {
  if (absl::Status status = CheckMemfd(memfd.get(), claimed); !status.ok()) return status;
  MutexLock lock(mu_);
  if (absl::Status status = CheckRoom(process, claimed); !status.ok()) return status;
  if (last_id_ == std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError("no more staging segments: restart the daemon");
  }
  auto segment = Map(memfd.get(), claimed);
  if (!segment.ok()) return segment.status();
  const uint32_t id = ++last_id_;
  Process& owner = processes_[process];
  owner.segments.emplace(id, *std::move(segment));
  owner.bytes += claimed;
  total_ += claimed;
  return id;
}

std::shared_ptr<const StagingSegment> StagingTable::Get(ProcessId process, uint32_t id) const {
  MutexLock lock(mu_);
  const auto owner = processes_.find(process);
  if (owner == processes_.end()) return nullptr;
  const auto found = owner->second.segments.find(id);
  return found == owner->second.segments.end() ? nullptr : found->second;
}

bool StagingTable::Drop(ProcessId process, uint32_t id) {
  std::shared_ptr<const StagingSegment> dropped;  // unmapped without the lock
  MutexLock lock(mu_);
  const auto owner = processes_.find(process);
  if (owner == processes_.end()) return false;
  const auto found = owner->second.segments.find(id);
  if (found == owner->second.segments.end()) return false;
  dropped = std::move(found->second);
  owner->second.segments.erase(found);
  const ByteCount bytes(dropped->bytes().size());
  owner->second.bytes -= bytes;
  total_ -= bytes;
  if (owner->second.segments.empty()) processes_.erase(owner);
  return true;
}

void StagingTable::DropProcess(ProcessId process) {
  Process dropped;  // unmapped without the lock
  MutexLock lock(mu_);
  const auto owner = processes_.find(process);
  if (owner == processes_.end()) return;
  dropped = std::move(owner->second);
  processes_.erase(owner);
  total_ -= dropped.bytes;
}

StagingTable::Counts StagingTable::counts() const {
  MutexLock lock(mu_);
  Counts counts{.processes = processes_.size(), .bytes = total_};
  for (const auto& [id, process] : processes_) counts.segments += process.segments.size();
  return counts;
}

}  // namespace larder
