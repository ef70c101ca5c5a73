// Promises through the client library and a real daemon (client/promise.h).
#include "client/promise.h"

#include <chrono>
#include <optional>
#include <thread>

#include "gtest/gtest.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;

constexpr size_t kBlocks = 20, kLayerBytes = 64 << 10;

// Parameter: whether sessions travel over session sockets; if not, over gRPC.
class PromiseTest : public ::testing::TestWithParam<bool> {
 protected:
  struct Engine {
    std::unique_ptr<Client> client;
    std::unique_ptr<Session> session;
    std::vector<VariantHandle> variants;
  };

  void Start(std::vector<std::string> flags = {}) {
    flags.insert(flags.end(),
                 {"--pool", "64MiB", "--session-sockets", GetParam() ? "true" : "false"});
    daemon_ = std::make_unique<DaemonProcess>(flags);
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
    scheduler_ = Attach("engine");
    worker_ = Attach("engine");
  }
  Engine Attach(const std::string& engine_id) {
    Engine engine;
    engine.client = *Client::Connect({.socket_dir = daemon_->folder()->path()});
    engine.session = *engine.client->Attach({.engine_id = engine_id});
    engine.variants = *engine.session->Register({&maker_.content, 1}, {&maker_.variant, 1});
    return engine;
  }
  void Put(size_t blocks, uint32_t first_token = 0) {
    const std::vector<uint32_t> tokens = Tokens(blocks, first_token);
    Digest parent = maker_.content.Id();
    for (size_t i = 0; i < blocks; ++i) {
      TestBlock block;
      block.parent = parent;
      block.tokens.assign(tokens.begin() + static_cast<ptrdiff_t>(16 * i),
                          tokens.begin() + static_cast<ptrdiff_t>(16 * (i + 1)));
      block.digest = parent = Chain(parent, block.tokens).back();
      const FilledBlock filled(maker_, block, kLayerBytes);
      const PutBlock put = filled.ToPut();
      const auto status = worker_.session->Put(worker_.variants[0], {&put, 1});
      ASSERT_TRUE(status.ok()) << status.status();
      ASSERT_EQ(status->front(), BlockStatus::kOk);
    }
  }
  static std::vector<uint32_t> Tokens(size_t blocks, uint32_t first_token = 0) {
    std::vector<uint32_t> tokens;
    for (uint32_t i = 0; i < 16 * blocks; ++i) tokens.push_back(first_token + i);
    return tokens;
  }
  [[nodiscard]] std::vector<Digest> ChainOf(size_t blocks) const {
    return Chain(maker_.content.Id(), Tokens(blocks));
  }
  // Reads the blocks of the chain, under the promise; returns how many are there with right bytes.
  size_t Read(LeaseId promise) {
    size_t right = 0;
    for (const Digest& digest : ChainOf(kBlocks)) {
      const LayerSpace space(digest, maker_.variant.layers, kLayerBytes);
      const GetBlock get = space.ToGet();
      const auto status =
          worker_.session->Get(worker_.variants[0], {&get, 1}, {.promise = promise});
      EXPECT_TRUE(status.ok()) << status.status();
      if (!status.ok() || status->front() != BlockStatus::kOk) continue;
      bool same = true;
      for (uint32_t i = 0; i < space.layers().size(); ++i)
        same = same && LayerIsRight(digest, i, space.layers()[i]);
      right += same ? 1 : 0;
    }
    return right;
  }
  // Asks without waiting.
  absl::StatusOr<Promise> Ask(PromiseQuery query) {
    absl::StatusOr<PendingPromise> asked = scheduler_.session->BeginPromise(query);
    if (!asked.ok()) return asked.status();
    EXPECT_TRUE(Eventually([&] { return asked->Poll(); }));
    return asked->Take();
  }
  absl::StatusOr<Promise> Ask() {
    const std::vector<Digest> chain = ChainOf(kBlocks);
    return Ask({.variants = scheduler_.variants, .chain = chain});
  }

  BlockMaker maker_;
  std::unique_ptr<DaemonProcess> daemon_;
  Engine scheduler_, worker_;
};

TEST_P(PromiseTest, KeepsBlocksForTheWorkerWhileThePoolOverflows) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(kBlocks));
  absl::StatusOr<Promise> promise = Ask();
  ASSERT_TRUE(promise.ok()) << promise.status();
  EXPECT_EQ(promise->tokens(), TokenCount(16 * kBlocks));
  ASSERT_EQ(promise->blocks().size(), 1u);
  EXPECT_EQ(promise->blocks()[0].status, std::vector(kBlocks, BlockStatus::kOk));
  EXPECT_EQ(promise->pending(), 0u);
  absl::StatusOr<PendingPromise> held = worker_.session->HoldPromise(promise->id());
  ASSERT_TRUE(held.ok() && held->Wait(std::chrono::seconds(10)));
  absl::StatusOr<Promise> workers = held->Take();
  ASSERT_TRUE(workers.ok()) << workers.status();
  const LeaseId id = promise->id();
  scheduler_.session.reset();  // the scheduler restarts
  EXPECT_EQ(daemon_->Metric("larder_promises"), 1);
  EXPECT_EQ(daemon_->Metric("larder_promised_bytes"),
            static_cast<double>(kBlocks * maker_.variant.layers * kLayerBytes));
  ASSERT_NO_FATAL_FAILURE(Put(1'000, 1'000'000));  // 125 MiB through a pool of 64
  EXPECT_EQ(Read(id), kBlocks);
  workers->Release();
  EXPECT_TRUE(Eventually([&] { return daemon_->Metric("larder_promises") == 0; }));
  EXPECT_EQ(daemon_->Metric("larder_promised_bytes"), 0);
}

TEST_P(PromiseTest, TellsWhenBlocksWereReadFromDisk) {
  const TemporaryDirectory disk;
  ASSERT_NO_FATAL_FAILURE(Start({"--disk", disk.path(), "--disk-limit", "400MiB"}));
  ASSERT_NO_FATAL_FAILURE(Put(kBlocks));
  ASSERT_TRUE(Eventually([&] { return worker_.session->counters().blocks_durable == kBlocks; },
                         milliseconds(20'000)));
  ASSERT_NO_FATAL_FAILURE(Put(1'000, 1'000'000));
  const std::vector<Digest> chain = ChainOf(kBlocks);
  absl::StatusOr<Promise> promise = Ask();
  ASSERT_TRUE(promise.ok()) << promise.status();
  EXPECT_EQ(promise->tokens(), TokenCount(16 * kBlocks));
  EXPECT_EQ(promise->blocks().at(0).tiers.front(), Tier::kDisk);
  EXPECT_TRUE(Eventually([&] {
    scheduler_.session->Poll();
    return promise->pending() == 0;
  }));
  EXPECT_EQ(promise->blocks().at(0).status, std::vector(kBlocks, BlockStatus::kOk));
  EXPECT_EQ(Read(promise->id()), kBlocks);
}

TEST_P(PromiseTest, SaysWhyThereIsNone) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_TRUE(absl::IsNotFound(Ask().status())) << "nothing is stored";
  EXPECT_TRUE(absl::IsInvalidArgument(Ask(PromiseQuery{}).status())) << "no variant";
  const Engine other = Attach("another");
  EXPECT_TRUE(absl::IsInvalidArgument(Ask({.variants = other.variants}).status()));
  ASSERT_NO_FATAL_FAILURE(Put(kBlocks));
  const absl::StatusOr<Promise> promise = Ask();
  ASSERT_TRUE(promise.ok());
  absl::StatusOr<PendingPromise> stolen = other.session->HoldPromise(promise->id());
  ASSERT_TRUE(stolen.ok() && stolen->Wait(std::chrono::seconds(10)));
  EXPECT_TRUE(absl::IsNotFound(stolen->Take().status())) << "a promise of another engine";
}

TEST_P(PromiseTest, EndsAtItsDeadlineAndWithTheDaemon) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(kBlocks));
  const std::vector<Digest> chain = ChainOf(kBlocks);
  const absl::StatusOr<Promise> brief =
      Ask({.variants = scheduler_.variants, .chain = chain, .life = milliseconds(50)});
  const absl::StatusOr<Promise> promise = Ask();
  ASSERT_TRUE(brief.ok() && promise.ok());
  EXPECT_TRUE(promise->Valid());
  EXPECT_TRUE(Eventually([&] {
    scheduler_.session->Poll();
    return !brief->Valid();
  }));
  EXPECT_TRUE(promise->Valid());
  daemon_->Kill9();
  EXPECT_TRUE(Eventually([&] {
    scheduler_.session->Poll();
    return !promise->Valid();
  }));
  EXPECT_TRUE(absl::IsUnavailable(Ask().status()));
}

// The client begins requests and never takes their answers.
TEST_P(PromiseTest, AbandonedRequestsLeaveNothing) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Put(kBlocks));
  const std::vector<Digest> chain = ChainOf(kBlocks);
  for (uint64_t i = 0; i < testing::Scaled(10'000); ++i) {
    absl::StatusOr<PendingPromise> asked =
        scheduler_.session->BeginPromise({.variants = scheduler_.variants, .chain = chain});
    ASSERT_TRUE(asked.ok()) << asked.status();
    if (i % 3 == 0) (void)asked->Poll();
    if (i % 3 == 1) (void)asked->Wait(milliseconds(10));
  }
  EXPECT_TRUE(Eventually([&] {
    scheduler_.session->Poll();
    return daemon_->Metric("larder_promises") == 0;
  })) << daemon_->Metric("larder_promises");
  EXPECT_EQ(daemon_->Metric("larder_promised_bytes"), 0);
}

INSTANTIATE_TEST_SUITE_P(Over, PromiseTest, ::testing::Bool(), [](const auto& carrier) {
  return carrier.param ? "SessionSocket" : "Grpc";
});

}  // namespace
}  // namespace larder::e2e
