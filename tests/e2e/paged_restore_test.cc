// Restores a prefix into pages of a device, computing and loading at the same time, from a real
// daemon that may be stopped or killed meanwhile.  Every byte of every page must be right, and once
// the restore has ended nothing may write to the pages any more.  The device is the host device, or
// a GPU with LARDER_TEST_DEVICE=cuda.
//
// LARDER_TEST_SCALE (default 0.1) scales the 100 restores that are cancelled at random.
#include "client/paged_restore.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "tests/cuda/paged_oracle.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/shared_memory.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

constexpr uint32_t kLayers = 3, kHeads = 4, kBlockTokens = 16, kBlocks = 128, kChunk = 64;
constexpr LayerRange kAllLayers{0, kLayers};
constexpr ChannelId kPool{1};
constexpr double kChunk_s = 4e-3;  // the time to compute a chunk
constexpr size_t kChunks = 8;      // chunks in which a restore is cancelled; about 16 are computed

// A cache on a device.  Block b of the prefix is in page kBlocks - 1 - b.
class Pages {
 public:
  explicit Pages(Device& device) : queue_(*device.MakeQueue()) {
    const EngineShape shape{.layers = kLayers,
                            .heads = kHeads,
                            .row_bytes = 64,
                            .page_tokens = kBlockTokens,
                            .pages = kBlocks};
    bytes_ = LayOut(EngineKind::kLayerFirstHnd, shape, &relative_);
    memory_ = *device.Allocate(ByteCount(bytes_));
    buffer_ = *device.AllocatePinned(ByteCount(bytes_));
    layout_ = relative_;
    for (uint64_t& base : layout_.bases) base += memory_->address();
    payload_ = PayloadOf(relative_, kBlockTokens, RowOrder::kTokenHead, 1);
    for (uint32_t b = 0; b < kBlocks; ++b) numbers_.push_back(kBlocks - 1 - b);
  }
  [[nodiscard]] const PagedLayout& layout() const { return layout_; }
  [[nodiscard]] const PayloadLayout& payload() const { return payload_; }
  [[nodiscard]] uint32_t layer_bytes() const { return payload_.table.segments[0].bytes; }
  [[nodiscard]] std::span<const uint32_t> PageOf(uint32_t block) const {
    return {&numbers_[block], 1};
  }

  // Writes blocks [begin, end) to their pages row by row, as computing them would.
  void Compute(std::span<const Digest> blocks, uint32_t begin, uint32_t end) {
    std::vector<DeviceCopy> rows;
    for (uint32_t b = begin; b < end; ++b) {
      const std::vector<std::byte> payload = PayloadOfBlock(blocks[b]);
      ForEachRow(
          relative_, payload_, kAllLayers, PageOf(b), 0,
          [&](uint64_t in_engine, uint64_t in_payload) {
            std::memcpy(Buffer() + in_engine, payload.data() + in_payload, relative_.row_bytes);
            rows.push_back(
                {memory_->address() + in_engine, BufferAt() + in_engine, relative_.row_bytes});
          });
    }
    Do(CopyDirection::kToDevice, rows);
  }
  void Fill(std::byte value) {
    std::memset(Buffer(), static_cast<int>(value), bytes_);
    Do(CopyDirection::kToDevice, {{memory_->address(), BufferAt(), bytes_}});
  }
  [[nodiscard]] bool IsFull(std::byte value) {
    Download();
    return std::all_of(Buffer(), Buffer() + bytes_, [=](std::byte b) { return b == value; });
  }
  void ExpectRight(std::span<const Digest> blocks) {
    Download();
    for (uint32_t b = 0; b < blocks.size(); ++b) {
      const std::vector<std::byte> payload = PayloadOfBlock(blocks[b]);
      uint32_t wrong = 0;
      ForEachRow(relative_, payload_, kAllLayers, PageOf(b), 0,
                 [&](uint64_t in_engine, uint64_t in_payload) {
                   wrong += std::memcmp(Buffer() + in_engine, payload.data() + in_payload,
                                        relative_.row_bytes) == 0
                                ? 0
                                : 1;
                 });
      ASSERT_EQ(wrong, 0u) << "rows of block " << b;
    }
  }

 private:
  [[nodiscard]] std::byte* Buffer() const {
    return const_cast<std::byte*>(buffer_->bytes().data());
  }
  [[nodiscard]] uint64_t BufferAt() const { return reinterpret_cast<uint64_t>(Buffer()); }
  [[nodiscard]] std::vector<std::byte> PayloadOfBlock(const Digest& digest) const {
    const size_t stride = RoundUp(layer_bytes(), kSegmentAlign);
    std::vector<std::byte> payload(kLayers * stride);
    for (uint32_t layer = 0; layer < kLayers; ++layer)
      FillLayer(digest, layer, std::span(payload).subspan(layer * stride, layer_bytes()));
    return payload;
  }
  void Download() { Do(CopyDirection::kFromDevice, {{BufferAt(), memory_->address(), bytes_}}); }
  void Do(CopyDirection way, const std::vector<DeviceCopy>& copies) {
    EXPECT_TRUE(queue_->CopyBatch(way, copies).ok());
    EXPECT_TRUE(queue_->Wait().ok());
  }

  uint64_t bytes_ = 0;
  PagedLayout relative_, layout_;
  PayloadLayout payload_;
  std::vector<uint32_t> numbers_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<PinnedMemory> buffer_;
  std::unique_ptr<DeviceQueue> queue_;
};

class PagedRestoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.serves()) << daemon_.errors();
    auto opened = OpenTestDevice();
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
    pages_.emplace(*device_);
    auto client = Client::Connect({.socket_dir = daemon_.folder()->path()});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto session = client_->Attach({.engine_id = "paged", .device = device_.get()});
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    maker_.variant.layers = kLayers;
    const auto variants = session_->Register({&maker_.content, 1}, {&maker_.variant, 1});
    ASSERT_TRUE(variants.ok()) << variants.status();
    variant_ = variants->front();
    auto cache = PagedCache::Make(*session_, *device_, variant_, pages_->layout(),
                                  pages_->payload(), {.staging_bytes = KiB(512)});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
    for (uint32_t i = 0; i < kBlocks * kBlockTokens; ++i) tokens_.push_back(i);
    blocks_ = Chain(session_->Seed(maker_.content), tokens_);
    ASSERT_NO_FATAL_FAILURE(Store());
  }
  // Stores the prefix from the pages, as the engine that computed it would, and overwrites the
  // pages.
  void Store() {
    pages_->Compute(blocks_, 0, kBlocks);
    std::vector<PagedPut> puts;
    for (uint32_t b = 0; b < kBlocks; ++b) {
      puts.push_back({.digest = blocks_[b],
                      .parent = b == 0 ? session_->Seed(maker_.content) : blocks_[b - 1],
                      .tokens = std::span(tokens_).subspan(size_t{b} * kBlockTokens, kBlockTokens),
                      .pages = pages_->PageOf(b)});
    }
    const auto put = cache_->Put(puts);
    ASSERT_TRUE(put.ok()) << put.status();
    for (const BlockStatus status : *put) ASSERT_EQ(status, BlockStatus::kOk);
    pages_->Fill(std::byte{0xEE});
  }
  void Forget(const std::vector<uint32_t>& blocks) {
    wire::ClearQuery query;
    query.tiers = TierBit(Tier::kHost);
    for (const uint32_t b : blocks) query.blocks.digests.push_back(blocks_[b]);
    const auto cleared = client_->Clear(query);
    ASSERT_TRUE(cleared.ok()) << cleared.status();
    ASSERT_EQ(cleared->host.blocks, blocks.size());
  }
  [[nodiscard]] PagedRestore Engine() {
    std::vector<PagedGet> gets;
    for (uint32_t b = 0; b < kBlocks; ++b)
      gets.push_back({.digest = blocks_[b], .pages = pages_->PageOf(b)});
    return PagedRestore({cache_.get()}, std::move(gets), kAllLayers, [this](TokenRange tokens) {
      if (before_compute_) before_compute_(tokens);
      const double takes_s = kChunk_s * (tokens.end - tokens.begin) / kChunk;
      const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(takes_s);
      pages_->Compute(blocks_, tokens.begin / kBlockTokens, tokens.end / kBlockTokens);
      std::this_thread::sleep_until(until);  // as if the device computed
      return absl::OkStatus();
    });
  }
  // Restores the prefix over an emulated link, on which a block takes as long to load as to
  // compute.
  [[nodiscard]] absl::StatusOr<Restorer::Restored> Restore(bool hedges = false) {
    const std::vector<ByteCount> layer_bytes(kLayers, ByteCount(pages_->layer_bytes()));
    const RestorePrefix prefix{.blocks = blocks_,
                               .channel_of_block = std::vector<ChannelId>(kBlocks, kPool),
                               .layer_bytes = layer_bytes,
                               .chunk_tokens = kChunk,
                               .cut_tokens = 2 * kBlockTokens};
    Restorer::Options options;
    options.scheduler.hedges = hedges;
    options.carry = [this](ChannelId, ByteCount bytes, TimePoint now) {
      ++requested_;
      const double link_s = kChunk_s * static_cast<double>(bytes.value()) /
                            (kLayers * pages_->layer_bytes() * (kChunk / kBlockTokens));
      link_free_ = std::max(link_free_, now) +
                   std::chrono::duration_cast<Duration>(std::chrono::duration<double>(link_s));
      return link_free_;
    };
    const double rate = kLayers * pages_->layer_bytes() * (kChunk / kBlockTokens) / kChunk_s;
    restorer_.emplace(*session_, variant_,
                      Profile{.model = "paged",
                              .layers = kLayers,
                              .compute = {.fixed_s = 0, .linear_s = kChunk_s / kChunk},
                              .channels = {{"pool", rate}}},
                      options);
    PagedRestore engine = Engine();
    return restorer_->Restore(prefix, engine);
  }

  BlockMaker maker_;
  DaemonProcess daemon_{{"--pool", "64MiB", "--slab", "16MiB", "--check-one-in", "1"}};
  std::unique_ptr<Device> device_;
  std::optional<Pages> pages_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;
  VariantHandle variant_;
  std::unique_ptr<PagedCache> cache_;
  std::vector<uint32_t> tokens_;
  std::vector<Digest> blocks_;
  std::function<void(TokenRange)> before_compute_;
  TimePoint link_free_;
  std::atomic<int> requested_ = 0;  // batches that the channel has requested
  std::optional<Restorer> restorer_;
};

TEST_F(PagedRestoreTest, ComputesAndLoadsAtTheSameTime) {
  const auto restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  pages_->ExpectRight(blocks_);
  EXPECT_GT(restored->computed_tokens, 0u);
  EXPECT_GT(restored->loaded_tokens, 0u);
  EXPECT_EQ(restored->computed_tokens + restored->loaded_tokens, kBlocks * kBlockTokens);
}

TEST_F(PagedRestoreTest, MissingBlocksAreComputed) {
  ASSERT_NO_FATAL_FAILURE(Forget({3, 50, 51, 127}));
  const auto restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  pages_->ExpectRight(blocks_);
}

TEST_F(PagedRestoreTest, ComputesTheRestAfterTheDaemonIsKilled) {
  before_compute_ = [&](TokenRange tokens) {
    if (tokens.begin < 2 * kChunk || !daemon_.alive()) return;
    // The channel requests the second batch when it has reported the first one.
    EXPECT_TRUE(Eventually([&] { return requested_ >= 2; }));
    daemon_.Kill9();
  };
  const auto restored = Restore();
  EXPECT_FALSE(daemon_.alive());
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_GT(restored->loaded_tokens, 0u);
  pages_->ExpectRight(blocks_);
}

TEST_F(PagedRestoreTest, DoesNotWaitForAStoppedDaemon) {
  bool stopped = false;
  before_compute_ = [&](TokenRange tokens) {
    if (tokens.begin < 2 * kChunk || stopped) return;
    daemon_.Signal(SIGSTOP);
    stopped = true;
  };
  const auto restored = Restore();
  daemon_.Signal(SIGCONT);
  EXPECT_TRUE(stopped);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_LT(restored->restore_s, 5)
      << "it waited for the daemon: a call lasts up to 10 s, computing everything takes 0.13 s";
  pages_->ExpectRight(blocks_);
}

// After a cancelled restore the engine may give the pages to another request.
TEST_F(PagedRestoreTest, NothingWritesToThePagesAfterACancelledRestore) {
  std::mt19937 random(testing::TestSeed());
  uint64_t cancelled = 0;
  for (uint64_t i = 0; i < testing::Scaled(100); ++i) {
    const auto at = static_cast<uint32_t>(random() % kChunks) * kChunk;
    const std::chrono::microseconds later(random() % 2'000);
    std::optional<std::thread> canceller;
    before_compute_ = [&](TokenRange tokens) {
      if (tokens.begin < at || canceller) return;
      canceller.emplace([&] {
        std::this_thread::sleep_for(later);
        restorer_->Cancel();
      });
    };
    const auto restored = Restore();
    pages_->Fill(std::byte{0x77});
    if (canceller) canceller->join();
    if (!restored.ok()) {
      EXPECT_TRUE(absl::IsCancelled(restored.status())) << restored.status();
      ++cancelled;
    }
    std::this_thread::sleep_for(
        std::chrono::milliseconds(5));  // lets a load that is still under way write to the pages
    ASSERT_TRUE(pages_->IsFull(std::byte{0x77})) << "cancelled at " << at;
  }
  EXPECT_GT(cancelled, 0u);
}

TEST_F(PagedRestoreTest, HedgingIsRefused) {
  const auto restored = Restore(/*hedges=*/true);
  EXPECT_TRUE(absl::IsInvalidArgument(restored.status())) << restored.status();
}

}  // namespace
}  // namespace larder::e2e
