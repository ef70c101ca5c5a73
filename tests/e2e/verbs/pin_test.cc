// Calls Pin, Unpin and Prefetch on the real daemon through the generated stubs.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/local/sideband_client.h"
#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint32_t kPinned = 20;

class PinTest : public VerbTest {
 protected:
  [[nodiscard]] v1::PinRequest PinOf(uint32_t from, uint32_t to, v1::Tier tier,
                                     const std::string& owner = "router") const {
    v1::PinRequest request;
    Name(from, to, &request);
    request.set_owner(owner);
    request.set_tier(tier);
    return request;
  }
  grpc::Status Pin(const v1::PinRequest& request, v1::PinReply* reply) {
    return Ask([&](auto& stub, auto& context) { return stub.Pin(&context, request, reply); });
  }
  std::vector<v1::BlockStatus> Pinned(const v1::PinRequest& request) {
    v1::PinReply reply;
    const grpc::Status status = Pin(request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(reply.durable());
    EXPECT_GT(reply.deadline_unix_ms(), 0u);
    return StatusesOf(reply.blocks());
  }
  uint64_t Unpinned(const v1::UnpinRequest& request) {
    v1::UnpinReply reply;
    const grpc::Status status =
        Ask([&](auto& stub, auto& context) { return stub.Unpin(&context, request, &reply); });
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.unpinned();
  }
};

TEST_F(PinTest, KeepsBlocksInHostThroughPressureAndKill9) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(2 * kPinned));
  EXPECT_THAT(Pinned(PinOf(0, kPinned, v1::TIER_HOST)), Each(v1::BLOCK_STATUS_OK));
  EXPECT_THAT(Pinned(PinOf(0, kPinned, v1::TIER_HOST)), Each(v1::BLOCK_STATUS_OK))
      << "the second pin of the same owner";
  EXPECT_EQ(daemon_->Metric("larder_pins"), kPinned);
  ASSERT_NO_FATAL_FAILURE(Press(10));
  EXPECT_EQ(CountIn(Tier::kHost, 0, kPinned), kPinned);
  EXPECT_EQ(CountIn(Tier::kHost, kPinned, 2 * kPinned), 0u);
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_TRUE(Eventually([&] { return CountIn(Tier::kHost, 0, kPinned) == kPinned; }))
      << "the pinned blocks were not brought back into HOST";
  EXPECT_EQ(CountHits(0, kPinned), kPinned);
  v1::UnpinRequest unpin;
  Name(0, kPinned, &unpin);
  unpin.set_owner("another");
  unpin.set_tier(v1::TIER_HOST);
  EXPECT_EQ(Unpinned(unpin), 0u);
  unpin.set_owner("router");
  EXPECT_EQ(Unpinned(unpin), kPinned);
  ASSERT_NO_FATAL_FAILURE(Press(2));
  EXPECT_EQ(CountIn(Tier::kHost, 0, kPinned), 0u);
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(daemon_->Metric("larder_pins"), 0) << "the pins are still on disk";
}

TEST_F(PinTest, KeepsBlocksOnDisk) {
  ASSERT_NO_FATAL_FAILURE(Start());
  for (uint32_t number = 0; number < kPinned; ++number) ASSERT_EQ(Put(number), BlockStatus::kOk);
  for (const v1::BlockStatus status : Pinned(PinOf(0, kPinned, v1::TIER_DISK)))
    EXPECT_TRUE(status == v1::BLOCK_STATUS_OK || status == v1::BLOCK_STATUS_PENDING);
  ASSERT_TRUE(Eventually([&] { return CountIn(Tier::kDisk, 0, kPinned) == kPinned; }));
  // As many blocks as the disk holds.  Once so many were evicted, all blocks without a pin have
  // left.
  constexpr double kDiskBlocks = 3'300;
  // While the disk is busy, the spiller skips some blocks.
  for (int i = 0; i < 600 && daemon_->Metric("larder_disk_evicted_total") < kDiskBlocks; ++i)
    ASSERT_NO_FATAL_FAILURE(Press(2));
  EXPECT_GE(daemon_->Metric("larder_disk_evicted_total"), kDiskBlocks);
  EXPECT_EQ(CountIn(Tier::kHost, 0, kPinned), 0u);
  EXPECT_EQ(CountIn(Tier::kDisk, 0, kPinned), kPinned);
  v1::UnpinRequest all;
  all.set_owner("router");
  all.set_all(true);
  EXPECT_EQ(Unpinned(all), kPinned);
}

TEST_F(PinTest, PrefetchBringsBlocksIntoHostForAWhile) {
  std::vector<Digest> digests;
  ASSERT_NO_FATAL_FAILURE(StartWithOnDisk(kPinned, "", &digests));
  v1::PrefetchRequest request;
  Name(0, kPinned + 1, &request);
  request.set_ttl_ms(3'000);
  v1::PrefetchReply reply;
  ASSERT_TRUE(Ask([&](auto& stub, auto& context) {
                return stub.Prefetch(&context, request, &reply);
              }).ok());
  std::vector<v1::BlockStatus> expected(kPinned, v1::BLOCK_STATUS_PENDING);
  expected.push_back(v1::BLOCK_STATUS_MISSING);
  EXPECT_EQ(StatusesOf(reply.blocks()), expected);
  EXPECT_TRUE(Eventually([&] { return CountIn(Tier::kHost, 0, kPinned) == kPinned; }));
  EXPECT_TRUE(Eventually([&] { return daemon_->Metric("larder_pins_expired_total") == kPinned; }));
  EXPECT_EQ(daemon_->Metric("larder_pins"), 0);
  ExpectNothingHeld();
}

// A router knows content and tokens.  The daemon finds the blocks with what the engine registered.
TEST_F(PinTest, NamesBlocksByTheirTokens) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(Put(1), BlockStatus::kOk);
  v1::PinRequest request;
  request.set_owner("router");
  request.set_tier(v1::TIER_HOST);
  wire::Encode(maker_.content, request.mutable_blocks()->mutable_content());
  const TestBlock block = maker_.Block(1);
  request.mutable_blocks()->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
  request.mutable_blocks()->add_tokens(7);  // a part of a block, which is ignored
  v1::PinReply reply;
  ASSERT_TRUE(Pin(request, &reply).ok());
  EXPECT_THAT(StatusesOf(reply.blocks()), ::testing::ElementsAre(v1::BLOCK_STATUS_OK));
  EXPECT_EQ(std::memcmp(reply.blocks().digests().data(), block.digest.bytes.data(),
                        block.digest.bytes.size()),
            0);
  request.mutable_blocks()->set_engine_id("unknown");
  ASSERT_TRUE(Pin(request, &reply).ok());
  EXPECT_EQ(reply.blocks().status_size(), 0)
      << "this engine registered no variant, so it has no blocks";
}

TEST_F(PinTest, PinsTakeAtMostTheirShareOfThePool) {
  ASSERT_NO_FATAL_FAILURE(Start({"--pin-share", "0.1"}));
  for (uint32_t number = 0; number < 100; ++number) ASSERT_EQ(Put(number), BlockStatus::kOk);
  const std::vector<v1::BlockStatus> statuses = Pinned(PinOf(0, 100, v1::TIER_HOST));
  EXPECT_NEAR(
      static_cast<double>(std::count(statuses.begin(), statuses.end(), v1::BLOCK_STATUS_OK)), 27,
      2);
  EXPECT_EQ(statuses.back(), v1::BLOCK_STATUS_FULL);
  EXPECT_LE(daemon_->Metric("larder_pinned_bytes{tier=\"host\"}"), 3.3 * (1 << 20));
}

TEST_F(PinTest, RefusesInvalidRequests) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(Put(1), BlockStatus::kOk);
  const auto refused = [&](const char* what, grpc::StatusCode code, auto change) {
    v1::PinRequest request = PinOf(1, 2, v1::TIER_HOST);
    change(&request);
    v1::PinReply reply;
    const grpc::Status status = Pin(request, &reply);
    EXPECT_EQ(status.error_code(), code) << what << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(what));
  };
  using Request = v1::PinRequest;
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  refused("owner", kInvalid, [](Request* r) { r->clear_owner(); });
  refused("owner", kInvalid, [](Request* r) { r->set_owner(std::string(257, 'x')); });
  refused("tier", kInvalid, [](Request* r) { r->clear_tier(); });
  refused("tier", grpc::StatusCode::UNIMPLEMENTED,
          [](Request* r) { r->set_tier(v1::TIER_REMOTE); });
  refused("ttl_ms", kInvalid, [](Request* r) { r->set_ttl_ms(UINT64_MAX); });
  refused("blocks", kInvalid, [](Request* r) { r->clear_blocks(); });
  refused("blocks.digests", kInvalid, [](Request* r) { r->mutable_blocks()->set_digests("x"); });
  refused("blocks.tokens", kInvalid, [](Request* r) { r->mutable_blocks()->add_tokens(1); });
  refused("blocks.content", kInvalid, [](Request* r) {
    r->mutable_blocks()->clear_digests();
    r->mutable_blocks()->add_tokens(1);
  });
  refused("tenant", grpc::StatusCode::PERMISSION_DENIED, [](Request* r) { r->set_tenant("x"); });
  EXPECT_EQ(daemon_->Metric("larder_pins"), 0);
  EXPECT_EQ(daemon_->Metric("larder_invalid_messages_total"), 10);
}

// As many callers as --calls-max permits make one call at a time each.  None may be refused,
// because a call gives its slot back before the caller has the answer.
TEST_F(PinTest, ACallsSlotIsFreeOnceItsCallerHasTheAnswer) {
  constexpr int kCallers = 8;
  ASSERT_NO_FATAL_FAILURE(Start({"--calls-max", std::to_string(kCallers)}));
  ASSERT_NO_FATAL_FAILURE(PutDurable(1));
  const auto stub = v1::Cache::NewStub(daemon_->ControlChannel());
  const v1::PinRequest pin = PinOf(0, 1, v1::TIER_DEVICE);
  std::atomic<int> refused{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 2'000; ++i) {
        grpc::ClientContext context;
        v1::PinReply pinned;
        if (!stub->Pin(&context, pin, &pinned).ok()) ++refused;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(refused.load(), 0);
}

// ---- pins by engines, at data.sock

class EnginesPinTest : public PinTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_NO_FATAL_FAILURE(PutDurable(kPinned));
    auto sideband = SidebandClient::Connect(daemon_->sideband_socket(), std::chrono::seconds(10));
    ASSERT_TRUE(sideband.ok()) << sideband.status();
    sideband_ = *std::move(sideband);
  }
  template <class Call>
  grpc::Status AskAsEngine(const std::string& token, Call call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if (!token.empty()) context.AddMetadata("larder-token", token);
    return call(*v1::Cache::NewStub(daemon_->DataChannel()), context);
  }
  grpc::Status PinAsEngine(const v1::PinRequest& request, const std::string& token) {
    v1::PinReply reply;
    return AskAsEngine(
        token, [&](auto& stub, auto& context) { return stub.Pin(&context, request, &reply); });
  }
  uint64_t UnpinnedByEngine(const std::string& owner) {
    v1::UnpinRequest request;
    request.set_owner(owner);
    request.set_all(true);
    v1::UnpinReply reply;
    const grpc::Status status = AskAsEngine(sideband_->TokenHex(), [&](auto& stub, auto& context) {
      return stub.Unpin(&context, request, &reply);
    });
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply.unpinned();
  }
  uint64_t UnpinnedByOperator(const std::string& owner) {
    v1::UnpinRequest request;
    request.set_owner(owner);
    request.set_all(true);
    return Unpinned(request);
  }
  std::unique_ptr<SidebandClient> sideband_;
};

TEST_F(EnginesPinTest, OwnersOfEnginesPinsAreSeparateForEachUser) {
  const std::string user = "uid:" + std::to_string(geteuid()) + "/";
  EXPECT_THAT(Pinned(PinOf(0, 3, v1::TIER_HOST, "router")), Each(v1::BLOCK_STATUS_OK));
  const grpc::Status status =
      PinAsEngine(PinOf(0, 5, v1::TIER_HOST, "router"), sideband_->TokenHex());
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(daemon_->Metric("larder_pins"), 8) << "pins of two owners";
  EXPECT_EQ(UnpinnedByEngine("router"), 5u) << "the engine ended other pins than its own";
  EXPECT_EQ(UnpinnedByEngine("router"), 0u);
  EXPECT_EQ(UnpinnedByEngine(user + "router"), 0u);
  EXPECT_EQ(daemon_->Metric("larder_pins"), 3);

  EXPECT_TRUE(PinAsEngine(PinOf(0, 4, v1::TIER_HOST, "mine"), sideband_->TokenHex()).ok());
  EXPECT_EQ(UnpinnedByOperator("mine"), 0u);
  EXPECT_EQ(UnpinnedByOperator(user + "mine"), 4u) << "the operator may end an engine's pins";
  EXPECT_EQ(UnpinnedByOperator("router"), 3u);
}

TEST_F(EnginesPinTest, RefusesPinsThatEnginesMayNotSet) {
  const auto refused = [&](const v1::PinRequest& request, const std::string& token,
                           grpc::StatusCode code, const char* why) {
    const grpc::Status status = PinAsEngine(request, token);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(why));
  };
  constexpr auto kDenied = grpc::StatusCode::PERMISSION_DENIED;
  const v1::PinRequest pin = PinOf(0, 1, v1::TIER_HOST);
  const std::string token = sideband_->TokenHex();
  refused(pin, "", kDenied, "no larder-token proves which");
  refused(pin, std::string(32, '0'), grpc::StatusCode::UNAUTHENTICATED, "of no live sideband");
  refused(PinOf(0, 1, v1::TIER_DEVICE), token, kDenied, "control.sock");
  refused(PinOf(0, 1, v1::TIER_HOST, std::string(256, 'o')), token,
          grpc::StatusCode::INVALID_ARGUMENT, "choose a shorter one");
  EXPECT_EQ(daemon_->Metric("larder_pins"), 0);
}

}  // namespace
}  // namespace larder::e2e
