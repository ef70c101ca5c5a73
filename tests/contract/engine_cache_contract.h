// What EngineCache promises over every PageStore (client/engine/engine_cache.h), as tests.  A store
// provides an EngineWorld, and its test instantiates EngineCacheContract.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/engine/engine_cache.h"
#include "client/engine/token_chain.h"
#include "cuda/device.h"
#include "gtest/gtest.h"
#include "storage/clock.h"
#include "storage/format/block_key.h"
#include "storage/mutex.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder {

// The end of a computation, which the test sets.
class Computed final : public DeviceEvent {
 public:
  void Set() LARDER_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    done_ = true;
    changed_.NotifyAll();
  }
  [[nodiscard]] absl::StatusOr<bool> Done() const override LARDER_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    return done_;
  }
  [[nodiscard]] absl::Status Wait(TimePoint deadline) const override LARDER_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    while (!done_)
      if (!changed_.WaitUntil(mu_, deadline)) return absl::DeadlineExceededError("not computed");
    return absl::OkStatus();
  }

 private:
  mutable Mutex mu_;
  mutable CondVar changed_;
  bool done_ LARDER_GUARDED_BY(mu_) = false;
};

// The pages of an engine, in memory of the host: 16 tokens a page, one page a block.
class EnginePages {
 public:
  static constexpr uint32_t kLayers = 3, kPlanes = 2, kHeads = 2, kRowBytes = 64, kPageTokens = 16,
                            kPages = 96;
  static constexpr uint64_t kPageBytes = uint64_t{kPageTokens} * kHeads * kRowBytes;
  static constexpr uint64_t kPlaneBytes = kPages * kPageBytes;

  EnginePages()
      : device_(OpenDevice(DeviceWish::kHost).value().device),
        memory_(device_->Allocate(ByteCount(kLayers * kPlanes * kPlaneBytes)).value()) {}

  [[nodiscard]] Device& device() { return *device_; }
  [[nodiscard]] PagedLayout Layout() const {
    PagedLayout layout;
    layout.layers = kLayers;
    layout.planes = kPlanes;
    layout.heads = kHeads;
    layout.row_bytes = kRowBytes;
    layout.page_tokens = kPageTokens;
    layout.pages = kPages;
    layout.page_stride = kPageBytes;
    layout.token_stride = kHeads * kRowBytes;
    layout.head_stride = kRowBytes;
    for (uint32_t plane = 0; plane < kLayers * kPlanes; ++plane)
      layout.bases.push_back(memory_->address() + plane * kPlaneBytes);
    return layout;
  }
  [[nodiscard]] static PayloadLayout Payload() {
    return {.block_tokens = kPageTokens,
            .order = RowOrder::kTokenHead,
            .table = UniformTable(kLayers, static_cast<uint32_t>(kPlanes * kPageBytes))};
  }
  // Fills a page with bytes that follow from `seed`.
  void Fill(uint32_t page, uint64_t seed) {
    for (uint32_t plane = 0; plane < kLayers * kPlanes; ++plane) {
      std::mt19937_64 random(seed * 1'000 + plane);
      for (uint64_t at = 0; at < kPageBytes; at += 8) {
        const uint64_t word = random();
        std::memcpy(At(plane, page) + at, &word, 8);
      }
    }
  }
  [[nodiscard]] std::vector<std::byte> Read(uint32_t page) const {
    return Read(page, {0, kLayers});
  }
  [[nodiscard]] std::vector<std::byte> Read(uint32_t page, LayerRange layers) const {
    std::vector<std::byte> bytes;
    const uint32_t end = (layers.first + layers.count) * kPlanes;
    for (uint32_t plane = layers.first * kPlanes; plane < end; ++plane)
      bytes.insert(bytes.end(), At(plane, page), At(plane, page) + kPageBytes);
    return bytes;
  }

 private:
  [[nodiscard]] std::byte* At(uint32_t plane, uint32_t page) const {
    return reinterpret_cast<std::byte*>(memory_->address() + plane * kPlaneBytes +
                                        page * kPageBytes);
  }
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<DeviceMemory> memory_;
};

class EngineWorld {
 public:
  virtual ~EngineWorld() = default;
  [[nodiscard]] virtual std::unique_ptr<PageStore> MakeStore(EnginePages& pages) = 0;
  [[nodiscard]] static ContentSpec Content() {
    ContentSpec content;
    content.model = "engine";
    return content;
  }
  // From now on the store does not serve, or serves again.
  virtual void Break() = 0;
  virtual void Heal() = 0;
  virtual void Lose(const Digest& digest) = 0;
  // How many layers of a load layer by layer come at a time.
  [[nodiscard]] virtual uint32_t LayersAtOnce() const { return 1; }
};

struct EngineRoad {
  std::string name;
  std::function<std::unique_ptr<EngineWorld>()> make;
};

class EngineCacheContract : public ::testing::TestWithParam<EngineRoad> {
 protected:
  static constexpr uint32_t kBlockTokens = EnginePages::kPageTokens;

  void Make(const EngineCache::Options& options = {}) {
    cache_.reset();
    cache_ = std::make_unique<EngineCache>(world_->MakeStore(pages_), options);
    ASSERT_TRUE(Eventually([&] { return cache_->status().ok(); })) << cache_->status();
  }
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Make()); }

  // A chain of blocks, whose pages are filled with bytes that follow from `text` and their number.
  TokenChain ChainOf(uint32_t text, size_t blocks) {
    std::vector<uint32_t> tokens(blocks * kBlockTokens);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = text * 1'000'000 + i;
    TokenChain chain(cache_->Seed(*content_).value());
    chain.Append(tokens);
    return chain;
  }
  static uint64_t SeedOf(uint32_t text, size_t block) { return uint64_t{text} * 10'000 + block; }
  // A job that stores a whole chain from these pages on, as they are.
  StoreJob Storing(const TokenChain& chain, uint32_t first_page) {
    StoreJob job{.content = content_, .parent = chain.ParentOf(0, kBlockTokens)};
    for (size_t b = 0; b < chain.Blocks(kBlockTokens); ++b) {
      job.digests.push_back(chain.DigestOf(b, kBlockTokens));
      job.pages.push_back(static_cast<uint32_t>(first_page + b));
    }
    job.tokens.assign(chain.tokens().begin(),
                      chain.tokens().begin() + chain.Blocks(kBlockTokens) * kBlockTokens);
    return job;
  }
  StoreJob StoresOf(const TokenChain& chain, uint32_t text, uint32_t first_page = 0) {
    for (size_t b = 0; b < chain.Blocks(kBlockTokens); ++b)
      pages_.Fill(static_cast<uint32_t>(first_page + b), SeedOf(text, b));
    return Storing(chain, first_page);
  }
  static LoadJob LoadsOf(const TokenChain& chain, size_t begin, size_t end, uint32_t first_page,
                         LeaseId promise = {}) {
    LoadJob job{.promise = promise};
    for (size_t b = begin; b < end; ++b) {
      job.digests.push_back(chain.DigestOf(b, kBlockTokens));
      job.pages.push_back(static_cast<uint32_t>(first_page + b - begin));
    }
    return job;
  }
  // Returns the result of a job, which it waits for.
  JobResult Await(JobId job) {
    JobResult result;
    EXPECT_TRUE(Eventually([&] {
      for (JobResult& one : cache_->Poll()) {
        EXPECT_TRUE(told_.insert(one.job).second) << "told twice";
        results_.push_back(std::move(one));
      }
      for (JobResult& one : results_) {
        if (one.job == job) result = one;
      }
      return result.job != 0;
    })) << job;
    return result;
  }
  std::vector<BlockStatus> Store(const TokenChain& chain, uint32_t text) {
    return Await(cache_->BeginStore(StoresOf(chain, text))).status;
  }
  EngineCache::Found Find(const TokenChain& chain, TokenCount first = {}, JobId* id = nullptr) {
    const JobId asked = cache_->BeginLookup(chain.steps(), first);
    std::optional<EngineCache::Found> found;
    EXPECT_TRUE(Eventually([&] { return (found = cache_->PollLookup(asked)).has_value(); }));
    if (id != nullptr) *id = asked;
    if (id == nullptr) cache_->EndLookup(asked);
    return found.value_or(EngineCache::Found{});
  }
  // Whether the page has the bytes that were stored for a block.
  bool IsRight(uint32_t page, uint32_t text, size_t block) {
    const std::vector<std::byte> found = pages_.Read(page);
    pages_.Fill(page, SeedOf(text, block));
    return found == pages_.Read(page);
  }

  const std::unique_ptr<EngineWorld> world_ = GetParam().make();
  const std::shared_ptr<const ContentSpec> content_ =
      std::make_shared<const ContentSpec>(EngineWorld::Content());
  EnginePages pages_;
  std::set<JobId> told_;
  std::vector<JobResult> results_;
  alignas(8) std::array<std::byte, PageFence::kBytes> fence_memory_{};
  PageFence fence_{fence_memory_};
  std::unique_ptr<EngineCache> cache_;
};

TEST_P(EngineCacheContract, WhatWasStoredIsFoundAndLoaded) {
  const TokenChain chain = ChainOf(1, 10);
  EXPECT_EQ(Find(chain).tokens, TokenCount());
  EXPECT_EQ(Store(chain, 1), std::vector(10, BlockStatus::kOk));
  JobId lookup = 0;
  const EngineCache::Found found = Find(chain, {}, &lookup);
  EXPECT_EQ(found.tokens, TokenCount(160));
  EXPECT_EQ(cache_->TiersOf(lookup), std::vector(10, Tier::kHost));
  const JobResult loaded = Await(cache_->BeginLoad(LoadsOf(chain, 0, 10, 40, found.promise)));
  EXPECT_TRUE(loaded.load);
  EXPECT_EQ(loaded.cause, absl::OkStatus());
  EXPECT_EQ(loaded.status, std::vector(10, BlockStatus::kOk));
  for (uint32_t b = 0; b < 10; ++b) EXPECT_TRUE(IsRight(40 + b, 1, b)) << b;
  cache_->EndLookup(lookup);
  EXPECT_EQ(Store(chain, 1), std::vector(10, BlockStatus::kDuplicate));
  const EngineCache::Stats stats = cache_->stats();
  EXPECT_EQ(stats.stored, 10u);
  EXPECT_EQ(stats.duplicates, 10u);
  EXPECT_EQ(stats.loaded, 10u);
  EXPECT_EQ(stats.hits, 1u);
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.loads_ended, 1u);
  EXPECT_EQ(stats.stores_ended, 2u);
  EXPECT_TRUE(cache_->TiersOf(lookup).empty()) << "the lookup has ended";
  EXPECT_EQ(stats.lookups_open, 0u);
}

// A layer that was awaited is there, whatever comes of the others.
TEST_P(EngineCacheContract, LayersComeOneAfterTheOther) {
  const TokenChain chain = ChainOf(500, 40);
  std::vector<std::vector<std::byte>> stored;
  const StoreJob store = StoresOf(chain, 500);
  for (uint32_t b = 0; b < 40; ++b) stored.push_back(pages_.Read(b));
  EXPECT_EQ(Await(cache_->BeginStore(store)).status, std::vector(40, BlockStatus::kOk));
  const TimePoint never = SteadyNow() + std::chrono::seconds(60);
  for (uint64_t round = 0; round < testing::Scaled(200); ++round) {
    for (uint32_t page = 40; page < 80; ++page) pages_.Fill(page, round);
    LoadJob job = LoadsOf(chain, 0, 40, 40);
    job.by_layer = true;
    const JobId load = cache_->BeginLoad(job);
    const size_t layer_bytes = EnginePages::kPlanes * EnginePages::kPageBytes;
    for (uint32_t layer = 0; layer < EnginePages::kLayers; ++layer) {
      ASSERT_TRUE(cache_->AwaitLayers(load, layer + 1, never));
      for (uint32_t b = 0; b < 40; ++b) {
        const std::span all(stored[b]);
        const std::span want = all.subspan(layer * layer_bytes, layer_bytes);
        ASSERT_TRUE(std::ranges::equal(pages_.Read(40 + b, {layer, 1}), want)) << layer;
      }
    }
    const JobResult loaded = Await(load);
    EXPECT_EQ(loaded.status, std::vector(40, BlockStatus::kOk));
    EXPECT_FALSE(cache_->AwaitLayers(load, 1, never)) << "Poll has returned it";
  }
  EXPECT_EQ(cache_->stats().loaded, 40 * testing::Scaled(200));
}

TEST_P(EngineCacheContract, ArrivalsTellOfEachLayer) {
  class Counts final : public PageStore::LayerArrivals {
   public:
    explicit Counts(size_t most) : most_(most) {}
    [[nodiscard]] bool Arrived(uint32_t layers) override {
      told.push_back(layers);
      return told.size() < most_;
    }
    std::vector<uint32_t> told;

   private:
    const size_t most_;
  };
  const TokenChain chain = ChainOf(502, 3);
  (void)Store(chain, 502);
  const LoadJob job = LoadsOf(chain, 0, 3, 40);
  std::vector<PagedGet> gets;
  for (size_t b = 0; b < 3; ++b)
    gets.push_back({job.digests[b], std::span(job.pages).subspan(b, 1)});
  std::unique_ptr<PageStore> store = world_->MakeStore(pages_);
  ASSERT_TRUE(Eventually([&] { return store->status().ok(); }));
  const auto mover = store->MakeMover();
  ASSERT_TRUE(mover.ok()) << mover.status();
  std::vector<uint32_t> expected;
  for (uint32_t layers = world_->LayersAtOnce(); layers <= EnginePages::kLayers;
       layers += world_->LayersAtOnce())
    expected.push_back(layers);
  Counts all(10);
  const PageStore::Moved moved =
      (*mover)->LoadLayers(gets, {}, std::chrono::seconds(10), std::stop_token(), all);
  EXPECT_EQ(moved.status, std::vector(3, BlockStatus::kOk)) << moved.cause;
  EXPECT_EQ(all.told, expected);
  Counts first(1);
  const PageStore::Moved given_up =
      (*mover)->LoadLayers(gets, {}, std::chrono::seconds(10), std::stop_token(), first);
  EXPECT_EQ(given_up.status, std::vector(3, BlockStatus::kCancelled));
  EXPECT_EQ(given_up.cause, absl::OkStatus());
  EXPECT_EQ(first.told.size(), 1u);
}

// Nothing waits for the layers of a load that fails.
TEST_P(EngineCacheContract, ALoadByLayerOfWhichABlockIsGoneLoadsNone) {
  const TokenChain chain = ChainOf(501, 5);
  (void)Store(chain, 501);
  world_->Lose(chain.DigestOf(2, kBlockTokens));
  LoadJob job = LoadsOf(chain, 0, 5, 40);
  job.by_layer = true;
  const TimePoint begun = SteadyNow();
  const JobId load = cache_->BeginLoad(job);
  EXPECT_FALSE(cache_->AwaitLayers(load, 1, begun + std::chrono::seconds(60)));
  EXPECT_FALSE(cache_->AwaitLayers(load, 3, begun + std::chrono::seconds(60)));
  EXPECT_LT(SteadyNow() - begun, std::chrono::seconds(30));
  const JobResult loaded = Await(load);
  EXPECT_EQ(loaded.status[2], BlockStatus::kMissing);
  EXPECT_EQ(std::ranges::count(loaded.status, BlockStatus::kOk), 0);
  EXPECT_EQ(loaded.cause, absl::OkStatus()) << "the store serves";
  EXPECT_FALSE(cache_->AwaitLayers(load, 1, begun + std::chrono::seconds(60)));
}

// One job stores the first blocks of many chains, which all have the seed as their parent.
TEST_P(EngineCacheContract, BlocksOfManyChainsAreOneJob) {
  StoreJob job{.content = content_, .parent = cache_->Seed(*content_).value(), .chained = false};
  std::vector<TokenChain> chains;
  for (uint32_t i = 0; i < 10; ++i) {
    const StoreJob one = StoresOf(chains.emplace_back(ChainOf(400 + i, 1)), 400 + i, i);
    job.digests.push_back(one.digests.front());
    job.tokens.insert(job.tokens.end(), one.tokens.begin(), one.tokens.end());
    job.pages.push_back(i);
  }
  EXPECT_EQ(Await(cache_->BeginStore(job)).status, std::vector(10, BlockStatus::kOk));
  for (uint32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(Find(chains[i]).tokens, TokenCount(kBlockTokens));
    EXPECT_EQ(Await(cache_->BeginLoad(LoadsOf(chains[i], 0, 1, 40))).status.front(),
              BlockStatus::kOk);
    EXPECT_TRUE(IsRight(40, 400 + i, 0)) << i;
  }
}

// A content is registered when it is first used, whichever it is.
TEST_P(EngineCacheContract, EveryContentIsItsOwn) {
  std::vector<uint32_t> tokens(2 * kBlockTokens, 5);
  for (int salt = 0; salt < 200; ++salt) {
    auto content = std::make_shared<ContentSpec>(EngineWorld::Content());
    content->salt = std::to_string(salt);
    TokenChain chain(cache_->Seed(*content).value());
    chain.Append(tokens);
    EXPECT_EQ(Find(chain).tokens, TokenCount()) << salt;
    StoreJob job = StoresOf(chain, 70);
    job.content = content;
    ASSERT_EQ(Await(cache_->BeginStore(job)).status, std::vector(2, BlockStatus::kOk)) << salt;
    EXPECT_EQ(Find(chain).tokens, TokenCount(2 * kBlockTokens)) << salt;
  }
}

TEST_P(EngineCacheContract, ListsThatDoNotFitAreInvalid) {
  const TokenChain chain = ChainOf(71, 3);
  StoreJob store = StoresOf(chain, 71);
  store.pages.pop_back();
  EXPECT_EQ(Await(cache_->BeginStore(store)).status, std::vector(3, BlockStatus::kInvalid));
  store = StoresOf(chain, 71);
  store.content = nullptr;
  EXPECT_EQ(Await(cache_->BeginStore(store)).status, std::vector(3, BlockStatus::kInvalid));
  LoadJob load = LoadsOf(chain, 0, 3, 40);
  load.first_slots = {0};
  EXPECT_EQ(Await(cache_->BeginLoad(load)).status, std::vector(3, BlockStatus::kInvalid));
  load = LoadsOf(chain, 0, 3, 40);
  load.pages.back() = EnginePages::kPages;
  for (const BlockStatus status : Await(cache_->BeginLoad(load)).status)
    EXPECT_NE(status, BlockStatus::kOk) << "no such page";
}

// A job that is late ends, and says why.
TEST_P(EngineCacheContract, AJobEndsAtItsDeadline) {
  const TokenChain chain = ChainOf(72, 4);
  (void)Store(chain, 72);
  LoadJob load = LoadsOf(chain, 0, 4, 40);
  load.deadline = std::chrono::milliseconds(0);
  const JobResult late = Await(cache_->BeginLoad(load));
  EXPECT_EQ(late.status, std::vector(4, BlockStatus::kCancelled));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.cause)) << late.cause;
}

TEST_P(EngineCacheContract, TheCountOfEndedStoresTellsWhenPagesAreFree) {
  EngineCache::Options options;
  options.fence = &fence_;
  ASSERT_NO_FATAL_FAILURE(Make(options));
  for (uint32_t i = 0; i < 20; ++i)
    (void)cache_->BeginStore(StoresOf(ChainOf(200 + i, 4), 200 + i, 4 * i));
  EXPECT_TRUE(Eventually([&] { return fence_.ended() == 20; })) << fence_.ended();
  EXPECT_EQ(cache_->Poll().size(), 20u);
  EXPECT_FALSE(fence_.Reads());
}

// Once stores are voided and nothing reads, their pages are the engine's again: whatever it writes
// there is stored under no name, although the stores go on.
TEST_P(EngineCacheContract, VoidedStoresReadNoPages) {
  std::mt19937 random(testing::TestSeed());
  EngineCache::Options options;
  options.fence = &fence_;
  options.step_blocks = 2;
  ASSERT_NO_FATAL_FAILURE(Make(options));
  uint64_t order = 0, voided = 0;
  for (uint32_t round = 0; round < testing::Scaled(200); ++round) {
    const uint32_t text = 10'000 + round;
    const TokenChain chain = ChainOf(text, 12);
    StoreJob job = StoresOf(chain, text);
    job.order = ++order;
    // On some machines a store ends before this thread goes on, so one in four waits for it.
    const auto computed = std::make_shared<Computed>();
    if (round % 4 == 0) job.ready = computed;
    const JobId id = cache_->BeginStore(job);
    if (round % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    fence_.Void(order);
    computed->Set();
    while (fence_.Reads()) std::this_thread::yield();
    for (uint32_t page = 0; page < 12; ++page) pages_.Fill(page, 77'777);
    const JobResult stored = Await(id);
    const EngineCache::Found found = Find(chain);
    const auto blocks = static_cast<uint32_t>(found.tokens.value() / kBlockTokens);
    if (blocks > 0) {
      (void)Await(cache_->BeginLoad(LoadsOf(chain, 0, blocks, 40, found.promise)));
      for (uint32_t b = 0; b < blocks; ++b) ASSERT_TRUE(IsRight(40 + b, text, b)) << round;
    }
    voided += std::ranges::count(stored.status, BlockStatus::kCancelled);
    for (const BlockStatus status : stored.status)
      EXPECT_TRUE(status == BlockStatus::kOk || status == BlockStatus::kCancelled);
    EXPECT_EQ(stored.cause, absl::OkStatus());
  }
  EXPECT_GT(voided, 0u);
  EXPECT_EQ(cache_->stats().given_up, voided);
  StoreJob late = StoresOf(ChainOf(9'999, 4), 9'999);
  late.order = order;  // voided before it began
  EXPECT_EQ(Await(cache_->BeginStore(late)).status, std::vector(4, BlockStatus::kCancelled));
  late.order = order + 1;
  EXPECT_EQ(Await(cache_->BeginStore(late)).status, std::vector(4, BlockStatus::kOk));
}

TEST_P(EngineCacheContract, ALookupCountsWhatLiesBehindTheFirstTokenOnly) {
  const TokenChain chain = ChainOf(2, 6);
  (void)Store(chain, 2);
  EXPECT_EQ(Find(chain, TokenCount(64)).tokens, TokenCount(96));
  EXPECT_EQ(Find(chain, TokenCount(96)).tokens, TokenCount()) << "the engine has it all";
  TokenChain longer = chain;
  longer.Append(std::vector<uint32_t>(40, 7));
  EXPECT_EQ(Find(longer).tokens, TokenCount(96));
}

TEST_P(EngineCacheContract, ABlockThatIsGoneIsReportedAndTheOthersAreLoaded) {
  const TokenChain chain = ChainOf(3, 5);
  (void)Store(chain, 3);
  world_->Lose(chain.DigestOf(2, kBlockTokens));
  EXPECT_EQ(Find(chain).tokens, TokenCount(32));
  const JobResult loaded = Await(cache_->BeginLoad(LoadsOf(chain, 0, 5, 40)));
  for (uint32_t b = 0; b < 5; ++b) {
    EXPECT_EQ(loaded.status[b] == BlockStatus::kOk, b != 2) << b;
    if (b == 2) continue;
    EXPECT_TRUE(IsRight(40 + b, 3, b)) << b;
  }
}

// While the store does not serve, every question is answered at once, and afterwards it serves
// again by itself.
TEST_P(EngineCacheContract, NothingWaitsWhileTheStoreIsGone) {
  const TokenChain chain = ChainOf(4, 4);
  (void)Store(chain, 4);
  world_->Break();
  ASSERT_TRUE(Eventually([&] { return !cache_->status().ok(); }));
  Duration slowest{};
  for (int i = 0; i < 1'000; ++i) {
    const TimePoint begun = SteadyNow();
    const JobId asked = cache_->BeginLookup(chain.steps(), {});
    const auto found = cache_->PollLookup(asked);
    cache_->EndLookup(asked);
    slowest = std::max<Duration>(slowest, SteadyNow() - begun);
    ASSERT_TRUE(found.has_value() && found->tokens == TokenCount());
  }
  EXPECT_LT(slowest, std::chrono::milliseconds(500)) << "nothing was waited for";
  const JobResult load = Await(cache_->BeginLoad(LoadsOf(chain, 0, 4, 40)));
  for (const BlockStatus status : load.status) EXPECT_NE(status, BlockStatus::kOk);
  EXPECT_TRUE(cache_->Seed(*content_).has_value()) << "it was told before";
  const JobResult store = Await(cache_->BeginStore(StoresOf(ChainOf(5, 4), 5, 10)));
  for (const BlockStatus status : store.status) EXPECT_NE(status, BlockStatus::kOk);
  world_->Heal();
  ASSERT_TRUE(Eventually([&] { return cache_->status().ok(); }));
  EXPECT_EQ(Store(ChainOf(6, 4), 6), std::vector(4, BlockStatus::kOk));
  EXPECT_EQ(Find(ChainOf(6, 4)).tokens, TokenCount(64));
}

TEST_P(EngineCacheContract, WhatDoesNotFitIntoAQueueIsDroppedAndCounted) {
  EngineCache::Options options;
  options.store_blocks_max = 8;
  options.load_blocks_max = 8;
  ASSERT_NO_FATAL_FAILURE(Make(options));
  const TokenChain chain = ChainOf(7, 9);
  EXPECT_EQ(Store(chain, 7), std::vector(9, BlockStatus::kFull));
  EXPECT_EQ(cache_->stats().dropped, 9u);
  EXPECT_EQ(Await(cache_->BeginLoad(LoadsOf(chain, 0, 9, 40))).status,
            std::vector(9, BlockStatus::kFull));
  EXPECT_EQ(Await(cache_->BeginLoad({})).status.size(), 0u) << "a job without blocks ends too";
}

// After Cancel nothing writes to the pages any more, and the job is told once.
TEST_P(EngineCacheContract, AfterCancelThePagesAreTheEnginesAgain) {
  const TokenChain chain = ChainOf(8, 40);
  (void)Store(chain, 8);
  std::mt19937 random(testing::TestSeed());
  EngineCache::Options options;
  options.step_blocks = 2;
  ASSERT_NO_FATAL_FAILURE(Make(options));
  told_.clear();
  results_.clear();
  for (uint64_t round = 0; round < testing::Scaled(1'000); ++round) {
    LoadJob load = LoadsOf(chain, 0, 40, 40);
    load.by_layer = round % 3 == 0;
    const JobId job = cache_->BeginLoad(load);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 800));
    if (round % 2 == 0) cache_->BeginCancel(job);
    cache_->Cancel(job);
    std::vector<std::vector<std::byte>> before;
    for (uint32_t page = 40; page < 80; ++page) {
      pages_.Fill(page, round);
      before.push_back(pages_.Read(page));
    }
    std::this_thread::yield();
    for (uint32_t page = 40; page < 80; ++page) ASSERT_EQ(pages_.Read(page), before[page - 40]);
    const JobResult result = Await(job);
    EXPECT_EQ(result.status.size(), 40u);
    cache_->Cancel(job);  // it has ended
  }
}

// Two threads begin, poll and cancel at random, while the store comes and goes.  Only this thread
// starts daemons, because they die with the thread that started them.
TEST_P(EngineCacheContract, EveryJobEndsOnce) {
  std::vector<std::jthread> users;
  std::atomic<size_t> begun = 0, ended = 0, finished = 0;
  for (uint32_t user = 0; user < 2; ++user) {
    users.emplace_back([&, user] {
      std::mt19937 random(testing::TestSeed() + user);
      for (uint64_t i = 0; i < testing::Scaled(2'000); ++i) {
        const auto text = static_cast<uint32_t>(100 + random() % 20);
        const TokenChain chain = ChainOf(text, 1 + random() % 4);
        const size_t blocks = chain.Blocks(kBlockTokens);
        const JobId asked = cache_->BeginLookup(chain.steps(), {});
        LoadJob load = LoadsOf(chain, 0, blocks, 20 + 10 * user);
        load.by_layer = random() % 2 == 0;
        const JobId job =
            random() % 2 == 0 ? cache_->BeginLoad(load) : cache_->BeginStore(Storing(chain, 0));
        ++begun;
        if (load.by_layer)
          (void)cache_->AwaitLayers(job, 1, SteadyNow() + std::chrono::milliseconds(5));
        if (random() % 3 == 0) cache_->Cancel(job);
        (void)cache_->PollLookup(asked);
        cache_->EndLookup(asked);
        ended += cache_->Poll().size();
      }
      ++finished;
    });
  }
  while (finished < users.size()) {
    world_->Break();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    world_->Heal();
    (void)Eventually([&] { return cache_->status().ok() || finished == users.size(); });
  }
  users.clear();
  EXPECT_TRUE(Eventually([&] {
    ended += cache_->Poll().size();
    return ended == begun;
  })) << ended
      << " of " << begun;
  ASSERT_TRUE(Eventually([&] { return cache_->status().ok(); }));
  EXPECT_EQ(Find(ChainOf(90, 2)).tokens, TokenCount());
  EXPECT_EQ(Store(ChainOf(90, 2), 90), std::vector(2, BlockStatus::kOk));
  EXPECT_EQ(cache_->stats().loads_waiting, 0u);
  EXPECT_EQ(cache_->stats().stores_waiting, 0u);
}

TEST_P(EngineCacheContract, EndsWithJobsUnderWay) {
  const TokenChain chain = ChainOf(9, 40);
  (void)StoresOf(chain, 9);  // fills the pages, which must not change while jobs read them
  for (int i = 0; i < 50; ++i) {
    (void)cache_->BeginStore(Storing(chain, 0));
    (void)cache_->BeginLoad(LoadsOf(chain, 0, 40, 40));
    (void)cache_->BeginLookup(chain.steps(), {});
  }
  cache_.reset();
}

}  // namespace larder
