#include "server/processes/staging_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

constexpr ProcessId kOne{1};
constexpr ProcessId kTwo{2};
constexpr uid_t kUid = 1001;
constexpr uid_t kOtherUid = 1002;
constexpr ByteCount kPage(4096);

// Returns how much memory a segment takes, whichever process has it open.
uint64_t BytesOf(const FileDescriptor& segment) {
  struct stat file {};
  EXPECT_EQ(fstat(segment.get(), &file), 0);
  return static_cast<uint64_t>(file.st_blocks) * 512;
}

// Writes to the segment as the daemon does when it copies blocks that its client reads.
void Fill(const StagingTable& table, ProcessId process, uint32_t id) {
  const auto segment = table.Get(process, id);
  ASSERT_NE(segment, nullptr);
  std::memset(segment->bytes().data(), 7, segment->bytes().size());
}

ByteCount Pages(uint64_t count) { return ByteCount(count * kPage.value()); }

absl::StatusCode MakeCode(StagingTable& table, ByteCount bytes, ProcessId process = kOne,
                          uid_t uid = kUid) {
  return table.Make(process, uid, bytes).status().code();
}

TEST(StagingTableTest, BothSidesSeeWhatEitherWrites) {
  StagingTable table({});
  auto made = table.Make(kOne, kUid, Pages(2));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_NE(made->id, 0u);
  const auto segment = table.Get(kOne, made->id);
  ASSERT_NE(segment, nullptr);
  ASSERT_EQ(segment->bytes().size(), 8192u);
  const int client = made->descriptor.get();
  ASSERT_EQ(pwrite(client, "x", 1, 8191), 1);
  EXPECT_EQ(segment->bytes()[8191], std::byte{'x'});
  segment->bytes()[0] = std::byte{'d'};
  char read = 0;
  ASSERT_EQ(pread(client, &read, 1, 0), 1);
  EXPECT_EQ(read, 'd');
}

// Nothing that the client can do with its descriptor makes an access by the daemon fault.
TEST(StagingTableTest, TheClientCannotTakeTheMemoryAway) {
  StagingTable table({});
  auto made = table.Make(kOne, kUid, Pages(2));
  ASSERT_TRUE(made.ok()) << made.status();
  const int client = made->descriptor.get();
  EXPECT_NE(ftruncate(client, 0), 0);
  EXPECT_NE(ftruncate(client, 1 << 20), 0);
  EXPECT_NE(fcntl(client, F_ADD_SEALS, F_SEAL_WRITE), 0);
  const std::string again = "/proc/self/fd/" + std::to_string(client);
  EXPECT_LT(open(again.c_str(), O_RDWR | O_TRUNC | O_CLOEXEC), 0);
  const auto segment = table.Get(kOne, made->id);
  segment->bytes()[4096] = std::byte{7};
  ASSERT_EQ(fallocate(client, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 8192), 0);
  EXPECT_EQ(segment->bytes()[4096], std::byte{0});  // the access filled the hole again
  segment->bytes()[4096] = std::byte{8};
  struct stat file {};
  ASSERT_EQ(fstat(client, &file), 0);
  EXPECT_EQ(file.st_size, 8192);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  EXPECT_NE(fcntl(client, F_GETFD) & FD_CLOEXEC, 0);
}

TEST(StagingTableTest, OnlyTheOwnerCanGetOrDrop) {
  StagingTable table({});
  const uint32_t id = table.Make(kOne, kUid, kPage)->id;
  EXPECT_EQ(table.Get(kTwo, id), nullptr);
  EXPECT_FALSE(table.Drop(kTwo, id));
  EXPECT_EQ(table.Get(kOne, id + 1), nullptr);
  EXPECT_NE(table.Get(kOne, id), nullptr);
}

TEST(StagingTableTest, RefusesInvalidSizes) {
  StagingTable table({});
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{4097}}) {
    EXPECT_EQ(MakeCode(table, ByteCount(bytes)), absl::StatusCode::kInvalidArgument) << bytes;
  }
  for (const uint64_t bytes : {uint64_t{1} << 62, ~uint64_t{4095}}) {
    EXPECT_EQ(MakeCode(table, ByteCount(bytes)), absl::StatusCode::kResourceExhausted) << bytes;
  }
  EXPECT_EQ(table.counts().segments, 0u);
}

TEST(StagingTableTest, LimitsAreExactAndDroppedSegmentsFreeThem) {
  StagingTable table({.process_bytes_max = Pages(3),
                      .process_segments_max = 2,
                      .uid_bytes_max = Pages(6),
                      .total_bytes_max = Pages(8)});
  const auto full = absl::StatusCode::kResourceExhausted;
  const auto ok = absl::StatusCode::kOk;
  EXPECT_EQ(MakeCode(table, Pages(4)), full);
  const uint32_t first = table.Make(kOne, kUid, Pages(2))->id;
  EXPECT_EQ(MakeCode(table, Pages(2)), full);
  EXPECT_EQ(MakeCode(table, kPage), ok);
  EXPECT_EQ(MakeCode(table, kPage), full) << "a third segment exceeds the limit of segments";
  EXPECT_EQ(MakeCode(table, Pages(3), kTwo), ok);
  EXPECT_EQ(MakeCode(table, kPage, ProcessId{3}), full) << "the uid's limit is reached";
  EXPECT_EQ(MakeCode(table, Pages(3), ProcessId{4}, kOtherUid), full)
      << "the total limit is reached";
  EXPECT_EQ(MakeCode(table, Pages(2), ProcessId{4}, kOtherUid), ok);
  EXPECT_TRUE(table.Drop(kOne, first));
  EXPECT_FALSE(table.Drop(kOne, first));
  EXPECT_EQ(MakeCode(table, Pages(2), ProcessId{3}), ok) << "dropped segments free their memory";
  EXPECT_EQ(table.counts().bytes, Pages(8));
  table.DropProcess(kTwo);
  table.DropProcess(kTwo);
  EXPECT_EQ(table.counts().bytes, Pages(5));
  EXPECT_EQ(MakeCode(table, Pages(3), ProcessId{5}), ok);
}

TEST(StagingTableTest, ARefusalNamesTheLimit) {
  StagingTable table(
      {.process_bytes_max = Pages(2), .uid_bytes_max = Pages(3), .total_bytes_max = Pages(4)});
  const auto says = [](const absl::Status& status, const char* option) {
    EXPECT_NE(status.message().find(option), absl::string_view::npos) << status;
  };
  says(table.Make(kOne, kUid, Pages(3)).status(), "--staging-limit");
  ASSERT_TRUE(table.Make(kOne, kUid, Pages(2)).ok());
  says(table.Make(kTwo, kUid, Pages(2)).status(), "--staging-uid-limit");
  ASSERT_TRUE(table.Make(kTwo, kOtherUid, kPage).ok());
  says(table.Make(ProcessId{3}, kOtherUid, Pages(2)).status(), "--staging-total-limit");
}

TEST(StagingTableTest, ACopyUnderWayKeepsTheSegmentAlive) {
  StagingTable table({});
  auto made = table.Make(kOne, kUid, kPage);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(pwrite(made->descriptor.get(), "k", 1, 0), 1);
  const std::shared_ptr<const StagingSegment> copying = table.Get(kOne, made->id);
  const std::weak_ptr<const StagingSegment> watch = copying;
  table.DropProcess(kOne);
  EXPECT_EQ(table.Get(kOne, made->id), nullptr);
  EXPECT_EQ(copying->bytes()[0], std::byte{'k'});
  EXPECT_EQ(watch.use_count(), 1);  // the test has the last reference
}

TEST(StagingTableTest, AKeptDescriptorKeepsNoMemory) {
  for (const bool aside : {false, true}) {
    StagingTable table({.uid_bytes_max = MiB(8), .frees_aside = aside});
    std::vector<FileDescriptor> kept;
    for (int round = 0; round < 8; ++round) {
      auto made = table.Make(kOne, kUid, MiB(4));
      ASSERT_TRUE(made.ok()) << made.status();
      ASSERT_NO_FATAL_FAILURE(Fill(table, kOne, made->id));
      EXPECT_EQ(BytesOf(made->descriptor), MiB(4).value());
      if (round % 2 == 0) {
        EXPECT_TRUE(table.Drop(kOne, made->id));
      } else {
        table.DropProcess(kOne);
      }
      kept.push_back(std::move(made->descriptor));
      ASSERT_TRUE(Eventually([&] { return table.counts().bytes == ByteCount(0); }));
      for (const FileDescriptor& one : kept) EXPECT_EQ(BytesOf(one), 0u);
    }
    char read = 1;  // the client can still use the descriptor, whose memory is then its own
    EXPECT_EQ(pread(kept[0].get(), &read, 1, 0), 1);
    EXPECT_EQ(read, 0);
    EXPECT_EQ(pwrite(kept[0].get(), "x", 1, 0), 1);
  }
}

TEST(StagingTableTest, ADroppedSegmentInUseIsStillCharged) {
  StagingTable table({.process_bytes_max = Pages(2), .uid_bytes_max = Pages(3)});
  auto made = table.Make(kOne, kUid, Pages(2));
  ASSERT_TRUE(made.ok()) << made.status();
  std::shared_ptr<const StagingSegment> copying = table.Get(kOne, made->id);
  ASSERT_NO_FATAL_FAILURE(Fill(table, kOne, made->id));
  EXPECT_TRUE(table.Drop(kOne, made->id));
  EXPECT_EQ(table.counts().segments, 0u);
  EXPECT_EQ(table.counts().bytes, Pages(2));
  EXPECT_EQ(BytesOf(made->descriptor), Pages(2).value());
  EXPECT_EQ(MakeCode(table, Pages(2)), absl::StatusCode::kResourceExhausted);
  copying.reset();
  EXPECT_EQ(table.counts().bytes, ByteCount(0));
  EXPECT_EQ(BytesOf(made->descriptor), 0u);
  EXPECT_EQ(MakeCode(table, Pages(2)), absl::StatusCode::kOk);
}

TEST(StagingTableTest, DroppedSegmentsInUseCountTowardTheLimit) {
  StagingTable table({.uid_segments_max = 3});
  std::vector<std::shared_ptr<const StagingSegment>> copying;
  for (int i = 0; i < 3; ++i) {
    const auto made = table.Make(kOne, kUid, kPage);
    ASSERT_TRUE(made.ok()) << made.status();
    copying.push_back(table.Get(kOne, made->id));
    table.DropProcess(kOne);
  }
  EXPECT_EQ(MakeCode(table, kPage, kTwo), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(MakeCode(table, kPage, kTwo, kOtherUid), absl::StatusCode::kOk);
  copying.pop_back();
  EXPECT_EQ(MakeCode(table, kPage, kTwo), absl::StatusCode::kOk);
}

// Asks for segments as liblarder_client does, halving the size after each refusal.  Returns the
// size that was granted.
ByteCount Halved(StagingTable& table, ProcessId process, ByteCount wanted) {
  for (; wanted >= StagingTable::kSmallBytes; wanted = ByteCount(wanted.value() / 2)) {
    if (MakeCode(table, wanted, process) == absl::StatusCode::kOk) return wanted;
  }
  return ByteCount(0);
}

TEST(StagingTableTest, AClientThatHalvesItsRequestGetsMemoryWhileAnyIsLeft) {
  StagingTable processes({});
  ByteCount sum;
  for (uint64_t i = 1; i <= 12; ++i) {
    const ByteCount found = Halved(processes, ProcessId{i}, MiB(64));
    EXPECT_GE(found, MiB(4)) << i;
    sum += found;
  }
  EXPECT_EQ(sum, MiB(512)) << "all memory is given out";
  StagingTable sessions({});
  for (int i = 1; i <= 8; ++i) EXPECT_GE(Halved(sessions, kOne, MiB(64)), MiB(4)) << i;
}

// A client's write to its segment from memory whose page never arrives.  While it blocks, the
// kernel lets no other thread change the file.
class StuckWrite {
 public:
  explicit StuckWrite(int segment)
      : faults_(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK))),
        page_(mmap(nullptr, kPage.value(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                   0)) {
    uffdio_api api = {.api = UFFD_API, .features = 0, .ioctls = 0};
    uffdio_register range = {.range = Range(), .mode = UFFDIO_REGISTER_MODE_MISSING, .ioctls = 0};
    if (!faults_ || ioctl(faults_.get(), UFFDIO_API, &api) != 0 ||
        ioctl(faults_.get(), UFFDIO_REGISTER, &range) != 0)
      return;
    writer_ = std::thread([this, segment] { (void)pwrite(segment, page_, 1, 0); });
    pollfd fault = {.fd = faults_.get(), .events = POLLIN, .revents = 0};
    stuck_ = poll(&fault, 1, 30'000) == 1;
  }
  ~StuckWrite() {
    End();
    munmap(page_, kPage.value());
  }
  StuckWrite(const StuckWrite&) = delete;
  StuckWrite& operator=(const StuckWrite&) = delete;

  [[nodiscard]] bool stuck() const { return stuck_; }
  void End() {
    if (!writer_.joinable()) return;
    uffdio_zeropage zeros = {.range = Range(), .mode = 0, .zeropage = 0};
    EXPECT_EQ(ioctl(faults_.get(), UFFDIO_ZEROPAGE, &zeros), 0);
    writer_.join();
  }

 private:
  [[nodiscard]] uffdio_range Range() const {
    return {.start = reinterpret_cast<uintptr_t>(page_), .len = kPage.value()};
  }
  const FileDescriptor faults_;
  void* const page_;
  std::thread writer_;
  bool stuck_ = false;
};

TEST(StagingTableTest, AClientThatBlocksItsSegmentDelaysOnlyItsOwnUser) {
  StagingTable table({.frees_aside = true});
  auto held_up = table.Make(kOne, kUid, Pages(2));
  auto behind = table.Make(kOne, kUid, Pages(3));
  auto others = table.Make(kTwo, kOtherUid, Pages(4));
  ASSERT_TRUE(held_up.ok() && behind.ok() && others.ok());
  ASSERT_NO_FATAL_FAILURE(Fill(table, kOne, held_up->id));
  ASSERT_NO_FATAL_FAILURE(Fill(table, kTwo, others->id));
  StuckWrite write(held_up->descriptor.get());
  if (!write.stuck()) GTEST_SKIP() << "needs a userfaultfd that handles faults in the kernel";
  EXPECT_TRUE(table.Drop(kOne, held_up->id));
  EXPECT_TRUE(table.Drop(kOne, behind->id));
  table.DropProcess(kTwo);
  ASSERT_TRUE(Eventually([&] { return table.counts().bytes == Pages(5); }));
  EXPECT_EQ(BytesOf(others->descriptor), 0u);
  EXPECT_EQ(BytesOf(held_up->descriptor), Pages(2).value());
  write.End();
  ASSERT_TRUE(Eventually([&] { return table.counts().bytes == ByteCount(0); }));
}

TEST(StagingTableTest, ThreadsMakeGetAndDrop) {
  StagingTable table({.process_segments_max = 64});
  const auto work = [&table](ProcessId process) {
    for (int i = 0; i < 200; ++i) {
      const auto made = table.Make(process, kUid, kPage);
      ASSERT_TRUE(made.ok());
      const auto segment = table.Get(process, made->id);
      if (segment) {
        EXPECT_EQ(segment->bytes()[0], std::byte{0});
      }
      if (i % 3 == 0) {
        table.DropProcess(process);
      } else {
        table.Drop(process, made->id);
      }
    }
  };
  std::thread one(work, kOne);
  std::thread same(work, kOne);
  std::thread two(work, kTwo);
  one.join();
  same.join();
  two.join();
  EXPECT_EQ(table.counts().bytes, ByteCount(0));
}

}  // namespace
}  // namespace larder
