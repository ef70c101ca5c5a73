#include "storage/memory/slab_pool.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace larder {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SlabPool::Options Small() {
  return {.bytes = MiB(8), .slab_bytes = MiB(4), .name = "slab_pool_test", .huge_pages = false};
}

std::unique_ptr<SlabPool> Online(const SlabPool::Options& options) {
  auto pool = SlabPool::Create(options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  if (!pool.ok()) return nullptr;
  EXPECT_TRUE((*pool)->PopulateAll().ok());
  return *std::move(pool);
}

Extent FirstPage(uint16_t slab) { return {.slab = SlabId{slab}, .page = 0, .pages = 1}; }

int OpenFds() {
  int open = 0;
  for (int fd = 0; fd < 1024; ++fd) open += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return open;
}

// Returns how much memory of this process cannot be swapped, as the kernel counts it.
long LockedKib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  long kib = -1;
  while (status >> word && word != "VmLck:") continue;
  status >> kib;
  return kib;
}

class Fd {  // closes the descriptor
 public:
  explicit Fd(absl::StatusOr<int> fd) : fd_(fd.value_or(-1)) { EXPECT_TRUE(fd.ok()); }
  ~Fd() { close(fd_); }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  const int fd_;
};

// Returns the errno of mapping the descriptor with `protection`, or 0 if it succeeds.
int MapErrno(int fd, int protection) {
  void* map = mmap(nullptr, 4096, protection, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return errno;
  munmap(map, 4096);
  return 0;
}

TEST(SlabPoolOptions, DefaultSlabsWasteLittleOfThePool) {
  EXPECT_EQ(SlabPool::DefaultSlabBytes(MiB(7)), MiB(6));
  EXPECT_EQ(SlabPool::DefaultSlabBytes(MiB(100)), MiB(100));
  EXPECT_EQ(SlabPool::DefaultSlabBytes(GiB(1)), MiB(64));
  EXPECT_EQ(SlabPool::DefaultSlabBytes(GiB(8)), MiB(256));
  EXPECT_EQ(SlabPool::DefaultSlabBytes(GiB(64)), GiB(1));
  for (uint64_t mib = 2; mib < 300'000; mib += 997) {
    const uint64_t slab = SlabPool::DefaultSlabBytes(MiB(mib)).value();
    ASSERT_EQ(slab % MiB(2).value(), 0u);
    ASSERT_LT(slab, GiB(2).value());
    const uint64_t lost = MiB(mib).value() % slab;
    ASSERT_LT(lost, std::max(MiB(2).value(), MiB(mib).value() / 30)) << mib;
  }
}

TEST(SlabPoolOptions, ValidateSaysWhatToDo) {
  const auto message = [](auto change) {
    SlabPool::Options options = Small();
    change(options);
    const absl::Status status = options.Validate();
    EXPECT_EQ(absl::IsInvalidArgument(status), !status.ok());
    EXPECT_EQ(SlabPool::Create(options).ok(), status.ok());
    return std::string(status.message());
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_THAT(message([](auto& o) { o.bytes = MiB(1); }), HasSubstr("larger --pool"));
  EXPECT_THAT(message([](auto& o) { o.slab_bytes = MiB(3); }), HasSubstr("multiple of 2 MiB"));
  EXPECT_THAT(message([](auto& o) { o.slab_bytes = MiB(10); }), HasSubstr("smaller slabs"));
  EXPECT_THAT(message([](auto& o) {
                o.bytes = GiB(200);
                o.slab_bytes = MiB(2);
              }),
              HasSubstr("larger slabs"));
  EXPECT_THAT(message([](auto& o) { o.bytes = o.slab_bytes = GiB(1 << 14); }),
              HasSubstr("below 64 GiB"));
  EXPECT_THAT(message([](auto& o) { o.name = std::string(201, 'x'); }), HasSubstr("200 bytes"));
  EXPECT_THAT(message([](auto& o) { o.name = std::string("a\0b", 3); }), HasSubstr("NUL"));
}

TEST(SlabPool, RefusesAPoolThatDoesNotFit) {
  SlabPool::Options options = Small();
  options.bytes = GiB(64);
  options.slab_bytes = GiB(1);
  options.host_memory = [] { return HostMemory{.available = MiB(23'900)}; };
  const absl::Status status = SlabPool::Create(options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("pool of 64 GiB does not fit: 23 GiB of memory available"),
                    HasSubstr("use --pool 18GiB or less")));
}

TEST(SlabPool, DescriptorsRunningOutIsAnErrorThatLeaksNothing) {
  const int before = OpenFds();
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const int lowest_free = dup(0);
  close(lowest_free);
  const rlimit tight = {.rlim_cur = static_cast<rlim_t>(lowest_free) + 1,  // enough for one slab
                        .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const absl::Status status = SlabPool::Create(Small()).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("LimitNOFILE"));
  EXPECT_EQ(OpenFds(), before);
}

TEST(SlabPool, RoundsDownToWholeSlabsAndReleasesEverything) {
  const int before = OpenFds();
  SlabPool::Options options = Small();
  options.bytes = MiB(11);
  {
    const auto pool = SlabPool::Create(options);
    ASSERT_TRUE(pool.ok()) << pool.status();
    EXPECT_EQ((*pool)->slab_count(), 2u);
    EXPECT_EQ((*pool)->slab_bytes(), MiB(4));
    EXPECT_EQ((*pool)->total_bytes(), MiB(8));
    EXPECT_EQ((*pool)->online_count(), 0u);
    EXPECT_STREQ((*pool)->pages(), "4 KiB");
  }
  EXPECT_EQ(OpenFds(), before);
}

TEST(SlabPool, SlabsAreSealedAndPrivate) {
  for (const bool future_write : {false, true}) {
    SlabPool::Options options = Small();
    options.seal_future_write = future_write;
    const auto pool = Online(options);
    const Fd fd(pool->OpenDescriptor(SlabId{1}, /*writable=*/false));
    const int seals = fcntl(fd.get(), F_GET_SEALS);
    const int expected = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    EXPECT_EQ(seals & expected, expected);
    EXPECT_EQ((seals & F_SEAL_FUTURE_WRITE) != 0, future_write);
    EXPECT_EQ(seals & F_SEAL_WRITE, 0);
    struct stat info;
    ASSERT_EQ(fstat(fd.get(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
    EXPECT_EQ(info.st_size, 4 << 20);
    EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
  }
}

TEST(SlabPool, PopulatedPagesAreResident) {
  SlabPool::Options options = Small();
  options.lock_memory = false;  // locking would bring them in too
  const auto pool = Online(options);
  EXPECT_EQ(pool->online_count(), 2u);
  EXPECT_TRUE(pool->populate_status().ok());
  for (const uint16_t slab : {uint16_t{0}, uint16_t{1}}) {
    const auto bytes = pool->Bytes({.slab = SlabId{slab}, .page = 0, .pages = 1024});
    std::vector<unsigned char> resident(1024);
    ASSERT_EQ(mincore(bytes.data(), bytes.size(), resident.data()), 0);
    EXPECT_THAT(resident, Each(1));
    EXPECT_THAT(std::set<std::byte>(bytes.begin(), bytes.end()), ElementsAre(std::byte{0}));
  }
}

TEST(SlabPool, OnlineIsCalledInOrderAndOnlyThenIsASlabHandedOut) {
  const auto pool = *SlabPool::Create(Small());
  EXPECT_TRUE(absl::IsNotFound(pool->OpenDescriptor(SlabId{0}, false).status()));
  Mutex mu;
  CondVar changed;
  std::vector<uint32_t> seen;
  pool->StartPopulating([&](SlabId slab) {
    MutexLock lock(mu);
    seen.push_back(static_cast<uint32_t>(slab));
    EXPECT_EQ(pool->online_count(), seen.size());
    changed.NotifyAll();
  });
  MutexLock lock(mu);
  while (seen.size() < 2) changed.Wait(mu);
  EXPECT_THAT(seen, ElementsAre(0, 1));
  EXPECT_TRUE(absl::IsNotFound(pool->OpenDescriptor(SlabId{2}, false).status()));
  EXPECT_EQ(pool->Bytes(FirstPage(1)).size(), kPageBytes);
}

TEST(SlabPool, MemoryRunningOutKeepsWhatIsOnline) {
  SlabPool::Options options = Small();
  options.bytes = MiB(16);
  int asked = 0;  // once by Create, then before each slab
  options.host_memory = [&] { return HostMemory{.available = ++asked <= 3 ? GiB(1) : MiB(3)}; };
  const auto pool = *SlabPool::Create(options);
  const absl::Status status = pool->PopulateAll();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(pool->populate_status(), status);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("2 of 4 slabs"), HasSubstr("smaller --pool")));
  EXPECT_EQ(pool->online_count(), 2u);
  pool->Bytes(FirstPage(1))[0] = std::byte{1};
  EXPECT_TRUE(absl::IsNotFound(pool->OpenDescriptor(SlabId{2}, false).status()));
}

TEST(SlabPool, PopulatingContinuesWhenMemoryIsFreeAgain) {
  std::atomic<bool> scarce = false;
  SlabPool::Options options = Small();
  options.host_memory = [&] { return HostMemory{.available = scarce ? MiB(3) : GiB(1)}; };
  options.retry_period = std::chrono::milliseconds(1);
  const auto pool = *SlabPool::Create(options);
  scarce = true;
  Mutex mu;
  CondVar changed;
  int stalled = 0;
  uint32_t online = 0;
  pool->StartPopulating(
      [&](SlabId) {
        MutexLock lock(mu);
        ++online;
        changed.NotifyAll();
      },
      [&](const absl::Status& why) {
        EXPECT_EQ(why, pool->populate_status());
        EXPECT_TRUE(absl::IsResourceExhausted(why)) << why;
        MutexLock lock(mu);
        ++stalled;
        changed.NotifyAll();
      });
  MutexLock lock(mu);
  while (stalled == 0) changed.Wait(mu);
  EXPECT_EQ(online, 0u);
  scarce = false;
  while (online < 2) changed.Wait(mu);
  EXPECT_EQ(stalled, 1);  // the callback is called once, however often memory is short
  EXPECT_TRUE(pool->populate_status().ok());
}

// The thread waits in its first callback until the pool is about to be destroyed.  The rest of its
// work would take a thousand times as long as the destructor needs to stop it.
TEST(SlabPool, DestroyingStopsPopulating) {
  constexpr int kSlabs = 256;
  SlabPool::Options options = Small();
  options.slab_bytes = MiB(2);
  options.bytes = MiB(2 * kSlabs);
  options.host_memory = [] { return HostMemory{.available = GiB(1)}; };
  Mutex mu;
  CondVar changed;
  bool leave = false;
  int online = 0;
  auto pool = *SlabPool::Create(options);
  pool->StartPopulating([&](SlabId) {
    MutexLock lock(mu);
    ++online;
    changed.NotifyAll();
    while (!leave) changed.Wait(mu);
  });
  {
    MutexLock lock(mu);
    while (online == 0) changed.Wait(mu);
    leave = true;
    changed.NotifyAll();
  }
  pool.reset();  // joins the thread, so no callback runs afterwards
  EXPECT_LT(online, kSlabs);
}

TEST(SlabPool, MemoryIsLockedOnlyIfRequested) {
  SlabPool::Options options = Small();
  options.lock_memory = false;
  EXPECT_FALSE(Online(options)->locked());
  options.lock_memory = true;
  alignas(4096) static char probe[4096];
  const long before = LockedKib();
  if (mlock(probe, sizeof probe) == 0 && LockedKib() == before) {
    GTEST_SKIP() << "a sanitizer ignores mlock";
  }
  munlock(probe, sizeof probe);
  const auto pool = Online(options);  // the kernel may refuse, and then the pool must report it
  EXPECT_EQ(pool->locked(), LockedKib() - before >= 8192);
}

TEST(SlabPool, HugePagesWhereTheHostHasThem) {
  SlabPool::Options options = Small();
  options.huge_pages = true;
  if (ReadHostMemory().huge_pages_free < options.bytes) {
    GTEST_SKIP() << "needs 4 free huge pages: echo 4 > /proc/sys/vm/nr_hugepages";
  }
  const auto pool = Online(options);
  EXPECT_STREQ(pool->pages(), "2 MiB hugetlb");
  EXPECT_TRUE(pool->locked());
  pool->Bytes(FirstPage(1))[0] = std::byte{1};
  const Fd fd(pool->OpenDescriptor(SlabId{0}, false));
  struct stat info;
  ASSERT_EQ(fstat(fd.get(), &info), 0);
  EXPECT_EQ(info.st_blksize, 2 << 20);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(fcntl(fd.get(), F_GET_SEALS) & F_SEAL_GROW, F_SEAL_GROW);
}

// Another process may take huge pages between the count and the allocation.
TEST(SlabPool, FallsBackToSmallPagesWhenHugePagesVanish) {
  const ByteCount missing = ReadHostMemory().huge_pages_free + MiB(8);
  SlabPool::Options options = Small();
  options.bytes = options.slab_bytes = missing;
  options.huge_pages = true;
  options.host_memory = [&] {
    return HostMemory{.available = GiB(1000), .huge_pages_free = missing};
  };
  const auto pool = SlabPool::Create(options);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_STREQ((*pool)->pages(), "4 KiB");
}

TEST(SlabPool, AWriterSharesItsBytes) {
  const auto pool = Online(Small());
  const Fd writer(pool->OpenDescriptor(SlabId{1}, /*writable=*/true));
  const Fd reader(pool->OpenDescriptor(SlabId{1}, /*writable=*/false));
  EXPECT_EQ(MapErrno(writer.get(), PROT_READ | PROT_WRITE), 0);
  const char word[] = "bytes";
  ASSERT_EQ(pwrite(writer.get(), word, sizeof word, 4096), ssize_t{sizeof word});
  const auto bytes = pool->Bytes({.slab = SlabId{1}, .page = 1, .pages = 1});
  EXPECT_STREQ(reinterpret_cast<const char*>(bytes.data()), word);
  char read[sizeof word] = {};
  ASSERT_EQ(pread(reader.get(), read, sizeof read, 4096), ssize_t{sizeof read});
  EXPECT_STREQ(read, word);
  // Even a writer cannot change the size, which could cause a SIGBUS in the daemon.
  EXPECT_EQ(ftruncate(writer.get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(writer.get(), 8 << 20), -1);
  EXPECT_EQ(fcntl(writer.get(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(SlabPool, AReadersDescriptorCannotBeUsedForWriting) {
  const auto pool = Online(Small());
  const Fd fd(pool->OpenDescriptor(SlabId{0}, /*writable=*/false));
  EXPECT_EQ(MapErrno(fd.get(), PROT_READ), 0);
  EXPECT_EQ(MapErrno(fd.get(), PROT_READ | PROT_WRITE), EACCES);
  EXPECT_EQ(pwrite(fd.get(), "x", 1, 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(ftruncate(fd.get(), 0), -1);
}

// Processes of the same uid can reopen a slab for writing, unless the tenant has no writers.  In
// that case the seal holds even against them, while the daemon itself keeps writing.
TEST(SlabPool, TheFutureWriteSealHoldsAgainstTheSameUid) {
  SlabPool::Options options = Small();
  options.seal_future_write = true;
  const auto pool = Online(options);
  EXPECT_TRUE(absl::IsFailedPrecondition(pool->OpenDescriptor(SlabId{0}, true).status()));
  const Fd fd(pool->OpenDescriptor(SlabId{0}, /*writable=*/false));
  const std::string path = "/proc/self/fd/" + std::to_string(fd.get());
  const Fd reopened(open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_GE(reopened.get(), 0);
  EXPECT_EQ(MapErrno(reopened.get(), PROT_READ | PROT_WRITE), EPERM);
  EXPECT_EQ(pwrite(reopened.get(), "x", 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fallocate(reopened.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(errno, EPERM);
  void* map = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, reopened.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  EXPECT_EQ(mprotect(map, 4096, PROT_READ | PROT_WRITE), -1);
  pool->Bytes(FirstPage(0))[7] = std::byte{42};
  EXPECT_EQ(static_cast<const std::byte*>(map)[7], std::byte{42});
  munmap(map, 4096);
}

TEST(SlabPoolDeathTest, RejectsInvalidCalls) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto pool = *SlabPool::Create(Small());
  EXPECT_DEATH((void)pool->Bytes(FirstPage(0)), "invariant broken");  // not online
  ASSERT_TRUE(pool->PopulateAll().ok());
  EXPECT_DEATH((void)pool->Bytes(FirstPage(2)), "invariant broken");
  EXPECT_DEATH((void)pool->Bytes({.slab = SlabId{0}, .page = 1, .pages = 1024}),
               "invariant broken");
  EXPECT_DEATH(pool->StartPopulating([](SlabId) {}), "invariant broken");
}

}  // namespace
}  // namespace larder
