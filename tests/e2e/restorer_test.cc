// Restores a prefix by computing and loading at the same time, from a real daemon that may be
// stopped or killed meanwhile.  The engine's cache must be the same as if all of the prefix had
// been computed.
#include "client/restorer.h"
#include "client/restore/scheduler.h"

#include <csignal>
#include <functional>
#include <set>

#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::Gt;

constexpr uint32_t kChunk = 64;
constexpr uint32_t kBlocks = 64;

// An engine whose KV follows from the names of its blocks.
class OracleEngine final : public RestoreEngine {
 public:
  OracleEngine(const BlockMaker& maker, std::span<const Digest> blocks)
      : maker_(maker), blocks_(blocks) {}

  absl::Status Compute(TokenRange tokens) override {
    EXPECT_EQ(tokens.begin, cached_) << "the tokens before it are not in the cache";
    if (before_compute) before_compute(tokens);
    for (uint32_t b = tokens.begin / Block(); b < tokens.end / Block(); ++b) {
      std::vector<std::byte>& block = cache_.emplace_back(maker_.variant.layers * kLayerBytes);
      for (uint32_t i = 0; i < work * maker_.variant.layers; ++i) {
        const uint32_t layer = i % maker_.variant.layers;
        maker_.Fill(blocks_[b], layer, std::span(block).subspan(layer * kLayerBytes, kLayerBytes));
      }
    }
    cached_ = tokens.end;
    computed += tokens.end - tokens.begin;
    return fails ? absl::InternalError("the engine fails") : absl::OkStatus();
  }
  absl::Status Place(TokenRange tokens, std::span<const Layers> blocks) override {
    EXPECT_EQ(tokens.begin, cached_);
    EXPECT_EQ(blocks.size() * Block(), tokens.end - tokens.begin);
    for (const Layers& layers : blocks) {
      std::vector<std::byte>& block = cache_.emplace_back();
      for (const std::span<const std::byte> layer : layers)
        block.insert(block.end(), layer.begin(), layer.end());
    }
    cached_ = tokens.end;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Between() override {
    ++between;
    return decodes;
  }
  // Checks every byte of the cache.
  void ExpectRight() const {
    ASSERT_EQ(cache_.size(), blocks_.size());
    for (size_t b = 0; b < cache_.size(); ++b)
      for (uint32_t layer = 0; layer < maker_.variant.layers; ++layer)
        ASSERT_TRUE(maker_.IsRight(blocks_[b], layer,
                                   std::span(cache_[b]).subspan(layer * kLayerBytes, kLayerBytes)))
            << "block " << b;
  }

  std::function<void(TokenRange)> before_compute;
  uint32_t work = 1;  // how often a block is computed, to make computing slower than loading
  bool fails = false;
  bool decodes = false;
  uint32_t between = 0;
  uint32_t computed = 0;

 private:
  [[nodiscard]] uint32_t Block() const { return maker_.variant.block_tokens; }

  const BlockMaker& maker_;
  const std::span<const Digest> blocks_;
  std::vector<std::vector<std::byte>> cache_;
  uint32_t cached_ = 0;
};

// An engine in whose cache loads land directly.  Loads of the blocks from `hangs_from` on return
// only when they are told to stop, as if the daemon hung in the middle of them.
class LandingEngine final : public RestoreEngine {
 public:
  explicit LandingEngine(uint32_t block_tokens) : block_tokens_(block_tokens) {}

  absl::Status Compute(TokenRange tokens) override {
    // A load must be under way while the engine computes.
    if (hangs_from < UINT32_MAX) {
      EXPECT_TRUE(Eventually([&] { return hung > 0; }));
    }
    const MutexLock lock(mu_);
    for (uint32_t b = tokens.begin / block_tokens_; b * block_tokens_ < tokens.end; ++b) {
      EXPECT_FALSE(landing_.contains(b))
          << "block " << b << " is computed while a load writes to it";
      if ((b + 1) * block_tokens_ <= tokens.end) there_.insert(b);
    }
    return absl::OkStatus();
  }
  absl::Status Place(TokenRange tokens, std::span<const Layers> blocks) override {
    EXPECT_TRUE(blocks.empty());
    const MutexLock lock(mu_);
    for (uint32_t b = tokens.begin / block_tokens_; b < tokens.end / block_tokens_; ++b)
      EXPECT_TRUE(there_.contains(b)) << "block " << b;
    return absl::OkStatus();
  }
  bool lands() const override { return true; }
  absl::StatusOr<std::vector<BlockStatus>> Land(ChannelId, std::span<const uint32_t> blocks,
                                                const CallOptions& call) override {
    {
      const MutexLock lock(mu_);
      landing_.insert(blocks.begin(), blocks.end());
    }
    if (!fails.ok()) return Ended(blocks, fails);
    if (answers != BlockStatus::kOk) {
      (void)Ended(blocks, absl::OkStatus());
      return std::vector(blocks.size(), answers);
    }
    const bool hangs = std::ranges::any_of(blocks, [&](uint32_t b) { return b >= hangs_from; });
    if (hangs) ++hung;
    if (hangs && !Eventually([&] { return call.stop.stop_requested(); }))
      ADD_FAILURE() << "the restorer did not stop the load";
    const MutexLock lock(mu_);
    if (!hangs) there_.insert(blocks.begin(), blocks.end());
    for (const uint32_t b : blocks) landing_.erase(b);
    return std::vector(blocks.size(), hangs ? BlockStatus::kCancelled : BlockStatus::kOk);
  }
  [[nodiscard]] size_t Landing() {
    const MutexLock lock(mu_);
    return landing_.size();
  }
  [[nodiscard]] size_t There() {
    const MutexLock lock(mu_);
    return there_.size();
  }

  uint32_t hangs_from = UINT32_MAX;
  absl::Status fails = {};
  BlockStatus answers = BlockStatus::kOk;  // the status that every load returns
  std::atomic<int> hung{0};

 private:
  absl::Status Ended(std::span<const uint32_t> blocks, const absl::Status& status) {
    const MutexLock lock(mu_);
    for (const uint32_t b : blocks) landing_.erase(b);
    return status;
  }

  const uint32_t block_tokens_;
  Mutex mu_;
  std::set<uint32_t> landing_, there_;
};

class RestorerTest : public VerbTest {
 protected:
  // Starts the daemon and stores the blocks of the chain, except `holes`.
  void StoreChain(const std::set<uint32_t>& holes = {}) {
    ASSERT_NO_FATAL_FAILURE(Start());
    std::vector<uint32_t> tokens(kBlocks * maker_.variant.block_tokens);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = i;
    blocks_ = Chain(session_->Seed(maker_.content), tokens);
    for (uint32_t b = 0; b < kBlocks; ++b) {
      if (holes.contains(b)) continue;
      const auto of_block =
          std::span(tokens).subspan(b * maker_.variant.block_tokens, maker_.variant.block_tokens);
      const FilledBlock block(maker_,
                              {.digest = blocks_[b],
                               .parent = b == 0 ? session_->Seed(maker_.content) : blocks_[b - 1],
                               .tokens = {of_block.begin(), of_block.end()}},
                              kLayerBytes);
      const PutBlock put = block.ToPut();
      const auto status = session_->Put(variant_, {&put, 1});
      ASSERT_TRUE(status.ok() && status->front() == BlockStatus::kOk) << status.status();
    }
  }
  // Returns the prefix as an engine sees it that believes that all blocks except `holes` are
  // stored.
  RestorePrefix Prefix(const std::set<uint32_t>& holes = {}) {
    layer_bytes_.assign(maker_.variant.layers, ByteCount(kLayerBytes));
    RestorePrefix prefix{.blocks = blocks_,
                         .channel_of_block = std::vector<ChannelId>(kBlocks, kPool),
                         .layer_bytes = layer_bytes_,
                         .chunk_tokens = kChunk};
    for (const uint32_t b : holes) prefix.channel_of_block[b] = ChannelId::kNowhere;
    return prefix;
  }
  // Returns a profile that says that a chunk takes 10 ms to compute, and that the pool loads
  // `bytes_per_s`; a block has 120 KB.
  static Profile Believed(double bytes_per_s) {
    return {.model = "oracle",
            .layers = 2,
            .compute = {.fixed_s = 1e-3, .linear_s = 9e-3 / kChunk, .quadratic_s = 0},
            .channels = {{"pool", bytes_per_s}}};
  }
  absl::StatusOr<Restorer::Restored> Restore(const RestorePrefix& prefix, OracleEngine& engine,
                                             double bytes_per_s = 50e6,
                                             const Restorer::Options& options = {}) {
    restorer_.emplace(*session_, variant_, Believed(bytes_per_s), options);
    return restorer_->Restore(prefix, engine);
  }

  static constexpr ChannelId kPool{1};
  std::vector<Digest> blocks_;
  std::vector<ByteCount> layer_bytes_;
  std::optional<Restorer> restorer_;
};

TEST_F(RestorerTest, TheCacheIsTheSameAsAfterComputingAll) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  OracleEngine engine(maker_, blocks_);
  engine.work = 100;
  const auto restored = Restore(Prefix(), engine);
  ASSERT_TRUE(restored.ok()) << restored.status();
  engine.ExpectRight();
  EXPECT_THAT(restored->loaded_tokens, Gt(0u));
  EXPECT_EQ(restored->loaded_tokens + restored->computed_tokens, kBlocks * 16);
  EXPECT_EQ(restored->computed_tokens, engine.computed);
  EXPECT_FALSE(restored->spans.empty());
}

TEST_F(RestorerTest, HolesAreComputed) {
  const std::set<uint32_t> holes = {5, 6, 7, 31, 63};
  ASSERT_NO_FATAL_FAILURE(StoreChain(holes));
  OracleEngine engine(maker_, blocks_);
  const auto restored = Restore(Prefix(holes), engine);
  ASSERT_TRUE(restored.ok()) << restored.status();
  engine.ExpectRight();
}

// The profile says that loading takes no time, so all blocks except the holes are loaded.  Only the
// holes are computed, together with the rest of the 32 tokens that cut_tokens makes of a step.
TEST_F(RestorerTest, CutChunksComputeOnlyTheCutsWithHoles) {
  const std::set<uint32_t> holes = {5, 6, 31, 63};
  ASSERT_NO_FATAL_FAILURE(StoreChain(holes));
  OracleEngine engine(maker_, blocks_);
  std::vector<uint32_t> cuts;
  engine.before_compute = [&](TokenRange tokens) {
    EXPECT_EQ(tokens.begin % 32, 0u);
    EXPECT_EQ(tokens.end % 32, 0u);
    for (uint32_t cut = tokens.begin / 32; cut < tokens.end / 32; ++cut) cuts.push_back(cut);
  };
  RestorePrefix prefix = Prefix();
  prefix.cut_tokens = 32;
  restorer_.emplace(*session_, variant_,
                    Profile{.model = "oracle",
                            .layers = 2,
                            .compute = {.fixed_s = 0, .linear_s = 1, .quadratic_s = 0},
                            .channels = {{"pool", 1e9}}},
                    Restorer::Options{.scheduler = {.patience_s_min = 30}});
  const auto restored = restorer_->Restore(prefix, engine);
  ASSERT_TRUE(restored.ok()) << restored.status();
  engine.ExpectRight();
  EXPECT_THAT(cuts, ::testing::ElementsAre(2, 3, 15, 31));
}

// The profile says that a chunk of 64 tokens takes 10 ms, and a step may take 4 ms.
TEST_F(RestorerTest, AnEngineThatDecodesGetsShortSteps) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  OracleEngine engine(maker_, blocks_);
  engine.decodes = true;
  std::vector<uint32_t> steps;
  engine.before_compute = [&](TokenRange tokens) {
    EXPECT_THAT(engine.between, Gt(steps.size())) << "Between was not called since the last step";
    steps.push_back(tokens.end - tokens.begin);
  };
  const auto restored = Restore(Prefix(), engine, 1e6, {.step_s_max = 4e-3});
  ASSERT_TRUE(restored.ok()) << restored.status();
  engine.ExpectRight();
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.front(), 16u);
  for (const uint32_t tokens : steps) EXPECT_EQ(tokens % 16, 0u);
  EXPECT_THAT(engine.between, Gt(steps.size()));
}

TEST_F(RestorerTest, BlocksArriveWhenTheEmulatedLinkSays) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  OracleEngine engine(maker_, blocks_);
  constexpr double kCarries_s = 0.05;
  ByteCount carried;
  Restorer::Options options;
  options.scheduler.computes = false;
  options.scheduler.patience_s_min = 10;
  options.carry = [&](ChannelId channel, ByteCount bytes, TimePoint now) {
    EXPECT_EQ(channel, kPool);
    carried += bytes;
    return now + std::chrono::milliseconds(50);
  };
  const auto restored = Restore(Prefix(), engine, 50e6, options);
  ASSERT_TRUE(restored.ok()) << restored.status();
  engine.ExpectRight();
  EXPECT_EQ(carried.value(), kBlocks * maker_.variant.layers * kLayerBytes);
  EXPECT_EQ(restored->loaded_tokens, kBlocks * 16);
  EXPECT_GE(restored->restore_s, kCarries_s);
}

TEST_F(RestorerTest, AHangingLoadIsStoppedBeforeItsBlocksAreComputed) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  LandingEngine engine(maker_.variant.block_tokens);
  engine.hangs_from = kBlocks / 2;
  restorer_.emplace(*session_, variant_, Believed(50e6),
                    Restorer::Options{.scheduler = {.hedges = false}});
  const auto restored = restorer_->Restore(Prefix(), engine);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_GT(engine.hung, 0);
  EXPECT_EQ(engine.Landing(), 0u);
  EXPECT_EQ(engine.There(), kBlocks);
}

// A step computes a part of a block.  The load must be stopped before, as it may write to any part.
TEST_F(RestorerTest, AHangingLoadIsStoppedBeforeAPartOfItsBlockIsComputed) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  LandingEngine engine(maker_.variant.block_tokens);
  engine.hangs_from = kBlocks / 2;
  restorer_.emplace(*session_, variant_, Believed(1e6),
                    Restorer::Options{.scheduler = {.hedges = false}});
  RestorePrefix prefix = Prefix();
  prefix.chunk_tokens = maker_.variant.block_tokens / 2;
  const auto restored = restorer_->Restore(prefix, engine);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_GT(engine.hung, 0);
  EXPECT_EQ(engine.There(), kBlocks);
}

TEST_F(RestorerTest, NoLoadIsUnderWayAfterACancelledRestore) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  LandingEngine engine(maker_.variant.block_tokens);
  engine.hangs_from = 0;
  Restorer::Options options{.scheduler = {.computes = false, .hedges = false}};
  options.scheduler.patience_s_min = 60;
  restorer_.emplace(*session_, variant_, Believed(50e6), options);
  std::thread canceller([&] {
    EXPECT_TRUE(Eventually([&] { return engine.hung > 0; }));
    restorer_->Cancel();
  });
  const auto restored = restorer_->Restore(Prefix(), engine);
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(restored.status())) << restored.status();
  EXPECT_EQ(engine.Landing(), 0u);
}

TEST_F(RestorerTest, AnErrorOfLandEndsTheRestore) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  LandingEngine engine(maker_.variant.block_tokens);
  engine.fails = absl::InternalError("the device is gone");
  restorer_.emplace(*session_, variant_, Believed(50e6),
                    Restorer::Options{.scheduler = {.computes = false, .hedges = false}});
  const auto restored = restorer_->Restore(Prefix(), engine);
  EXPECT_EQ(restored.status(), engine.fails);
}

// A request that stayed in the scheduler would count towards its limit, kRequestsMax.
TEST_F(RestorerTest, ASuffixLeavesNoRequestInTheScheduler) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  RestorePrefix prefix = Prefix();
  prefix.suffix_tokens = 100;
  restorer_.emplace(*session_, variant_, Believed(50e6), Restorer::Options());
  for (size_t i = 0; i < kRequestsMax + 2; ++i) {
    RestorePrefix one = prefix;
    one.blocks = one.blocks.first(1);
    one.channel_of_block.resize(1);
    OracleEngine engine(maker_, one.blocks);
    const auto restored = restorer_->Restore(one, engine);
    ASSERT_TRUE(restored.ok()) << restored.status() << " after " << i;
  }
}

TEST_F(RestorerTest, InvalidArgumentsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  OracleEngine engine(maker_, blocks_);
  RestorePrefix elsewhere = Prefix();
  elsewhere.channel_of_block[3] = ChannelId{7};
  EXPECT_EQ(Restore(elsewhere, engine).status().code(), absl::StatusCode::kInvalidArgument);
  RestorePrefix cut = Prefix();
  cut.cut_tokens = maker_.variant.block_tokens + 1;
  EXPECT_EQ(Restore(cut, engine).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Restore(Prefix(), engine, 50e6, {.room = ByteCount(0)}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine.computed, 0u);
}

TEST_F(RestorerTest, WithoutComputingAHoleIsAnError) {
  ASSERT_NO_FATAL_FAILURE(StoreChain({5}));
  Restorer::Options options;
  options.scheduler.computes = false;
  OracleEngine engine(maker_, blocks_);
  EXPECT_EQ(Restore(Prefix({5}), engine, 50e6, options).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Restore(Prefix(), engine, 50e6, options).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// The restorer loads such blocks a few times and then gives up with an error.
TEST_F(RestorerTest, WithoutComputingABlockThatDoesNotArriveIsAnError) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  const Restorer::Options options{.scheduler = {.computes = false, .hedges = false}};
  for (const BlockStatus why : {BlockStatus::kCancelled, BlockStatus::kFull}) {
    LandingEngine engine(maker_.variant.block_tokens);
    engine.answers = why;
    restorer_.emplace(*session_, variant_, Believed(50e6), options);
    EXPECT_EQ(restorer_->Restore(Prefix(), engine).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
  RestorePrefix late = Prefix();
  late.deadline_s = 1e-6;
  LandingEngine engine(maker_.variant.block_tokens);
  EXPECT_EQ(restorer_->Restore(late, engine).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine.There(), 0u);
}

// Neither the restore nor the restorer's destructor waits for a daemon that does not answer.
TEST_F(RestorerTest, DoesNotWaitForAStoppedDaemon) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  OracleEngine engine(maker_, blocks_);
  engine.work = 20;
  engine.before_compute = [this](TokenRange tokens) {
    if (tokens.begin == 0) daemon_->Signal(SIGSTOP);
  };
  Restorer::Options options;
  options.scheduler.patience_s_min = 600;
  const auto restored = Restore(Prefix(), engine, /*bytes_per_s=*/1e6, options);
  restorer_.reset();
  daemon_->Signal(SIGCONT);
  ASSERT_TRUE(restored.ok()) << restored.status();
  engine.ExpectRight();
}

// The lookup listed the blocks, but they are not stored any more.
TEST_F(RestorerTest, BlocksThatHaveLeftSinceTheLookupAreComputed) {
  ASSERT_NO_FATAL_FAILURE(StoreChain({2, 20, 40, 62, 63}));
  OracleEngine engine(maker_, blocks_);
  const auto restored = Restore(Prefix(), engine);
  ASSERT_TRUE(restored.ok()) << restored.status();
  engine.ExpectRight();
  EXPECT_THAT(engine.computed, Gt(0u));
}

TEST_F(RestorerTest, ComputesTheRestAfterTheDaemonIsKilled) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  OracleEngine engine(maker_, blocks_);
  engine.before_compute = [this](TokenRange tokens) {
    if (tokens.begin == 0) daemon_->Kill9();
  };
  const auto restored = Restore(Prefix(), engine, /*bytes_per_s=*/1e6);
  ASSERT_TRUE(restored.ok()) << restored.status();
  engine.ExpectRight();
}

TEST_F(RestorerTest, AnErrorOfTheEngineEndsTheRestore) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  OracleEngine engine(maker_, blocks_);
  engine.fails = true;
  EXPECT_EQ(Restore(Prefix(), engine, 1e6).status().code(), absl::StatusCode::kInternal);
  // The next restore begins with an empty cache.
  OracleEngine well(maker_, blocks_);
  ASSERT_TRUE(restorer_->Restore(Prefix(), well).ok());
  well.ExpectRight();
}

TEST_F(RestorerTest, CancelEndsTheRestoreAfterOneChunk) {
  ASSERT_NO_FATAL_FAILURE(StoreChain());
  OracleEngine engine(maker_, blocks_);
  engine.before_compute = [this](TokenRange) { restorer_->Cancel(); };
  EXPECT_EQ(Restore(Prefix(), engine, 1e6).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine.computed, kChunk);
}

}  // namespace
}  // namespace larder::e2e
