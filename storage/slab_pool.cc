#include "storage/slab_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "storage/check.h"

// Newer than the C library's headers of the oldest host that we build on.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace larder {
namespace {

constexpr ByteCount kHugePage = MiB(2);
constexpr ByteCount kPopulatePiece = MiB(8);  // a few milliseconds: what stopping waits for
constexpr uint64_t kSlabsMax = 65535;         // SlabId is 16 bits
constexpr size_t kNameBytesMax = 200;         // memfd_create takes 249, the slab's number included

// For people: whole GiB from 10 GiB on, MiB below.
std::string Readable(ByteCount bytes) {
  const uint64_t mib = bytes.value() >> 20;
  if (mib >= 10 * 1024 || (mib >= 1024 && mib % 1024 == 0)) return absl::StrCat(mib >> 10, " GiB");
  return absl::StrCat(mib, " MiB");
}

// As --pool takes it: a size that leaves the host a fifth of what it has.
std::string PoolAdvice(ByteCount available) {
  const uint64_t mib = (available.value() >> 20) / 5 * 4;
  return mib >= 1024 ? absl::StrCat(mib >> 10, "GiB") : absl::StrCat(mib, "MiB");
}

absl::Status DoesNotFit(ByteCount pool, ByteCount available) {
  return absl::ResourceExhaustedError(
      absl::StrCat("pool of ", Readable(pool), " does not fit: ", Readable(available),
                   " of memory available; use --pool ", PoolAdvice(available),
                   " or less, or give the daemon more memory"));
}

absl::Status DescriptorError(int error, absl::string_view what) {
  if (error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what,
                     ": too many open files; raise LimitNOFILE= (ulimit -n) or use larger "
                     "slabs"));
  }
  return absl::ErrnoToStatus(error, what);
}

// `flags`: of memfd_create, besides MFD_CLOEXEC and MFD_ALLOW_SEALING.
int OpenMemfd(const std::string& name, unsigned flags) {
  // Linux 6.3 and newer: not executable, and no way to make it so; some hosts insist on it.
  const int fd =
      memfd_create(name.c_str(), flags | MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd >= 0 || errno != EINVAL) return fd;
  return memfd_create(name.c_str(), flags | MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

}  // namespace

absl::Status SlabPool::Options::Validate() const {
  if (bytes < kHugePage) {
    return absl::InvalidArgumentError("a pool has at least 2 MiB; use a larger --pool");
  }
  if (slab_bytes.value() % kHugePage.value() != 0) {
    return absl::InvalidArgumentError("the slab size must be a multiple of 2 MiB (0: chosen)");
  }
  const ByteCount slab = slab_bytes == ByteCount(0) ? DefaultSlabBytes(bytes) : slab_bytes;
  if (slab > bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a slab of ", Readable(slab),
                                                   " does not fit in a pool of ", Readable(bytes),
                                                   "; use smaller slabs or a larger --pool"));
  }
  if (slab >= kSlabBytesLimit) {
    return absl::InvalidArgumentError("a slab is below 64 GiB; use smaller slabs");
  }
  if (bytes.value() / slab.value() > kSlabsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pool has at most ", kSlabsMax, " slabs; use larger slabs"));
  }
  if (name.size() > kNameBytesMax || name.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pool's name has at most ", kNameBytesMax, " bytes and no NUL"));
  }
  return absl::OkStatus();
}

ByteCount SlabPool::DefaultSlabBytes(ByteCount pool) {
  const ByteCount aim = std::clamp(ByteCount(pool.value() / 32), MiB(64), GiB(1));
  const uint64_t count = std::max<uint64_t>(1, pool.value() / aim.value());
  const uint64_t bytes = pool.value() / count / kHugePage.value() * kHugePage.value();
  return std::max(ByteCount(bytes), kHugePage);
}

SlabPool::SlabPool(const Options& options, ByteCount slab_bytes, bool huge)
    : options_(options), slab_bytes_(slab_bytes), huge_(huge) {}

SlabPool::~SlabPool() {
  StopPopulating();
  for (const Slab& slab : slabs_) {
    if (slab.base != nullptr) munmap(slab.base, slab_bytes_.value());
    close(slab.fd);
  }
}

absl::StatusOr<std::unique_ptr<SlabPool>> SlabPool::Create(const Options& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  const ByteCount slab =
      options.slab_bytes == ByteCount(0) ? DefaultSlabBytes(options.bytes) : options.slab_bytes;
  const ByteCount total(options.bytes.value() / slab.value() * slab.value());
  const HostMemory memory = options.host_memory();
  if (options.huge_pages && memory.huge_pages_free >= total) {
    // Mapping reserves the pages.  Somebody else may take them first: then small ones have to do.
    auto pool = Make(options, slab, /*huge=*/true);
    if (pool.ok()) return pool;
  }
  if (total > memory.available) return DoesNotFit(total, memory.available);
  return Make(options, slab, /*huge=*/false);
}

absl::StatusOr<std::unique_ptr<SlabPool>> SlabPool::Make(const Options& options,
                                                         ByteCount slab_bytes, bool huge) {
  auto pool = absl::WrapUnique(new SlabPool(options, slab_bytes, huge));
  const uint64_t count = options.bytes.value() / slab_bytes.value();
  pool->slabs_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    if (absl::Status status = pool->AddSlab(); !status.ok()) return status;
  }
  return pool;
}

absl::Status SlabPool::AddSlab() {
  const std::string name = absl::StrCat(options_.name, "-", slabs_.size());
  const int fd = OpenMemfd(name, huge_ ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
  if (fd < 0) return DescriptorError(errno, "memfd_create of a slab");
  Slab& slab = slabs_.emplace_back(Slab{.fd = fd});  // from here the destructor cleans up
  if (fchmod(fd, 0600) != 0) return absl::ErrnoToStatus(errno, "fchmod of a slab");
  if (ftruncate(fd, static_cast<off_t>(slab_bytes_.value())) != 0) {
    return absl::ErrnoToStatus(errno, "ftruncate of a slab");
  }
  void* base = mmap(nullptr, slab_bytes_.value(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap of a slab");
  slab.base = static_cast<std::byte*>(base);
  // A forked child would keep the slab's memory, and a core dump would carry all tenants' bytes.
  if (madvise(base, slab_bytes_.value(), MADV_DONTFORK) != 0 ||
      madvise(base, slab_bytes_.value(), MADV_DONTDUMP) != 0) {
    return absl::ErrnoToStatus(errno, "madvise of a slab");
  }
  // F_SEAL_FUTURE_WRITE spares mappings that exist: ours must, by now.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                    (options_.seal_future_write ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(fd, F_ADD_SEALS, seals) != 0) return absl::ErrnoToStatus(errno, "sealing a slab");
  return absl::OkStatus();
}

void SlabPool::StartPopulating(std::function<void(SlabId)> online,
                               std::function<void(const absl::Status&)> ended) {
  LARDER_CHECK(!populating_.exchange(true));
  populator_ = std::thread([this, online = std::move(online), ended = std::move(ended)] {
    pthread_setname_np(pthread_self(), "pool-populate");
    const absl::Status status = PopulateFrom(online);  // also kept in populate_status_
    if (ended) ended(status);
  });
}

void SlabPool::StopPopulating() {
  stop_ = true;
  if (populator_.joinable()) populator_.join();
}

absl::Status SlabPool::PopulateAll() {
  LARDER_CHECK(!populating_.exchange(true));
  return PopulateFrom([](SlabId) {});
}

absl::Status SlabPool::PopulateFrom(const std::function<void(SlabId)>& online) {
  for (uint32_t i = 0; i < slab_count(); ++i) {
    const absl::Status status = Populate(i);
    if (stop_) return absl::CancelledError("the pool is being destroyed");
    if (!status.ok()) {
      const absl::Status kept(status.code(),
                              absl::StrCat("populating stopped after ", i, " of ", slab_count(),
                                           " slabs, which serve: ", status.message()));
      MutexLock lock(mu_);
      populate_status_ = kept;
      return kept;
    }
    online_.store(i + 1, std::memory_order_release);
    online(static_cast<SlabId>(i));
  }
  return absl::OkStatus();
}

absl::Status SlabPool::Populate(uint32_t index) {
  const Slab& slab = slabs_[index];
  // Others may have taken the memory since Create: better to stop than to be killed for it.
  if (!huge_) {
    const ByteCount available = options_.host_memory().available;
    if (available < slab_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the next slab needs ", Readable(slab_bytes_), ", ", Readable(available),
                       " of memory available; use a smaller --pool or free memory, and restart"));
    }
  }
  uint64_t done = 0;
  while (done < slab_bytes_.value()) {
    if (stop_) return absl::CancelledError("stopped");
    const uint64_t piece = std::min(kPopulatePiece.value(), slab_bytes_.value() - done);
    // Unlike touching the pages, this reports what would otherwise be a SIGBUS.
    if (madvise(slab.base + done, piece, MADV_POPULATE_WRITE) == 0) {
      done += piece;
    } else if (errno == EINVAL) {
      return absl::FailedPreconditionError("no MADV_POPULATE_WRITE: use Linux 5.14 or newer");
    } else if (errno != EINTR && errno != EAGAIN) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the host gave no memory (errno ", errno,
                       "); use a smaller --pool or free memory, and restart"));
    }
  }
  // Hugetlb pages are never swapped, so they count as locked.
  const bool locked = options_.lock_memory && (huge_ || mlock(slab.base, slab_bytes_.value()) == 0);
  locked_ = locked && (index == 0 || locked_);
  return absl::OkStatus();
}

absl::Status SlabPool::populate_status() const {
  MutexLock lock(mu_);
  return populate_status_;
}

const char* SlabPool::pages() const { return huge_ ? "2 MiB hugetlb" : "4 KiB"; }

std::span<std::byte> SlabPool::Bytes(const Extent& extent) const {
  const auto index = static_cast<uint32_t>(extent.slab);
  LARDER_CHECK(index < online_count());
  LARDER_CHECK(extent.offset() + extent.bytes().value() <= slab_bytes_.value());
  return {slabs_[index].base + extent.offset(), extent.bytes().value()};
}

absl::StatusOr<int> SlabPool::OpenDescriptor(SlabId slab, bool writable) const {
  const auto index = static_cast<uint32_t>(slab);
  if (index >= online_count()) {
    return absl::NotFoundError(absl::StrCat("slab ", index, " does not exist or is not online"));
  }
  if (writable && options_.seal_future_write) {
    return absl::FailedPreconditionError("the pool is sealed against writers; use staged writes");
  }
  // Reopening, unlike dup, gives another open file: no rights and no offset shared with ours.
  const std::string path = absl::StrCat("/proc/self/fd/", slabs_[index].fd);
  const int fd = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (fd < 0) return DescriptorError(errno, "reopening a slab through /proc");
  return fd;
}

}  // namespace larder
