#include "server/sessions/session_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/memory/memfd.h"

namespace larder {
namespace {

static_assert(std::atomic_ref<uint64_t>::is_always_lock_free, "shared between processes");

}  // namespace

SessionPage::SessionPage(FileDescriptor memfd, std::span<uint64_t> words)
    : memfd_(std::move(memfd)), words_(words) {
  MutexLock lock(mu_);
  free_.reserve(kWords);
  for (uint32_t i = kWords; i > 0; --i) free_.push_back(i - 1);
}

SessionPage::~SessionPage() { munmap(words_.data(), kBytes.value()); }

absl::StatusOr<std::unique_ptr<SessionPage>> SessionPage::Create() {
  FileDescriptor memfd(OpenMemfd("larder-session"));
  if (!memfd) return absl::ErrnoToStatus(errno, "memfd_create of a session page");
  if (ftruncate(memfd.get(), static_cast<off_t>(kBytes.value())) != 0) {
    return absl::ErrnoToStatus(errno, "sizing a session page");
  }
  void* base = mmap(nullptr, kBytes.value(), PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap of a session page");
  auto page = absl::WrapUnique(
      new SessionPage(std::move(memfd), std::span(static_cast<uint64_t*>(base), kWords)));
  // A forked child of the daemon must not inherit the mapping, and setting a word must not cause a
  // page fault.
  if (madvise(base, kBytes.value(), MADV_DONTFORK) != 0 ||
      madvise(base, kBytes.value(), MADV_POPULATE_WRITE) != 0) {
    return absl::ErrnoToStatus(errno, "madvise of a session page");
  }
  // F_SEAL_FUTURE_WRITE does not affect the daemon's mapping, which exists already.
  if (fcntl(page->memfd_.get(), F_ADD_SEALS,
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    return absl::ErrnoToStatus(errno, "sealing a session page");
  }
  return page;
}

std::optional<uint32_t> SessionPage::AllocateWord(uint64_t value) {
  LARDER_CHECK(value != 0);
  MutexLock lock(mu_);
  if (free_.empty()) return std::nullopt;
  const uint32_t index = free_.back();
  free_.pop_back();
  Store(index, value);
  return index;
}

void SessionPage::Set(uint32_t index, uint64_t value) {
  LARDER_CHECK(value != 0);
  MutexLock lock(mu_);
  LARDER_CHECK(Load(index) != 0);
  Store(index, value);
}

bool SessionPage::Clear(uint32_t index, uint64_t value) {
  LARDER_CHECK(value != 0);
  MutexLock lock(mu_);
  if (Load(index) != value) return false;
  Store(index, 0);
  free_.push_back(index);
  return true;
}

void SessionPage::ClearAll() {
  MutexLock lock(mu_);
  for (uint32_t i = 0; i < kWords; ++i) {
    if (Load(i) == 0) continue;
    Store(i, 0);
    free_.push_back(i);
  }
}

void SessionPage::Store(uint32_t index, uint64_t value) {
  std::atomic_ref(words_[index]).store(value, std::memory_order_release);
}

uint64_t SessionPage::Load(uint32_t index) const {
  LARDER_CHECK(index < kWords);
  return std::atomic_ref(words_[index]).load(std::memory_order_acquire);
}

absl::StatusOr<int> SessionPage::OpenDescriptor() const {
  // Unlike dup, reopening creates another open file description, which shares neither access mode
  // nor offset with the daemon's.
  const std::string path = absl::StrCat("/proc/self/fd/", memfd_.get());
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "reopening a session page through /proc");
  return fd;
}

}  // namespace larder
