// Calls Move on the real daemon through the generated stubs.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBlocks = 100;

class MoveTest : public VerbTest {
 protected:
  static v1::MoveRequest All(v1::Tier from, v1::Tier to, bool copy = false) {
    v1::MoveRequest request;
    request.set_scope(v1::SELECTION_SCOPE_ALL);
    request.set_from(from);
    request.set_to(to);
    request.set_copy(copy);
    return request;
  }
  // Reads until the end, or cancels the call once it has read `answers` messages.
  grpc::Status TryMove(const v1::MoveRequest& request, std::vector<v1::MoveProgress>* progress,
                       size_t answers = SIZE_MAX) {
    return Ask([&](auto& stub, auto& context) {
      const auto reader = stub.Move(&context, request);
      v1::MoveProgress one;
      while (progress->size() < answers && reader->Read(&one)) progress->push_back(one);
      if (progress->size() == answers) context.TryCancel();
      return reader->Finish();
    });
  }
  v1::MoveProgress Move(const v1::MoveRequest& request) {
    std::vector<v1::MoveProgress> progress;
    const grpc::Status status = TryMove(request, &progress);
    EXPECT_TRUE(status.ok()) << status.error_message();
    if (progress.empty()) return {};
    EXPECT_EQ(progress.back().blocks_done(), progress.back().blocks());
    return progress.back();
  }
};

TEST_F(MoveTest, MovesToDiskAndBackWithEqualBytes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  EXPECT_EQ(Move(All(v1::TIER_HOST, v1::TIER_DISK)).moved(), kBlocks) << daemon_->errors();
  EXPECT_EQ(CountIn(Tier::kHost, 0, kBlocks), 0u);
  EXPECT_EQ(CountIn(Tier::kDisk, 0, kBlocks), kBlocks);
  EXPECT_EQ(Move(All(v1::TIER_DISK, v1::TIER_HOST)).moved(), kBlocks);
  EXPECT_EQ(CountIn(Tier::kHost, 0, kBlocks), kBlocks);
  EXPECT_EQ(CountIn(Tier::kDisk, 0, kBlocks), 0u);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
  EXPECT_TRUE(Eventually([&] { return OnDisk() == 0; })) << OnDisk();
  EXPECT_EQ(daemon_->Metric("larder_blocks_moved_total{to=\"host\"}"), kBlocks);
  ExpectNothingHeld();
}

// Blocks that were moved stay moved, whether the caller or the daemon's death ends the call.
TEST_F(MoveTest, ARepeatedCallContinuesAnInterruptedOne) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kBlocks));
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:100ms"));
  std::vector<v1::MoveProgress> progress;
  const v1::MoveRequest request = All(v1::TIER_DISK, v1::TIER_HOST, /*copy=*/true);
  EXPECT_EQ(TryMove(request, &progress, 1).error_code(), grpc::StatusCode::CANCELLED);
  ExpectNothingHeld();
  // The cancelled call may have finished its last window.  The next daemon has an empty pool, so
  // all blocks are to be moved again.
  ASSERT_NO_FATAL_FAILURE(StartAgain("data.read=sleep:100ms"));
  std::thread moving([&] {
    progress.clear();
    EXPECT_EQ(TryMove(request, &progress).error_code(), grpc::StatusCode::UNAVAILABLE);
  });
  EXPECT_TRUE(Eventually([&] { return Promoted() > kBlocks / 4; }));
  daemon_->Kill9();
  moving.join();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  EXPECT_EQ(Move(request).moved(), kBlocks);
  EXPECT_EQ(CountIn(Tier::kHost, 0, kBlocks), kBlocks);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
}

TEST_F(MoveTest, RefusesInvalidRequests) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(Put(1), BlockStatus::kOk);
  const auto refused = [&](const char* what, grpc::StatusCode code, auto change) {
    v1::MoveRequest request = All(v1::TIER_HOST, v1::TIER_DISK);
    change(&request);
    std::vector<v1::MoveProgress> progress;
    const grpc::Status status = TryMove(request, &progress);
    EXPECT_EQ(status.error_code(), code) << what << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(what));
  };
  using Request = v1::MoveRequest;
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  refused("scope", kInvalid, [](Request* r) { r->clear_scope(); });
  refused("from", kInvalid, [](Request* r) { r->clear_from(); });
  refused("to", kInvalid, [](Request* r) { r->set_to(v1::TIER_HOST); });
  refused("to", grpc::StatusCode::UNIMPLEMENTED, [](Request* r) { r->set_to(v1::TIER_DEVICE); });
  refused("tenant", grpc::StatusCode::PERMISSION_DENIED, [](Request* r) { r->set_tenant("x"); });
  EXPECT_EQ(daemon_->Metric("larder_invalid_messages_total"), 5);
}

}  // namespace
}  // namespace larder::e2e
