// EngineCache over a real daemon (tests/contract/engine_cache_contract.h).
#include "client/engine/session_store.h"
#include "tests/contract/engine_cache_contract.h"
#include "tests/e2e/support/daemon_process.h"

namespace larder::e2e {
namespace {

class DaemonWorld final : public EngineWorld {
 public:
  explicit DaemonWorld(WriteMode mode) : mode_(mode) {
    content_.model = "engine";
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
    options.keeper.contents = {content_};
    options.keeper.variants = {variant_};
    options.keeper.backoff_min = std::chrono::milliseconds(10);
    options.keeper.backoff_max = std::chrono::milliseconds(100);
    options.pages = {.device = &pages.device(),
                     .engine = pages.Layout(),
                     .payload = EnginePages::Payload(),
                     .variant = 0};
    auto store = SessionStore::Make(std::move(options));
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  [[nodiscard]] Digest Seed() override {
    ContentSpec content = content_;
    content.tenant = "default";
    return content.Id();
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

 private:
  const WriteMode mode_;
  ContentSpec content_;
  VariantSpec variant_;
  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  Mutex mu_;
  std::unique_ptr<DaemonProcess> daemon_ LARDER_GUARDED_BY(mu_);
};

INSTANTIATE_TEST_SUITE_P(
    Daemon, EngineCacheContract,
    ::testing::Values(
        EngineRoad{"mapped", [] { return std::make_unique<DaemonWorld>(WriteMode::kMapped); }},
        EngineRoad{"staged", [] { return std::make_unique<DaemonWorld>(WriteMode::kStaged); }},
        EngineRoad{"stream", [] { return std::make_unique<DaemonWorld>(WriteMode::kStream); }}),
    [](const auto& road) { return road.param.name; });

}  // namespace
}  // namespace larder::e2e
