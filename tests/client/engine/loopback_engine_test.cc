#include "client/engine/linked_store.h"
#include "client/engine/loopback_store.h"
#include "tests/contract/engine_cache_contract.h"

namespace larder {
namespace {

class LoopbackWorld : public EngineWorld {
 public:
  [[nodiscard]] std::unique_ptr<PageStore> MakeStore(EnginePages& pages) override {
    auto store =
        LoopbackStore::Make(pages.device(), pages.Layout(), EnginePages::Payload(), blocks_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  void Break() override { blocks_->Set({.serves = false}); }
  void Heal() override { blocks_->Set({}); }
  void Lose(const Digest& digest) override { EXPECT_TRUE(blocks_->Drop(digest)); }

 private:
  const std::shared_ptr<LoopbackBlocks> blocks_ = std::make_shared<LoopbackBlocks>();
};

class LinkedWorld final : public LoopbackWorld {
 public:
  [[nodiscard]] std::unique_ptr<PageStore> MakeStore(EnginePages& pages) override {
    return std::make_unique<LinkedStore>(LoopbackWorld::MakeStore(pages), link_,
                                         EnginePages::Payload().table.PayloadBytes(),
                                         EnginePages::kLayers);
  }

 private:
  const std::shared_ptr<TokenBucket> link_ = std::make_shared<TokenBucket>(1e9);
};

// A link as slow as this one lets a layer pass in 100 ms: each layer is told of when it has come,
// and a load that the link cannot carry in time fails.
TEST(LinkedStore, LayersArriveAtTheLinksRate) {
  EnginePages pages;
  const auto blocks = std::make_shared<LoopbackBlocks>();
  const auto store = [&] {
    return LoopbackStore::Make(pages.device(), pages.Layout(), EnginePages::Payload(), blocks)
        .value();
  };
  const ByteCount block = EnginePages::Payload().table.PayloadBytes();
  const auto link = std::make_shared<TokenBucket>(10.0 * static_cast<double>(block.value()) /
                                                  EnginePages::kLayers);
  EngineCache cache(std::make_unique<LinkedStore>(store(), link, block, EnginePages::kLayers), {});
  const auto content = std::make_shared<const ContentSpec>(EngineWorld::Content());
  TokenChain chain(cache.Seed(*content).value());
  chain.Append(std::vector<uint32_t>(EnginePages::kPageTokens, 1));
  const Digest digest = chain.DigestOf(0, EnginePages::kPageTokens);
  (void)cache.BeginStore({.content = content,
                          .parent = chain.ParentOf(0, EnginePages::kPageTokens),
                          .digests = {digest},
                          .tokens = {chain.tokens().begin(), chain.tokens().end()},
                          .pages = {0}});
  ASSERT_TRUE(Eventually([&] { return cache.stats().stored == 1; }));
  (void)cache.Poll();
  const TimePoint begun = SteadyNow();
  const JobId load = cache.BeginLoad({.digests = {digest}, .pages = {1}, .by_layer = true});
  for (uint32_t layer = 1; layer <= EnginePages::kLayers; ++layer) {
    ASSERT_TRUE(cache.AwaitLayers(load, layer, begun + std::chrono::seconds(60)));
    EXPECT_GE(SteadyNow() - begun, layer * std::chrono::milliseconds(99)) << layer;
  }
  const JobId late = cache.BeginLoad({.digests = {digest},
                                      .pages = {1},
                                      .deadline = std::chrono::milliseconds(50),
                                      .by_layer = true});
  EXPECT_FALSE(cache.AwaitLayers(late, 1, SteadyNow() + std::chrono::seconds(60)));
  ASSERT_TRUE(Eventually([&] { return cache.stats().loads_ended == 2; }));
  const std::vector<JobResult> ended = cache.Poll();
  EXPECT_EQ(ended.back().status, std::vector{BlockStatus::kCancelled});
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended.back().cause)) << ended.back().cause;
}

// A daemon that does not answer costs a lookup its patience, and no more.
TEST(EngineCachePatience, ALookupWithoutAnAnswerIsAMiss) {
  EnginePages pages;
  const auto blocks = std::make_shared<LoopbackBlocks>();
  blocks->Set({.answers = false});
  EngineCache cache(
      LoopbackStore::Make(pages.device(), pages.Layout(), EnginePages::Payload(), blocks).value(),
      {.lookup_patience = std::chrono::milliseconds(30)});
  const JobId asked = cache.BeginLookup({}, {});
  EXPECT_EQ(cache.PollLookup(asked), std::nullopt);
  std::optional<EngineCache::Found> found;
  EXPECT_TRUE(Eventually([&] { return (found = cache.PollLookup(asked)).has_value(); }));
  EXPECT_EQ(found->tokens, TokenCount());
  EXPECT_EQ(cache.stats().impatient, 1u);
  EXPECT_TRUE(cache.PollLookup(asked).has_value()) << "the answer stays";
  cache.EndLookup(asked);
}

INSTANTIATE_TEST_SUITE_P(
    Loopback, EngineCacheContract,
    ::testing::Values(EngineRoad{"memory", [] { return std::make_unique<LoopbackWorld>(); }},
                      EngineRoad{"link", [] { return std::make_unique<LinkedWorld>(); }}),
    [](const auto& road) { return road.param.name; });

}  // namespace
}  // namespace larder
