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
                                         EnginePages::Payload().table.PayloadBytes());
  }

 private:
  const std::shared_ptr<TokenBucket> link_ = std::make_shared<TokenBucket>(1e9);
};

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
