// Engines with a paged KV cache on a device restore it through a running daemon, check every byte,
// and are killed at random moments.  The device is the host device, or a GPU with
// LARDER_TEST_DEVICE=cuda.
//
// LARDER_TEST_SCALE (default 0.1) scales the 200 kills and the 100 owners of shared memory;
// LARDER_TEST_SEED replays a run.
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "client/device_imports.h"
#include "client/paged_cache.h"
#include "gtest/gtest.h"
#include "storage/clock.h"
#include "tests/e2e/support/child_engine.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/nothing_left.h"
#include "tests/e2e/support/shared_memory.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

ShareTicket TicketOf(const std::string& hex) {
  ShareTicket ticket;
  for (size_t i = 0; i < ticket.size(); ++i)
    ticket[i] = static_cast<std::byte>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  return ticket;
}

constexpr int kLayouts = 8 * 3 * 2;  // 8 kinds of caches, 3 sizes of pages, 2 sizes of rows

TEST(PagedCacheTest, EveryLayoutIsReadRightInEveryMode) {
  DaemonProcess daemon({"--pool", "64MiB", "--slab", "16MiB", "--check-one-in", "1"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  for (const char* mode : {"mapped", "staged", "stream"}) {
    for (uint32_t layout = 0; layout < kLayouts; ++layout) {
      ChildEngine engine(daemon, mode, "once", layout, PAGED_ENGINE_PATH);
      EXPECT_EQ(engine.Hear(), "done 96") << mode << ", layout " << layout;
      EXPECT_EQ(engine.Wait(), 0) << mode << ", layout " << layout;
    }
  }
  EXPECT_EQ(daemon.Metric("larder_blocks_damaged_total{tier=\"host\"}"), 0);
}

// A cache of pages that are moved whole, one block in each part of a batch.
struct OnePageAtATime {
  static constexpr uint32_t kTokens = 16, kBytes = 64 << 10;

  OnePageAtATime(WriteMode mode, uint32_t blocks) {
    memory = opened->device->Allocate(ByteCount(uint64_t{blocks} * kBytes)).value();
    client = Client::Connect({.socket_dir = daemon.folder()->path()}).value();
    session = client->Attach({.engine_id = "e", .write_mode = mode, .device = opened->device.get()})
                  .value();
    ContentSpec content;
    content.model = "m";
    VariantSpec spec;
    spec.dtype = "u8";
    spec.layout = "opaque/1";
    spec.block_tokens = kTokens;
    spec.layers = 1;
    const VariantHandle variant = session->Register({&content, 1}, {&spec, 1}).value().front();
    const PagedLayout pages =
        PagedLayout::Opaque({memory->address()}, kBytes, kBytes, blocks, kTokens);
    PagedCacheOptions options;
    options.staging_bytes = ByteCount(4 * (kBytes + kPageBytes));
    cache = PagedCache::Make(*session, *opened->device, variant, pages,
                             PayloadLayout::Opaque(pages), options)
                .value();
    tokens.resize(size_t{blocks} * kTokens);
    numbers.resize(blocks);
    std::iota(tokens.begin(), tokens.end(), 0);
    std::iota(numbers.begin(), numbers.end(), 0);
    const Digest seed = session->Seed(content);
    const std::vector<Digest> chain = Chain(seed, tokens);
    for (uint32_t b = 0; b < blocks; ++b) {
      puts.push_back({.digest = chain[b],
                      .parent = b == 0 ? seed : chain[b - 1],
                      .tokens = std::span(tokens).subspan(size_t{b} * kTokens, kTokens),
                      .pages = {&numbers[b], 1}});
      gets.push_back({.digest = chain[b], .pages = {&numbers[b], 1}});
    }
  }
  [[nodiscard]] std::span<std::byte> Page(uint32_t number) const {
    return {reinterpret_cast<std::byte*>(memory->address() + uint64_t{number} * kBytes), kBytes};
  }

  DaemonProcess daemon{{"--pool", "128MiB", "--slab", "16MiB"}};
  const absl::StatusOr<OpenedDevice> opened = OpenDevice(DeviceWish::kHost);
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<Client> client;
  std::unique_ptr<Session> session;
  std::unique_ptr<PagedCache> cache;
  std::vector<uint32_t> tokens, numbers;
  std::vector<PagedPut> puts;
  std::vector<PagedGet> gets;
};

class PartsTest : public ::testing::TestWithParam<WriteMode> {};

// The deadline is far too short for all parts, but long enough for each.
TEST_P(PartsTest, ShareADeadline) {
  constexpr std::chrono::milliseconds kDeadline(8);
  OnePageAtATime pages(GetParam(), 1'000);
  const auto late = pages.cache->Put(pages.puts, nullptr, {.deadline = kDeadline});
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  const auto put = pages.cache->Put(pages.puts);
  ASSERT_TRUE(put.ok()) << put.status();
  if (GetParam() == WriteMode::kMapped) return;  // it loads all blocks at once
  auto load = pages.cache->Load(std::span(pages.gets).first(PagedCache::kLoadBlocksMax), {0, 1},
                                nullptr, {.deadline = kDeadline});
  if (!load.ok()) {  // a part was late by itself
    EXPECT_TRUE(absl::IsDeadlineExceeded(load.status())) << load.status();
    return;
  }
  const auto loaded = load->Wait(SteadyNow() + std::chrono::seconds(10));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->back(), BlockStatus::kCancelled);
}

// Lets pages be read until its third Begin, from which on they have other bytes.
class ReadsOfTwo final : public PageReads {
 public:
  explicit ReadsOfTwo(OnePageAtATime& pages) : pages_(pages) {}
  [[nodiscard]] bool Begin() override {
    if (++begun_ <= 2) return true;
    for (uint32_t page = 0; page < 4; ++page) std::ranges::fill(pages_.Page(page), std::byte{0x77});
    return false;
  }
  void End() override { ++ended_; }
  int begun_ = 0, ended_ = 0;

 private:
  OnePageAtATime& pages_;
};

TEST_P(PartsTest, AreNotReadOnceTheyMayNotBe) {
  OnePageAtATime pages(GetParam(), 4);
  for (uint32_t page = 0; page < 4; ++page) std::ranges::fill(pages.Page(page), std::byte(page));
  ReadsOfTwo reads(pages);
  const auto put = pages.cache->Put(pages.puts, nullptr, {}, &reads);
  EXPECT_TRUE(absl::IsCancelled(put.status())) << put.status();
  EXPECT_EQ(reads.begun_, 3);
  EXPECT_EQ(reads.ended_, 2);
  auto load = pages.cache->Load(pages.gets, {0, 1});
  ASSERT_TRUE(load.ok()) << load.status();
  const auto loaded = load->Wait(SteadyNow() + std::chrono::seconds(10));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(*loaded, (std::vector{BlockStatus::kOk, BlockStatus::kOk, BlockStatus::kMissing,
                                  BlockStatus::kMissing}));
  for (uint32_t page = 0; page < 2; ++page) {
    for (const std::byte byte : pages.Page(page)) ASSERT_EQ(byte, std::byte(page));
  }
}

INSTANTIATE_TEST_SUITE_P(By, PartsTest, ::testing::Values(WriteMode::kMapped, WriteMode::kStream),
                         [](const auto& mode) { return std::string(ToString(mode.param)); });

TEST(PagedCacheTest, EnginesThatAreKilledLeaveNothingHeld) {
  DaemonProcess daemon({"--pool", "64MiB", "--slab", "16MiB", "--check-one-in", "1"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  ChildEngine(daemon, "mapped", "once", 0, PAGED_ENGINE_PATH).Wait();
  const size_t descriptors = SettledDescriptors(daemon);

  std::mt19937 random(testing::TestSeed());
  const uint64_t kills = testing::Scaled(200);
  std::deque<std::unique_ptr<ChildEngine>> live;
  for (uint64_t i = 0; i < kills || !live.empty(); ++i) {
    if (i < kills)
      live.push_back(std::make_unique<ChildEngine>(
          daemon, random() % 3 == 0 ? "staged" : "mapped", "churn",
          static_cast<uint32_t>(random() % 100'000), PAGED_ENGINE_PATH));
    if (i < 2 && i + 1 < kills) continue;  // three engines run at a time
    ASSERT_EQ(live.front()->Hear(), "ready");
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % 50'000));  // to a random point of its work
    (void)live.front()->KillAndProve();
    EXPECT_EQ(live.front()->Wait(), 128 + SIGKILL)
        << "the engine ended by itself: it read wrong bytes, or a call failed";
    live.pop_front();
  }
  EXPECT_EQ(daemon.Metric("larder_blocks_damaged_total{tier=\"host\"}"), 0);
  ExpectNothingLeft(daemon, descriptors);
}

// Imports the memory that engines share through a daemon.
struct Importer {
  void Start(size_t imports_max) {
    ASSERT_TRUE(daemon.serves()) << daemon.errors();
    auto opened = OpenTestDevice();
    ASSERT_TRUE(opened.ok()) << opened.status();
    device = *std::move(opened);
    auto connected = Client::Connect({.socket_dir = daemon.folder()->path()});
    ASSERT_TRUE(connected.ok()) << connected.status();
    client = *std::move(connected);
    imports.emplace(*client, *device, imports_max);
  }

  DaemonProcess daemon{{"--pool", "64MiB", "--slab", "16MiB"}};
  std::unique_ptr<Device> device;
  std::unique_ptr<Client> client;
  std::optional<DeviceImports> imports;
};

// Engines share memory through the daemon.  While the owner lives, an import gives the right bytes;
// afterwards it gives an error, also to a process that had imported the memory before.
TEST(PagedCacheTest, SharedMemoryCannotBeImportedAfterItsOwnersDeath) {
  Importer importer;
  ASSERT_NO_FATAL_FAILURE(importer.Start(/*imports_max=*/4));
  const auto buffer = importer.device->AllocatePinned(ByteCount(kSharedBytes)).value();
  const auto queue = importer.device->MakeQueue().value();
  const auto reads = [&](const DeviceMemory& memory, uint32_t seed) {
    const DeviceCopy copy{reinterpret_cast<uint64_t>(buffer->bytes().data()), memory.address(),
                          kSharedBytes};
    EXPECT_TRUE(queue->CopyBatch(CopyDirection::kFromDevice, std::span(&copy, 1)).ok());
    EXPECT_TRUE(queue->Wait().ok());
    std::vector<std::byte> expected(kSharedBytes);
    FillShared(seed, expected);
    return std::ranges::equal(buffer->bytes(), expected);
  };
  const uint64_t owners = testing::Scaled(100);
  for (uint32_t seed = 0; seed < owners; ++seed) {
    auto owner =
        std::make_unique<ChildEngine>(importer.daemon, "mapped", "own", seed, PAGED_ENGINE_PATH);
    const std::string said = owner->Hear().value_or("nothing");
    ASSERT_TRUE(said.starts_with("ticket ")) << said;
    const ShareTicket ticket = TicketOf(said.substr(7));
    for (int i = 0; i < 3; ++i) {
      const auto memory = importer.imports->Get(ticket);
      ASSERT_TRUE(memory.ok()) << memory.status();
      EXPECT_TRUE(reads(**memory, seed));
    }
    (void)owner->KillAndProve();
    EXPECT_TRUE(
        Eventually([&] { return absl::IsNotFound(importer.imports->Get(ticket).status()); }));
    EXPECT_EQ(importer.imports->kept(), 0u);
  }
  const DeviceStats stats = importer.device->stats();
  EXPECT_EQ(stats.imports[0] + stats.imports[1], owners) << "a ticket was imported more than once";
  const auto count = [&importer](const std::string& what) {
    return importer.daemon.Metric("larder_sideband_given_total{what=\"" + what + "\"}");
  };
  EXPECT_EQ(count("share_descriptor") + count("share_handle"), owners);
  EXPECT_GE(count("open_descriptor") + count("open_handle"), 3 * owners);
}

TEST(PagedCacheTest, ImportsAreBounded) {
  Importer importer;
  ASSERT_NO_FATAL_FAILURE(importer.Start(/*imports_max=*/2));
  std::vector<std::unique_ptr<ChildEngine>> owners;
  for (uint32_t seed = 0; seed < 3; ++seed) {
    owners.push_back(
        std::make_unique<ChildEngine>(importer.daemon, "mapped", "own", seed, PAGED_ENGINE_PATH));
    const std::string said = owners.back()->Hear().value_or("nothing");
    ASSERT_TRUE(said.starts_with("ticket ")) << said;
    ASSERT_TRUE(importer.imports->Get(TicketOf(said.substr(7))).ok());
  }
  EXPECT_EQ(importer.imports->kept(), 2u);
  owners.clear();
  EXPECT_TRUE(Eventually([&] {
    importer.imports->Sweep();
    return importer.imports->kept() == 0;
  }));
}

}  // namespace
}  // namespace larder::e2e
