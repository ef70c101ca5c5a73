#include "storage/memory/slab_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/memory/memfd.h"
#include "storage/status_macros.h"
#include "storage/thread_priority.h"

// This is newer than the C library's headers on the oldest host that we build on.
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace larder {
namespace {

constexpr ByteCount kHugePage = MiB(2);
// The thread that populates looks before each piece of this size whether it is to stop.
constexpr ByteCount kPopulatePiece = MiB(8);
constexpr uint64_t kSlabsMax = 65535;  // SlabId is 16 bits
constexpr size_t kNameBytesMax = 200;  // memfd_create allows 249, including the slab's number

// Returns a size for messages, in GiB or MiB, rounded down.
std::string Readable(ByteCount bytes) {
  const uint64_t mib = bytes.value() >> 20;
  if (mib >= 10 * 1024 || (mib >= 1024 && mib % 1024 == 0)) return absl::StrCat(mib >> 10, " GiB");
  return absl::StrCat(mib, " MiB");
}

// Returns a size in the form that --pool accepts.  It leaves the host at least a fifth of the
// available memory.
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

}  // namespace

absl::Status SlabPool::Options::Validate() const {
  if (bytes < kHugePage) {
    return absl::InvalidArgumentError("a pool must have at least 2 MiB; use a larger --pool");
  }
  if (slab_bytes.value() % kHugePage.value() != 0) {
    return absl::InvalidArgumentError(
        "the slab size must be a multiple of 2 MiB, or 0 to let the daemon choose it");
  }
  const ByteCount slab = slab_bytes == ByteCount(0) ? DefaultSlabBytes(bytes) : slab_bytes;
  if (slab > bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a slab of ", Readable(slab),
                                                   " does not fit in a pool of ", Readable(bytes),
                                                   "; use smaller slabs or a larger --pool"));
  }
  if (slab >= kSlabBytesLimit) {
    return absl::InvalidArgumentError("a slab must be below 64 GiB; use smaller slabs");
  }
  if (bytes.value() / slab.value() > kSlabsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pool can have at most ", kSlabsMax, " slabs; use larger slabs"));
  }
  if (name.size() > kNameBytesMax || name.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pool's name can have at most ", kNameBytesMax, " bytes and no NUL"));
  }
  return absl::OkStatus();
}

ByteCount SlabPool::DefaultSlabBytes(ByteCount pool) {
  const ByteCount aim = std::clamp(ByteCount(pool.value() / 32), MiB(64), GiB(1));
  const uint64_t count = std::max<uint64_t>(1, pool.value() / aim.value());
  const uint64_t bytes = pool.value() / count / kHugePage.value() * kHugePage.value();
  return std::max(ByteCount(bytes), kHugePage);
}

SlabPool::SlabPool(const Options& options, ByteCount slab_bytes)
    : options_(options), slab_bytes_(slab_bytes) {}

SlabPool::~SlabPool() {
  StopPopulating();
  for (Slab& slab : slabs_) Release(slab);
}

void SlabPool::Release(Slab& slab) const {
  if (slab.base != nullptr) munmap(slab.base, slab_bytes_.value());
  if (slab.fd >= 0) close(slab.fd);
  slab = Slab{};
}

absl::StatusOr<std::unique_ptr<SlabPool>> SlabPool::Create(const Options& options) {
  LARDER_RETURN_IF_ERROR(options.Validate());
  const ByteCount slab =
      options.slab_bytes == ByteCount(0) ? DefaultSlabBytes(options.bytes) : options.slab_bytes;
  const ByteCount total(options.bytes.value() / slab.value() * slab.value());
  const HostMemory memory = options.host_memory();
  if (options.huge_pages && memory.huge_pages_free >= total) {
    // The mapping of a slab reserves its huge pages.  If making the slabs fails, for example
    // because another process took huge pages first, Create tries small pages.
    auto pool = Make(options, slab, /*huge=*/true);
    if (pool.ok()) return pool;
  }
  if (total > memory.available) return DoesNotFit(total, memory.available);
  return Make(options, slab, /*huge=*/false);
}

absl::StatusOr<std::unique_ptr<SlabPool>> SlabPool::Make(const Options& options,
                                                         ByteCount slab_bytes, bool huge) {
  auto pool = absl::WrapUnique(new SlabPool(options, slab_bytes));
  const uint64_t count = options.bytes.value() / slab_bytes.value();
  pool->slabs_.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    LARDER_RETURN_IF_ERROR(pool->MakeSlab(i, huge, &pool->slabs_[i]));
  }
  if (huge) pool->huge_slabs_ = pool->slab_count();
  return pool;
}

absl::Status SlabPool::MakeSlab(uint32_t index, bool huge, Slab* slab) const {
  const std::string name = absl::StrCat(options_.name, "-", index);
  const int fd = OpenMemfd(name.c_str(), huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
  if (fd < 0) return DescriptorError(errno, "memfd_create of a slab");
  *slab = Slab{.fd = fd, .huge = huge};
  if (ftruncate(fd, static_cast<off_t>(slab_bytes_.value())) != 0) {
    return absl::ErrnoToStatus(errno, "ftruncate of a slab");
  }
  void* base = mmap(nullptr, slab_bytes_.value(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap of a slab");
  slab->base = static_cast<std::byte*>(base);
  // A forked child would keep the slab's memory, and a core dump would contain the bytes of all
  // tenants.
  if (madvise(base, slab_bytes_.value(), MADV_DONTFORK) != 0 ||
      madvise(base, slab_bytes_.value(), MADV_DONTDUMP) != 0) {
    return absl::ErrnoToStatus(errno, "madvise of a slab");
  }
  // F_SEAL_FUTURE_WRITE does not affect mappings that exist, so the daemon maps the slab first.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL |
                    (options_.seal_future_write ? F_SEAL_FUTURE_WRITE : 0);
  if (fcntl(fd, F_ADD_SEALS, seals) != 0) return absl::ErrnoToStatus(errno, "sealing a slab");
  return absl::OkStatus();
}

void SlabPool::StartPopulating(std::function<void(SlabId)> online,
                               std::function<void(const absl::Status&)> stalled) {
  LARDER_CHECK(!populating_.exchange(true));
  populator_ = std::thread([this, online = std::move(online), stalled = std::move(stalled)] {
    pthread_setname_np(pthread_self(), "pool-populate");
    SetThreadPriority(ThreadPriority::kYielding);  // the daemon serves requests meanwhile
    bool told = false;
    while (!stop_ && online_count() < slab_count()) {
      const absl::Status status = PopulateNext(online);
      if (stop_) return;
      if (!status.ok() && !told && stalled) stalled(status);
      told = !status.ok();
      if (!status.ok()) AwaitRetry();
    }
  });
}

void SlabPool::AwaitRetry() {
  const auto until = SteadyNow() + options_.retry_period;
  MutexLock lock(mu_);
  while (!stop_ && SteadyNow() < until) (void)stopped_.WaitUntil(mu_, until);
}

void SlabPool::StopPopulating() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    stopped_.NotifyAll();
  }
  if (populator_.joinable()) populator_.join();
}

absl::Status SlabPool::PopulateAll() {
  LARDER_CHECK(!populating_.exchange(true));
  while (online_count() < slab_count()) {
    LARDER_RETURN_IF_ERROR(PopulateNext([](SlabId) {}));
  }
  return absl::OkStatus();
}

absl::Status SlabPool::PopulateNext(const std::function<void(SlabId)>& online) {
  const uint32_t next = online_count();
  absl::Status status = Populate(next);
  if (stop_) return absl::CancelledError("populating the pool was stopped");
  if (!status.ok()) {
    status = absl::Status(status.code(), absl::StrCat(next, " of ", slab_count(),
                                                      " slabs are populated: ", status.message()));
  }
  {
    MutexLock lock(mu_);
    populate_status_ = status;
  }
  LARDER_RETURN_IF_ERROR(status);
  locked_ = slabs_[next].locked && (next == 0 || locked_);
  online_.store(next + 1, std::memory_order_release);
  online(static_cast<SlabId>(next));
  return absl::OkStatus();
}

// Populating huge pages may fail even if the host has free ones: a control group that the daemon
// cannot see may limit them, or they may be on a NUMA node on which the daemon may not allocate.
absl::Status SlabPool::Populate(uint32_t index) {
  Slab& slab = slabs_[index];
  if (slab.huge) {
    const absl::Status huge = PopulatePages(slab);
    if (huge.ok() || stop_) return huge;
    Release(slab);
    --huge_slabs_;
  }
  if (slab.base == nullptr) {
    Release(slab);  // frees the memfd that an earlier, failed MakeSlab may have left
    LARDER_RETURN_IF_ERROR(MakeSlab(index, /*huge=*/false, &slab));
  }
  // Other processes may have taken the memory since Create.  It is better to wait than to be killed
  // by the kernel when memory runs out.
  const ByteCount available = options_.host_memory().available;
  if (available < slab_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the next slab needs ", Readable(slab_bytes_), ", but only ", Readable(available),
        " of memory is available; free memory or use a smaller --pool"));
  }
  return PopulatePages(slab);
}

absl::Status SlabPool::PopulatePages(Slab& slab) const {
  slab.locked = Lock(slab);
  uint64_t done = 0;
  while (done < slab_bytes_.value()) {
    if (stop_) return absl::CancelledError("populating the pool was stopped");
    const uint64_t piece = std::min(kPopulatePiece.value(), slab_bytes_.value() - done);
    // If there is no memory, fallocate returns an error, whereas touching the pages could raise
    // SIGBUS.
    if (fallocate(slab.fd, 0, static_cast<off_t>(done), static_cast<off_t>(piece)) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno != ENOMEM && errno != ENOSPC)
        return absl::ErrnoToStatus(errno, "fallocate of a slab");
      return absl::ResourceExhaustedError(absl::StrCat("the host gave no memory (errno ", errno,
                                                       "); free memory or use a smaller --pool"));
    }
    // MADV_POPULATE_WRITE would hold the process's mmap lock until all of the piece is zeroed,
    // while other threads may need it; a fault holds it for a page at most.
    for (uint64_t at = done; at < done + piece; at += kPageBytes) slab.base[at] = std::byte{0};
    done += piece;
  }
  return absl::OkStatus();
}

// The kernel locks each page of the slab in memory when the page is populated, so this comes first:
// mlock of a slab that is populated would hold the mmap lock until it has looked at every page.
// Returns false if the slab will not be locked.
bool SlabPool::Lock(const Slab& slab) const {
  // Hugetlb pages are never swapped, so they count as locked.
  return options_.lock_memory &&
         (slab.huge || mlock2(slab.base, slab_bytes_.value(), MLOCK_ONFAULT) == 0);
}

absl::Status SlabPool::populate_status() const {
  MutexLock lock(mu_);
  return populate_status_;
}

const char* SlabPool::pages() const {
  const uint32_t huge = huge_slabs_;
  if (huge == 0) return "4 KiB";
  return huge == slab_count() ? "2 MiB hugetlb" : "2 MiB hugetlb and 4 KiB";
}

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
  // Unlike dup, reopening makes another open file description, which has an access mode and a file
  // offset of its own.
  const std::string path = absl::StrCat("/proc/self/fd/", slabs_[index].fd);
  const int fd = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (fd < 0) return DescriptorError(errno, "reopening a slab through /proc");
  return fd;
}

}  // namespace larder
