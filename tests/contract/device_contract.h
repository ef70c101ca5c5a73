// What every device promises (cuda/device.h), as tests.  A device's test instantiates them with a
// function that opens it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuda/device.h"
#include "cuda/paged_plan.h"
#include "tests/cuda/paged_oracle.h"
#include "tests/support/test_scale.h"

namespace larder {

using Bytes = std::vector<std::byte>;

struct DeviceMaker {
  std::string name;
  // If `make` returns Unavailable, the tests are skipped with its message.
  std::function<absl::StatusOr<std::unique_ptr<Device>>()> make;
};

inline std::chrono::steady_clock::time_point SoonEnough() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

inline Bytes RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(RoundUp(size, 8));
  for (size_t at = 0; at < bytes.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, 8);
  }
  bytes.resize(size);
  return bytes;
}

// Pages of a memfd, as the pool's slabs are; mapped a second time, read-only if `writable` is
// false.
class SharedPages {
 public:
  SharedPages(size_t bytes, bool writable) : bytes_(bytes) {
    const int fd = memfd_create("device-contract", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    writable_ = Map(fd, PROT_READ | PROT_WRITE);
    shown_ = writable ? writable_ : Map(fd, PROT_READ);
    close(fd);
  }
  ~SharedPages() {
    if (shown_ != writable_) munmap(shown_, bytes_);
    munmap(writable_, bytes_);
  }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  // The mapping that the device is given.
  [[nodiscard]] std::span<const std::byte> shown() const {
    return {static_cast<const std::byte*>(shown_), bytes_};
  }
  [[nodiscard]] std::span<std::byte> writable() const {
    return {static_cast<std::byte*>(writable_), bytes_};
  }
  [[nodiscard]] uint64_t address() const { return reinterpret_cast<uint64_t>(shown_); }

 private:
  void* Map(int fd, int rights) const {
    void* at = mmap(nullptr, bytes_, rights, MAP_SHARED, fd, 0);
    EXPECT_NE(at, MAP_FAILED);
    return at;
  }
  const size_t bytes_;
  void* writable_ = nullptr;
  void* shown_ = nullptr;
};

class DeviceContract : public ::testing::TestWithParam<DeviceMaker> {
 protected:
  void SetUp() override {
    auto device = GetParam().make();
    if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status().message();
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    queue_ = MakeQueue();
  }
  [[nodiscard]] std::unique_ptr<DeviceQueue> MakeQueue() {
    auto queue = device_->MakeQueue();
    EXPECT_TRUE(queue.ok()) << queue.status();
    return *std::move(queue);
  }
  [[nodiscard]] std::unique_ptr<DeviceMemory> Allocate(size_t bytes,
                                                       SharePath share = SharePath::kNone) {
    auto memory = device_->Allocate(ByteCount(bytes), share);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  [[nodiscard]] std::unique_ptr<PinnedMemory> AllocatePinned(size_t bytes) {
    auto memory = device_->AllocatePinned(ByteCount(bytes));
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  static std::span<std::byte> Writable(const PinnedMemory& memory) {
    return {const_cast<std::byte*>(memory.bytes().data()), memory.bytes().size()};
  }
  static uint64_t AddressOf(const PinnedMemory& memory) {
    return reinterpret_cast<uint64_t>(memory.bytes().data());
  }
  void Copy(CopyDirection direction, uint64_t to, uint64_t from, uint64_t bytes) {
    const DeviceCopy copy{to, from, bytes};
    const absl::Status status = queue_->CopyBatch(direction, std::span(&copy, 1));
    ASSERT_TRUE(status.ok()) << status;
  }
  void Upload(const Bytes& bytes, uint64_t to) {
    const auto pinned = AllocatePinned(bytes.size());
    std::memcpy(Writable(*pinned).data(), bytes.data(), bytes.size());
    Copy(CopyDirection::kToDevice, to, AddressOf(*pinned), bytes.size());
    ASSERT_TRUE(queue_->Wait().ok());
  }
  [[nodiscard]] Bytes Download(uint64_t from, size_t bytes) {
    const auto pinned = AllocatePinned(bytes);
    Copy(CopyDirection::kFromDevice, AddressOf(*pinned), from, bytes);
    EXPECT_TRUE(queue_->Wait().ok());
    return {pinned->bytes().begin(), pinned->bytes().end()};
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceQueue> queue_;
};

TEST_P(DeviceContract, ReportsItsNameAndLimits) {
  EXPECT_FALSE(device_->info().name.empty());
  for (const std::string& limit : device_->info().limits) EXPECT_GT(limit.size(), 20u);
}

TEST_P(DeviceContract, BytesAreCopiedToAndFromTheDevice) {
  for (const size_t size : {1u, 15u, 4096u, 1u << 20, (9u << 20) + 3}) {
    const auto memory = Allocate(size);
    EXPECT_EQ(memory->bytes().value(), size);
    const Bytes bytes = RandomBytes(size, size);
    Upload(bytes, memory->address());
    EXPECT_EQ(Download(memory->address(), size), bytes) << size;
  }
}

TEST_P(DeviceContract, ABatchCopiesEachPiece) {
  constexpr size_t kPiece = 4096, kPieces = 500;
  const auto memory = Allocate(kPiece * kPieces);
  const auto pinned = AllocatePinned(kPiece * kPieces);
  const Bytes bytes = RandomBytes(kPiece * kPieces, 1);
  std::memcpy(Writable(*pinned).data(), bytes.data(), bytes.size());
  std::vector<DeviceCopy> copies;
  for (size_t i = 0; i < kPieces; ++i)  // back to front
    copies.push_back({memory->address() + (kPieces - 1 - i) * kPiece,
                      AddressOf(*pinned) + i * kPiece, i == 7 ? 0 : kPiece});
  const DeviceStats before = device_->stats();
  ASSERT_TRUE(queue_->CopyBatch(CopyDirection::kToDevice, copies).ok());
  const Bytes there = Download(memory->address(), bytes.size());
  for (size_t i = 0; i < kPieces; ++i) {
    if (i == 7) continue;
    EXPECT_EQ(
        std::memcmp(there.data() + (kPieces - 1 - i) * kPiece, bytes.data() + i * kPiece, kPiece),
        0);
  }
  EXPECT_EQ(device_->stats().copies - before.copies, kPieces + 1);
  EXPECT_EQ((device_->stats().bytes_direct - before.bytes_direct).value(),
            kPiece * (2 * kPieces - 1));
  EXPECT_TRUE(queue_->CopyBatch(CopyDirection::kToDevice, {}).ok());
}

TEST_P(DeviceContract, CopiesWithinTheDevice) {
  const auto memory = Allocate(1 << 20);
  const Bytes bytes = RandomBytes(1 << 19, 2);
  Upload(bytes, memory->address());
  Copy(CopyDirection::kWithin, memory->address() + (1 << 19), memory->address(), 1 << 19);
  EXPECT_EQ(Download(memory->address() + (1 << 19), 1 << 19), bytes);
}

// Memory that is mapped like the pool's slabs, in small pieces, before and after they are
// registered.
TEST_P(DeviceContract, PinnedMemoryCanBeUsedAtOnce) {
  constexpr size_t kBytes = 1 << 20;
  const SharedPages pages(kBytes, /*writable=*/true);
  const Bytes bytes = RandomBytes(kBytes, 3);
  std::memcpy(pages.writable().data(), bytes.data(), kBytes);
  auto pinned = device_->Pin(pages.shown(), {.piece_bytes = KiB(64)});
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  const auto memory = Allocate(kBytes);
  for (const bool decided : {false, true}) {
    if (decided) (*pinned)->WaitDecided();
    // The copy begins and ends inside pieces.
    Copy(CopyDirection::kToDevice, memory->address() + 1000, pages.address() + 1000, kBytes - 2000);
    ASSERT_TRUE(queue_->Wait().ok());
    const Bytes there = Download(memory->address() + 1000, kBytes - 2000);
    EXPECT_EQ(std::memcmp(there.data(), bytes.data() + 1000, there.size()), 0);
  }
  EXPECT_EQ((*pinned)->path(), PinPath::kRegistered) << (*pinned)->refusal();
  EXPECT_EQ((*pinned)->registered().value(), kBytes);
  // The reverse direction.
  std::memset(pages.writable().data(), 0, kBytes);
  Copy(CopyDirection::kFromDevice, pages.address() + 1000, memory->address() + 1000, kBytes - 2000);
  ASSERT_TRUE(queue_->Wait().ok());
  EXPECT_EQ(std::memcmp(pages.writable().data() + 1000, bytes.data() + 1000, kBytes - 2000), 0);
  EXPECT_EQ(pages.writable()[999], std::byte{0});
  EXPECT_EQ(pages.writable()[kBytes - 1000], std::byte{0});
}

TEST_P(DeviceContract, ReadOnlyMemoryCanBeRead) {
  constexpr size_t kBytes = (17 << 20) + 4096;  // more than one staging buffer
  const SharedPages pages(kBytes, /*writable=*/false);
  const Bytes bytes = RandomBytes(kBytes, 4);
  std::memcpy(pages.writable().data(), bytes.data(), kBytes);
  auto pinned = device_->Pin(pages.shown(), {.access = PinAccess::kRead, .piece_bytes = MiB(4)});
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  (*pinned)->WaitDecided();
  EXPECT_THAT((*pinned)->path(), ::testing::AnyOf(PinPath::kReadOnly, PinPath::kStaged));
  EXPECT_EQ((*pinned)->path() == PinPath::kStaged, !(*pinned)->refusal().empty());
  const auto memory = Allocate(kBytes);
  Copy(CopyDirection::kToDevice, memory->address(), pages.address(), kBytes);
  ASSERT_TRUE(queue_->Wait().ok());
  EXPECT_EQ(Download(memory->address(), kBytes), bytes);
  const DeviceCopy back{pages.address(), memory->address(), 1};
  EXPECT_TRUE(
      absl::IsInvalidArgument(queue_->CopyBatch(CopyDirection::kFromDevice, std::span(&back, 1))));
}

TEST_P(DeviceContract, MemoryThatIsNotPinnedIsRefused) {
  const auto memory = Allocate(4096);
  const SharedPages pages(8192, /*writable=*/true);
  const auto copy = [&](uint64_t offset, uint64_t bytes) {
    const DeviceCopy one{memory->address(), pages.address() + offset, bytes};
    return queue_->CopyBatch(CopyDirection::kToDevice, std::span(&one, 1));
  };
  EXPECT_TRUE(absl::IsInvalidArgument(copy(0, 1)));
  {
    auto pinned = device_->Pin(pages.shown().first(4096), {});
    ASSERT_TRUE(pinned.ok());
    EXPECT_TRUE(copy(0, 4096).ok());
    EXPECT_TRUE(absl::IsInvalidArgument(copy(1, 4096)));
    EXPECT_TRUE(absl::IsInvalidArgument(copy(4096, 1)));
    ASSERT_TRUE(queue_->Wait().ok());
    // Memory that is pinned already, that does not begin at a page, and of size zero.
    EXPECT_TRUE(absl::IsAlreadyExists(device_->Pin(pages.shown(), {}).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(device_->Pin(pages.shown().subspan(5), {}).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(device_->Pin({}, {}).status()));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(copy(0, 1)));
}

TEST_P(DeviceContract, WorkInOneQueueIsDoneInOrder) {
  constexpr size_t kBytes = 1 << 20;
  const auto memory = Allocate(2 * kBytes);
  const Bytes bytes = RandomBytes(kBytes, 5);
  Upload(bytes, memory->address());
  const uint64_t a = memory->address(), b = a + kBytes;
  const auto pinned = AllocatePinned(kBytes);
  for (int i = 0; i < 50; ++i) {
    Copy(CopyDirection::kWithin, b, a, kBytes);
    Copy(CopyDirection::kFromDevice, AddressOf(*pinned), b, kBytes);
    Copy(CopyDirection::kToDevice, a, AddressOf(*pinned), kBytes);
  }
  ASSERT_TRUE(queue_->Wait().ok());
  EXPECT_EQ(Download(b, kBytes), bytes);
}

// Threads that wait may do some of the work (the host device).  Each batch moves the chunks of one
// half of the memory to the other half, one place further.
TEST_P(DeviceContract, WorkIsDoneInOrderWhileThreadsWait) {
  constexpr size_t kChunks = 24, kChunk = 96 << 10, kHalf = kChunks * kChunk, kBatches = 200;
  const auto memory = Allocate(2 * kHalf);
  const Bytes bytes = RandomBytes(kHalf, 6);
  Upload(bytes, memory->address());
  std::vector<std::unique_ptr<DeviceEvent>> events;
  {
    std::vector<std::jthread> waiting;
    for (size_t batch = 0; batch < kBatches; ++batch) {
      const uint64_t from = memory->address() + batch % 2 * kHalf;
      const uint64_t to = memory->address() + (batch + 1) % 2 * kHalf;
      std::vector<DeviceCopy> copies;
      for (size_t i = 0; i < kChunks; ++i)
        copies.push_back({to + (i + 1) % kChunks * kChunk, from + i * kChunk, kChunk});
      ASSERT_TRUE(queue_->CopyBatch(CopyDirection::kWithin, copies).ok());
      if (batch % 20 != 0) continue;
      auto event = queue_->Record();
      ASSERT_TRUE(event.ok());
      events.push_back(*std::move(event));
      waiting.emplace_back([&event = *events.back()] {
        EXPECT_TRUE(event.Wait(SoonEnough()).ok());
        EXPECT_TRUE(event.Done().value());
      });
    }
    ASSERT_TRUE(queue_->Wait().ok());
  }
  const Bytes moved = Download(memory->address(), kHalf);
  for (size_t i = 0; i < kChunks; ++i)
    EXPECT_EQ(0, std::memcmp(moved.data() + (i + kBatches) % kChunks * kChunk,
                             bytes.data() + i * kChunk, kChunk))
        << "chunk " << i;
}

TEST_P(DeviceContract, QueuesAreOrderedByEvents) {
  constexpr size_t kBytes = 16 << 20;
  const auto memory = Allocate(2 * kBytes);
  const auto other = MakeQueue();
  const auto pinned = AllocatePinned(kBytes);
  for (uint64_t round = 0; round < 5; ++round) {
    const Bytes bytes = RandomBytes(kBytes, 100 + round);
    std::memcpy(Writable(*pinned).data(), bytes.data(), kBytes);
    Copy(CopyDirection::kToDevice, memory->address(), AddressOf(*pinned), kBytes);
    auto loaded = queue_->Record();
    ASSERT_TRUE(loaded.ok());
    ASSERT_TRUE(other->WaitFor(**loaded).ok());
    const DeviceCopy within{memory->address() + kBytes, memory->address(), kBytes};
    ASSERT_TRUE(other->CopyBatch(CopyDirection::kWithin, std::span(&within, 1)).ok());
    auto moved = other->Record();
    ASSERT_TRUE(moved.ok());
    ASSERT_TRUE((*moved)->Wait(SoonEnough()).ok());
    EXPECT_TRUE((*moved)->Done().value());
    EXPECT_TRUE((*loaded)->Done().value());
    EXPECT_EQ(Download(memory->address() + kBytes, kBytes), bytes);
  }
}

TEST_P(DeviceContract, AWaitForAnEventEndsAtItsDeadline) {
  constexpr size_t kBytes = 64 << 20;
  const auto memory = Allocate(kBytes);
  for (int i = 0; i < 20; ++i)
    Copy(CopyDirection::kWithin, memory->address(), memory->address() + kBytes / 2, kBytes / 2);
  auto event = queue_->Record();
  ASSERT_TRUE(event.ok());
  const absl::Status now = (*event)->Wait(std::chrono::steady_clock::now());
  EXPECT_TRUE(now.ok() || absl::IsDeadlineExceeded(now)) << now;
  EXPECT_TRUE((*event)->Wait(SoonEnough()).ok());
  queue_.reset();  // an event outlives its queue
  EXPECT_TRUE((*event)->Done().value());
}

TEST_P(DeviceContract, TooMuchMemoryIsAnError) {
  const auto memory = device_->Allocate(ByteCount(uint64_t{1} << 46), SharePath::kNone);
  EXPECT_TRUE(absl::IsResourceExhausted(memory.status())) << memory.status();
  EXPECT_TRUE(absl::IsInvalidArgument(device_->Allocate(ByteCount(0)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(device_->AllocatePinned(ByteCount(0)).status()));
}

TEST_P(DeviceContract, MemoryIsSharedByDescriptor) {
  constexpr size_t kBytes = (3 << 20) + 5;
  auto owned = device_->Allocate(ByteCount(kBytes), SharePath::kDescriptor);
  if (absl::IsUnavailable(owned.status())) GTEST_SKIP() << owned.status().message();
  ASSERT_TRUE(owned.ok()) << owned.status();
  auto exported = device_->Export(**owned);
  ASSERT_TRUE(exported.ok()) << exported.status();
  EXPECT_EQ(exported->path, SharePath::kDescriptor);
  EXPECT_EQ(exported->bytes.value(), kBytes);
  const DeviceStats before = device_->stats();
  auto imported = device_->Import(*exported);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(device_->stats().imports[0] - before.imports[0], 1u);
  const Bytes bytes = RandomBytes(kBytes, 6);
  Upload(bytes, (*owned)->address());
  EXPECT_EQ(Download((*imported)->address(), kBytes), bytes);
  owned->reset();  // the import outlives the owner
  *exported = DeviceExport();
  EXPECT_EQ(Download((*imported)->address(), kBytes), bytes);
}

TEST_P(DeviceContract, InvalidExportsAreRefused) {
  const auto memory = Allocate(4096);
  EXPECT_TRUE(absl::IsFailedPrecondition(device_->Export(*memory).status()));
  EXPECT_FALSE(device_->Import(DeviceExport()).ok());

  DeviceExport made_up(SharePath::kDescriptor, MiB(2));
  made_up.descriptor = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_FALSE(device_->Import(made_up).ok());
  made_up.bytes = ByteCount(0);
  EXPECT_FALSE(device_->Import(made_up).ok());

  DeviceExport handle(SharePath::kHandle, MiB(2));
  handle.handle.fill(std::byte{0x5A});
  EXPECT_FALSE(device_->Import(handle).ok());

  auto owned = device_->Allocate(MiB(2), SharePath::kDescriptor);
  if (!owned.ok()) return;
  auto exported = device_->Export(**owned);
  ASSERT_TRUE(exported.ok());
  exported->bytes = MiB(64);  // more than there is
  EXPECT_FALSE(device_->Import(*exported).ok());
}

// ---- Gather and scatter.

struct PagedCase {
  EngineKind kind = EngineKind::kLayerFirstNhd;
  EngineShape shape;
  PagedLayout engine;
  PayloadLayout payload;
  LayerRange layers;
  uint64_t engine_bytes = 0;
  std::vector<std::vector<uint32_t>> pages;  // per block
  std::vector<uint32_t> first_slots;
};

// Draws a small case within the limits.
inline PagedCase RandomCase(EngineKind kind, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto any = [&random](std::initializer_list<uint32_t> of) {
    return *(of.begin() + random() % of.size());
  };
  PagedCase c;
  c.kind = kind;
  const uint32_t element = any({1, 2});
  c.shape = {.layers = any({1, 2, 3, 5}),
             .heads = any({1, 2, 3, 8}),
             .row_bytes = any({64, 80, 128, 7, 576, 33}) * element,
             .page_tokens = any({1, 8, 16, 32, 48, 64}),
             .pages = 0};
  const uint32_t page = c.shape.page_tokens;
  uint32_t block_tokens = any({16, 32, 48, 64});
  if (block_tokens % page != 0 && page % block_tokens != 0) block_tokens = page;
  const uint32_t per_block = std::max(1u, block_tokens / page);
  c.shape.pages = any({1, 3, 7}) * per_block + any({0, 1});
  c.engine_bytes = LayOut(kind, c.shape, &c.engine);
  c.payload =
      PayloadOf(c.engine, block_tokens, random() % 2 ? RowOrder::kTokenHead : RowOrder::kHeadToken,
                any({1, 1, 2, 3}));
  c.layers.first = static_cast<uint32_t>(random() % c.shape.layers);
  c.layers.count = 1 + static_cast<uint32_t>(random() % (c.shape.layers - c.layers.first));
  // Each part of a page belongs to at most one block.
  std::vector<uint32_t> parts(c.shape.pages * std::max(1u, page / block_tokens));
  std::iota(parts.begin(), parts.end(), 0u);
  std::shuffle(parts.begin(), parts.end(), random);
  const size_t blocks = std::min<size_t>(1 + random() % 6, parts.size() / per_block);
  for (size_t b = 0; b < blocks; ++b) {
    std::vector<uint32_t> pages;
    for (uint32_t i = 0; i < per_block; ++i) {
      const uint32_t part = parts[b * per_block + i];
      pages.push_back(part / std::max(1u, page / block_tokens));
      if (i == 0) c.first_slots.push_back(part % std::max(1u, page / block_tokens) * block_tokens);
    }
    if (per_block > 1) c.first_slots.back() = 0;
    c.pages.push_back(std::move(pages));
  }
  return c;
}

class PagedMoveContract : public DeviceContract {
 protected:
  static constexpr size_t kGuard = 256;

  // Runs both directions of one case and compares every byte on both sides.
  void RunCase(PagedCase c, const std::string& name) {
    SCOPED_TRACE(name);
    const auto engine = Allocate(c.engine_bytes + kGuard);
    for (uint64_t& base : c.engine.bases) base += engine->address();
    const auto plan = PagedPlan::Make(c.engine, c.payload);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const size_t block_bytes = RoundUp(c.payload.table.PayloadBytes().value() + kGuard, 64);
    const auto payloads = Allocate(block_bytes * c.pages.size());
    std::vector<PagedBlock> blocks;
    for (size_t b = 0; b < c.pages.size(); ++b)
      blocks.push_back({payloads->address() + b * block_bytes, c.pages[b], c.first_slots[b]});
    const PagedMove move{c.layers, blocks, static_cast<uint32_t>(block_bytes % 3)};

    const Bytes kv = RandomBytes(c.engine_bytes + kGuard, 11);
    const Bytes before = RandomBytes(block_bytes * c.pages.size(), 12);
    Upload(kv, engine->address());
    Upload(before, payloads->address());
    ASSERT_TRUE(queue_->Gather(*plan, move).ok());
    Bytes expected = before;
    ForEach(c, engine->address(), [&](size_t b, uint64_t in_engine, uint64_t in_payload) {
      std::memcpy(expected.data() + b * block_bytes + in_payload, kv.data() + in_engine,
                  c.engine.row_bytes);
    });
    const Bytes gathered = Download(payloads->address(), before.size());
    EXPECT_TRUE(gathered == expected) << "gather wrote wrong payloads";
    EXPECT_TRUE(Download(engine->address(), kv.size()) == kv) << "gather wrote to the engine";

    const Bytes fresh = RandomBytes(kv.size(), 13);
    Upload(fresh, engine->address());
    ASSERT_TRUE(queue_->Scatter(*plan, move).ok());
    expected = fresh;
    ForEach(c, engine->address(), [&](size_t b, uint64_t in_engine, uint64_t in_payload) {
      std::memcpy(expected.data() + in_engine, gathered.data() + b * block_bytes + in_payload,
                  c.engine.row_bytes);
    });
    EXPECT_TRUE(Download(engine->address(), kv.size()) == expected) << "scatter wrote wrong pages";
    CheckRuns(c, *plan, blocks, kv, gathered, engine->address(), payloads->address());
  }

  template <class Visit>
  static void ForEach(const PagedCase& c, uint64_t engine_at, Visit visit) {
    for (size_t b = 0; b < c.pages.size(); ++b)
      ForEachRow(c.engine, c.payload, c.layers, c.pages[b], c.first_slots[b],
                 [&](uint64_t in_engine, uint64_t in_payload) {
                   visit(b, in_engine - engine_at, in_payload);
                 });
  }
  // The same move expressed as copies moves the same bytes to the same places.
  static void CheckRuns(const PagedCase& c, const PagedPlan& plan,
                        std::span<const PagedBlock> blocks, const Bytes& kv, const Bytes& gathered,
                        uint64_t engine_at, uint64_t payloads_at) {
    uint64_t bytes = 0;
    for (const RunCopy& run : RunsOf(plan, c.layers, blocks)) {
      bytes += run.bytes;
      EXPECT_EQ(std::memcmp(gathered.data() + (run.payload - payloads_at),
                            kv.data() + (run.engine - engine_at), run.bytes),
                0);
    }
    EXPECT_EQ(bytes, plan.BytesPerBlock(c.layers).value() * blocks.size());
  }
};

TEST_P(PagedMoveContract, AgreesWithTheOracle) {
  const int cases = static_cast<int>(testing::Scaled(400));
  for (const EngineKind kind : kEngineKinds)
    for (int seed = 0; seed < cases && !HasFailure(); ++seed)
      RunCase(RandomCase(kind, static_cast<uint64_t>(seed)),
              NameOf(kind) + " seed " + std::to_string(seed));
}

TEST_P(PagedMoveContract, FiveHundredBlocksAreOneLaunch) {
  PagedLayout engine;
  const EngineShape shape{
      .layers = 4, .heads = 8, .row_bytes = 256, .page_tokens = 16, .pages = 512};
  const uint64_t bytes = LayOut(EngineKind::kLayerFirstHnd, shape, &engine);
  const auto cache = Allocate(bytes);
  for (uint64_t& base : engine.bases) base += cache->address();
  const PayloadLayout payload = PayloadOf(engine, 16, RowOrder::kTokenHead, 1);
  const auto plan = PagedPlan::Make(engine, payload);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->access_bytes(), 16u);
  const auto payloads = Allocate(payload.table.PayloadBytes().value() * 512);
  std::vector<uint32_t> pages(512);
  std::iota(pages.rbegin(), pages.rend(), 0u);
  std::vector<PagedBlock> blocks;
  for (size_t b = 0; b < 512; ++b)
    blocks.push_back({payloads->address() + b * payload.table.PayloadBytes().value(),
                      std::span(&pages[b], 1), 0});
  Upload(RandomBytes(payloads->bytes().value(), 14), payloads->address());
  const DeviceStats before = device_->stats();
  ASSERT_TRUE(queue_->Scatter(*plan, {{0, 4}, blocks, 0}).ok());
  ASSERT_TRUE(queue_->Wait().ok());
  EXPECT_EQ(device_->stats().launches - before.launches, 1u);
  EXPECT_EQ((device_->stats().bytes_moved - before.bytes_moved).value(), bytes);
}

TEST_P(PagedMoveContract, AMoveThatDoesNotFitIsRefused) {
  PagedLayout engine;
  const EngineShape shape{.layers = 2, .heads = 2, .row_bytes = 64, .page_tokens = 16, .pages = 4};
  const auto cache = Allocate(LayOut(EngineKind::kPagedPlanesNhd, shape, &engine));
  for (uint64_t& base : engine.bases) base += cache->address();
  const auto plan = PagedPlan::Make(engine, PayloadOf(engine, 32, RowOrder::kTokenHead, 1));
  ASSERT_TRUE(plan.ok());
  const auto payload = Allocate(1 << 20);
  Upload(RandomBytes(1 << 20, 15), payload->address());
  const std::vector<uint32_t> two{0, 3}, one{0}, beyond{0, 4};
  const auto scatter = [&](LayerRange layers, PagedBlock block) {
    const absl::Status status = queue_->Scatter(*plan, {layers, std::span(&block, 1), 0});
    EXPECT_TRUE(queue_->Wait().ok());
    return status;
  };
  const uint64_t at = payload->address();
  EXPECT_TRUE(scatter({0, 2}, {at, two, 0}).ok());
  for (const LayerRange layers :
       {LayerRange{0, 0}, LayerRange{0, 3}, LayerRange{2, 1}, LayerRange{1, 0xFFFFFFFF}})
    EXPECT_TRUE(absl::IsInvalidArgument(scatter(layers, {at, two, 0})));
  EXPECT_TRUE(absl::IsInvalidArgument(scatter({0, 2}, {at, one, 0})));
  EXPECT_TRUE(absl::IsInvalidArgument(scatter({0, 2}, {at, beyond, 0})));
  EXPECT_TRUE(absl::IsInvalidArgument(scatter({0, 2}, {at, two, 16})));
  EXPECT_TRUE(absl::IsInvalidArgument(scatter({0, 2}, {at + 8, two, 0})));
  EXPECT_TRUE(queue_->Scatter(*plan, {{0, 2}, {}, 0}).ok());
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PagedMoveContract);

}  // namespace larder
