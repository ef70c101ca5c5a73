// Calls Clear on the real daemon through the generated stubs.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kBlocks = 40;

class ClearTest : public VerbTest {
 protected:
  static v1::ClearRequest All() {
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_ALL);
    return request;
  }
  [[nodiscard]] v1::ClearRequest OfContent() const {
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_CONTENT);
    wire::Encode(maker_.content, request.mutable_blocks()->mutable_content());
    return request;
  }
  grpc::Status TryClear(const v1::ClearRequest& request, v1::ClearReply* reply) {
    return Ask([&](auto& stub, auto& context) { return stub.Clear(&context, request, reply); });
  }
  v1::ClearReply Clear(const v1::ClearRequest& request) {
    v1::ClearReply reply;
    const grpc::Status status = TryClear(request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  [[nodiscard]] double Damaged() const {
    return daemon_->Metric("larder_disk_failures_total{kind=\"damaged\"}");
  }
  static uint64_t ClearedOf(v1::Tier tier, const v1::ClearReply& reply) {
    for (const v1::TierCleared& of : reply.tiers()) {
      if (of.tier() == tier) return of.blocks();
    }
    return 0;
  }
};

TEST_F(ClearTest, ClearedBlocksStayClearedAfterKill9) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  v1::ClearRequest named;
  named.set_scope(v1::SELECTION_SCOPE_BLOCKS);
  Name(0, 2, &named);
  Name(kBlocks, kBlocks + 1, &named);
  EXPECT_THAT(StatusesOf(Clear(named).blocks()),
              ElementsAre(v1::BLOCK_STATUS_OK, v1::BLOCK_STATUS_OK, v1::BLOCK_STATUS_MISSING));
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return OnDisk() == kBlocks - 2; })) << OnDisk();
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  v1::ClearRequest request = OfContent();
  request.set_dry_run(true);
  EXPECT_EQ(ClearedOf(v1::TIER_DISK, Clear(request)), kBlocks - 2);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks - 2);
  request.set_dry_run(false);
  const v1::ClearReply reply = Clear(request);
  EXPECT_EQ(ClearedOf(v1::TIER_DISK, reply), kBlocks - 2);
  EXPECT_EQ(ClearedOf(v1::TIER_HOST, reply), kBlocks - 2) << "the reads brought them into HOST";
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  EXPECT_EQ(OnDisk(), 0);
  EXPECT_EQ(CountHits(0, kBlocks), 0u);
  EXPECT_EQ(Damaged(), 0);
}

TEST_F(ClearTest, ReportsTheClearedBlocksOfEachTier) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  v1::ClearRequest host = All();
  host.add_tiers(v1::TIER_HOST);
  EXPECT_EQ(ClearedOf(v1::TIER_HOST, Clear(host)), kBlocks);
  EXPECT_EQ(CountIn(Tier::kHost, 0, kBlocks), 0u);
  EXPECT_EQ(CountIn(Tier::kDisk, 0, kBlocks), kBlocks);
  EXPECT_EQ(daemon_->Metric("larder_blocks_cleared_total{tier=\"host\"}"), kBlocks);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks) << "not read from disk";
  ExpectNothingHeld();
}

// Engines that read and write meanwhile get right answers, and nothing is left behind.
TEST_F(ClearTest, ClearsWhileEnginesPutAndGet) {
  ASSERT_NO_FATAL_FAILURE(Start());
  std::atomic<bool> stop{false};
  std::thread clearing([&] {
    for (uint32_t round = 0; !stop; ++round) {
      v1::ClearRequest request = round % 2 == 0 ? All() : OfContent();
      if (round % 3 == 1) request.add_tiers(v1::TIER_HOST);
      if (round % 3 == 2) request.add_tiers(v1::TIER_DISK);
      (void)Clear(request);
    }
  });
  uint32_t hits = 0;
  for (uint32_t number = 0; number < 2'000; ++number) {
    EXPECT_TRUE(IsKept(Put(number % 100)));
    hits += Get((number * 7) % 100) == BlockStatus::kOk ? 1 : 0;
  }
  stop = true;
  clearing.join();
  EXPECT_GT(hits, 0u);
  (void)Clear(All());
  ASSERT_TRUE(Eventually([&] {
    (void)Clear(All());  // again, for blocks that were being written to disk
    return OnDisk() == 0 && daemon_->Metric("larder_disk_waiting{for=\"spill\"}") == 0;
  }));
  ExpectNothingHeld();
  EXPECT_EQ(daemon_->Tenant().pool_stored(), 0u);
  EXPECT_EQ(Damaged(), 0);
}

TEST_F(ClearTest, RefusesInvalidRequests) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(Put(1), BlockStatus::kOk);
  const auto refused = [&](const char* what, grpc::StatusCode code, auto change) {
    v1::ClearRequest request = All();
    change(&request);
    v1::ClearReply reply;
    const grpc::Status status = TryClear(request, &reply);
    EXPECT_EQ(status.error_code(), code) << what << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(what));
  };
  using Request = v1::ClearRequest;
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  refused("scope", kInvalid, [](Request* r) { r->clear_scope(); });
  refused("scope", kInvalid, [](Request* r) { r->set_scope(static_cast<v1::SelectionScope>(9)); });
  refused("blocks.content", kInvalid,
          [](Request* r) { r->mutable_blocks()->mutable_content()->set_model("m"); });
  refused("blocks.tokens", kInvalid, [](Request* r) { r->mutable_blocks()->add_tokens(1); });
  refused("blocks.digests", kInvalid,
          [](Request* r) { r->mutable_blocks()->set_digests(std::string(16, 'x')); });
  refused("blocks.tokens", kInvalid, [](Request* r) {
    r->set_scope(v1::SELECTION_SCOPE_PREFIX);
    r->mutable_blocks()->mutable_content()->set_model("m");
  });
  refused("blocks.tokens", kInvalid, [](Request* r) {
    r->set_scope(v1::SELECTION_SCOPE_PREFIX);
    r->mutable_blocks()->mutable_content()->set_model("m");
    r->mutable_blocks()->add_tokens(1);  // less than a block
  });
  refused("blocks.content", kInvalid,
          [](Request* r) { r->set_scope(v1::SELECTION_SCOPE_CONTENT); });
  refused("blocks", kInvalid, [](Request* r) { r->set_scope(v1::SELECTION_SCOPE_BLOCKS); });
  refused("blocks.writer", kInvalid,
          [](Request* r) { r->mutable_blocks()->mutable_writer()->set_uid(0); });
  refused("blocks.writer", kInvalid, [](Request* r) { r->set_scope(v1::SELECTION_SCOPE_WRITER); });
  refused("blocks.writer.engine", kInvalid, [](Request* r) {
    r->set_scope(v1::SELECTION_SCOPE_WRITER);
    r->mutable_blocks()->mutable_writer()->set_engine(65'536);
  });
  refused("blocks.content", kInvalid, [](Request* r) {
    r->set_scope(v1::SELECTION_SCOPE_WRITER);
    r->mutable_blocks()->mutable_writer()->set_uid(0);
    r->mutable_blocks()->mutable_content()->set_model("m");
  });
  refused("tiers", kInvalid, [](Request* r) {
    r->set_scope(v1::SELECTION_SCOPE_WRITER);
    r->mutable_blocks()->mutable_writer()->set_uid(0);
    r->add_tiers(v1::TIER_DEVICE);
  });
  refused("tiers[1]", kInvalid, [](Request* r) {
    r->add_tiers(v1::TIER_HOST);
    r->add_tiers(v1::TIER_UNSPECIFIED);
  });
  refused("tiers", grpc::StatusCode::UNIMPLEMENTED,
          [](Request* r) { r->add_tiers(v1::TIER_REMOTE); });
  refused("tenant", grpc::StatusCode::PERMISSION_DENIED, [](Request* r) { r->set_tenant("x"); });
  EXPECT_EQ(daemon_->Tenant().blocks(), 1u);
  EXPECT_EQ(daemon_->Metric("larder_invalid_messages_total"), 17);
}

}  // namespace
}  // namespace larder::e2e
