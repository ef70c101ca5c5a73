// EngineCache over a real daemon (tests/contract/engine_cache_contract.h).
#include "client/engine/session_store.h"
#include "tests/contract/engine_cache_contract.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {
namespace {

class DaemonWorld final : public EngineWorld {
 public:
  explicit DaemonWorld(WriteMode mode) : mode_(mode) {
    variant_.dtype = "f16";
    variant_.layout = "contract/rows/1";
    variant_.block_tokens = EnginePages::kPageTokens;
    variant_.layers = EnginePages::kLayers;
    Heal();
  }
  [[nodiscard]] std::unique_ptr<PageStore> MakeStore(EnginePages& pages) override {
    SessionStore::Options options;
    options.keeper.client = {.socket_dir = folder_->path(),
                             .connect_deadline = std::chrono::milliseconds(500)};
    options.keeper.session.engine_id = "engine";
    options.keeper.session.write_mode = mode_;
    options.keeper.variants = {variant_};
    options.keeper.backoff_min = std::chrono::milliseconds(10);
    options.keeper.backoff_max = std::chrono::milliseconds(100);
    options.pages = {.device = &pages.device(),
                     .engine = pages.Layout(),
                     .payload = EnginePages::Payload(),
                     .variant = 0};
    options.promise_life = promise_life;
    auto store = SessionStore::Make(std::move(options));
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // Kills the daemon; the next one has an empty pool.
  void Break() override {
    MutexLock lock(mu_);
    daemon_.reset();
  }
  void Heal() override {
    MutexLock lock(mu_);
    if (daemon_ != nullptr) return;
    daemon_ = std::make_unique<DaemonProcess>(std::vector<std::string>{"--pool", "64MiB"},
                                              DaemonProcess::Options{.folder = folder_});
  }
  void Lose(const Digest& digest) override {
    const auto client = Client::Connect({.socket_dir = folder_->path()});
    ASSERT_TRUE(client.ok()) << client.status();
    wire::ClearQuery query;
    query.blocks.engine_id = "engine";
    query.blocks.digests = {digest};
    const auto cleared = (*client)->Clear(query);
    ASSERT_TRUE(cleared.ok()) << cleared.status();
    EXPECT_EQ(cleared->host.blocks, 1u);
  }

  [[nodiscard]] uint32_t LayersAtOnce() const override {
    return mode_ == WriteMode::kStream ? EnginePages::kLayers : 1;  // the others read in place
  }
  void Signal(int signal) {
    MutexLock lock(mu_);
    daemon_->Signal(signal);
  }

  std::chrono::milliseconds promise_life{60'000};

 private:
  const WriteMode mode_;
  VariantSpec variant_;
  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  Mutex mu_;
  std::unique_ptr<DaemonProcess> daemon_ LARDER_GUARDED_BY(mu_);
};

// A lookup that nothing has polled for longer than its promise lasts asks again by itself.
TEST(SessionStore, ALookupOutlivesItsPromise) {
  DaemonWorld world(WriteMode::kMapped);
  world.promise_life = std::chrono::milliseconds(200);
  EnginePages pages;
  EngineCache cache(world.MakeStore(pages), {.lookup_patience = std::chrono::seconds(10)});
  ASSERT_TRUE(Eventually([&] { return cache.status().ok(); }));
  const auto content = std::make_shared<const ContentSpec>(EngineWorld::Content());
  TokenChain chain(cache.Seed(*content).value());
  chain.Append(std::vector<uint32_t>(EnginePages::kPageTokens, 3));
  (void)cache.BeginStore({.content = content,
                          .parent = chain.ParentOf(0, EnginePages::kPageTokens),
                          .digests = {chain.DigestOf(0, EnginePages::kPageTokens)},
                          .tokens = {chain.tokens().begin(), chain.tokens().end()},
                          .pages = {0}});
  ASSERT_TRUE(Eventually([&] { return !cache.Poll().empty(); }));
  const JobId asked = cache.BeginLookup(chain.steps(), {});
  std::optional<EngineCache::Found> found;
  ASSERT_TRUE(Eventually([&] { return (found = cache.PollLookup(asked)).has_value(); }));
  const LeaseId first = found->promise;
  EXPECT_EQ(found->tokens, TokenCount(EnginePages::kPageTokens));
  bool ended = false;
  ASSERT_TRUE(Eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    found = cache.PollLookup(asked);
    ended |= !found.has_value();
    return ended && found.has_value() && found->promise != first;
  })) << ended;
  EXPECT_EQ(found->tokens, TokenCount(EnginePages::kPageTokens));
  EXPECT_EQ(cache.stats().hits, 1u);
  cache.EndLookup(asked);
}

// A job that waits for a daemon that hangs ends soon after it is cancelled, in every mode.
class HangingDaemon : public ::testing::TestWithParam<WriteMode> {};

TEST_P(HangingDaemon, CancelledJobsAndTheCacheEndSoon) {
  DaemonWorld world(GetParam());
  EnginePages pages;
  auto cache = std::make_unique<EngineCache>(world.MakeStore(pages), EngineCache::Options{});
  ASSERT_TRUE(Eventually([&] { return cache->status().ok(); }));
  const auto store = [&](uint32_t text, const char* salt) {
    ContentSpec spec = EngineWorld::Content();
    spec.salt = salt;
    const auto content = std::make_shared<const ContentSpec>(std::move(spec));
    TokenChain chain(cache->Seed(*content).value());
    chain.Append(std::vector<uint32_t>(EnginePages::kPageTokens, text));
    return cache->BeginStore({.content = content,
                              .parent = chain.ParentOf(0, EnginePages::kPageTokens),
                              .digests = {chain.DigestOf(0, EnginePages::kPageTokens)},
                              .tokens = {chain.tokens().begin(), chain.tokens().end()},
                              .pages = {0},
                              .deadline = std::chrono::seconds(60)});
  };
  (void)store(1, "");  // registers the content, and fills the session's stock
  ASSERT_TRUE(Eventually([&] { return !cache->Poll().empty(); }));
  world.Signal(SIGSTOP);
  const TimePoint begun = SteadyNow();
  for (const char* salt : {"", "a content that the daemon has not registered"}) {
    const JobId job = store(2, salt);
    ASSERT_TRUE(Eventually([&] { return cache->stats().stores_waiting == 0; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the daemon is asked, or will be
    cache->Cancel(job);
  }
  (void)store(3, "");
  ASSERT_TRUE(Eventually([&] { return cache->stats().stores_waiting == 0; }));
  cache.reset();
  EXPECT_LT(SteadyNow() - begun, std::chrono::seconds(20)) << "the deadline was 60 s";
  world.Signal(SIGCONT);
}

INSTANTIATE_TEST_SUITE_P(Modes, HangingDaemon,
                         ::testing::Values(WriteMode::kMapped, WriteMode::kStaged,
                                           WriteMode::kStream));

INSTANTIATE_TEST_SUITE_P(
    Daemon, EngineCacheContract,
    ::testing::Values(
        EngineRoad{"mapped", [] { return std::make_unique<DaemonWorld>(WriteMode::kMapped); }},
        EngineRoad{"staged", [] { return std::make_unique<DaemonWorld>(WriteMode::kStaged); }},
        EngineRoad{"stream", [] { return std::make_unique<DaemonWorld>(WriteMode::kStream); }}),
    [](const auto& road) { return road.param.name; });

}  // namespace
}  // namespace larder::e2e
