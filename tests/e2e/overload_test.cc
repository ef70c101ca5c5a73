// Offers the daemon ten times the look-ups, sessions and byte streams that it accepts at once, from
// callers that repeat their calls immediately whatever the answer is.  The daemon's own memory must
// stay bounded, every call must be answered or refused with RESOURCE_EXHAUSTED and a hint when to
// retry, and afterwards the daemon must be healthy and hold nothing.
//
// LARDER_TEST_SCALE (default 0.1) scales the duration of 60 s; it is at least 5 s.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "larder/v1/cache.grpc.pb.h"
#include "proto/convert/convert.h"
#include "storage/mutex.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/raw_session.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

constexpr int kCallsMax = 32;
constexpr int kSessionsMax = 64;     // the share of callers without a sideband: half of all
constexpr int kSessionsOfAll = 128;  // --sessions-max
constexpr int kStreamsMax = 32;      // their byte streams that fit the default memory limit
constexpr int kPlaces = 8;           // session slots that are left for callers that come and go
constexpr int kTimes = 10;

std::chrono::milliseconds Duration() {
  return std::chrono::milliseconds(
      static_cast<int64_t>(std::max(5.0, 60 * testing::TestScale()) * 1e3));
}

// Counts the daemon's answers by kind of call.
class Answers {
 public:
  void Add(const std::string& kind, const grpc::Status& status,
           const grpc::ClientContext& context) {
    bool hint = true;
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      const auto& trailers = context.GetServerTrailingMetadata();
      const auto found = trailers.find("larder-retry-after-ms");
      hint = found != trailers.end() &&
             std::atoi(std::string(found->second.data(), found->second.size()).c_str()) > 0;
    }
    MutexLock lock(mu_);
    if (status.ok()) {
      ++ok_[kind];
    } else if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED && hint) {
      ++overloaded_[kind];
    } else {
      ++other_[kind + ": " + std::to_string(status.error_code()) + (hint ? "" : " without a hint") +
               " " + status.error_message()];
    }
  }
  [[nodiscard]] uint64_t Overloaded(const std::string& kind) {
    MutexLock lock(mu_);
    return overloaded_[kind];
  }
  // Prints the counts.  Expects that calls of each kind were answered, and that every refusal was
  // RESOURCE_EXHAUSTED with a hint.
  void Report() {
    MutexLock lock(mu_);
    for (const auto& [kind, count] : ok_) {
      std::printf("%s: %lu answered, %lu told to retry\n", kind.c_str(), count, overloaded_[kind]);
      EXPECT_GT(count, 0u);
    }
    for (const auto& [answer, count] : other_) ADD_FAILURE() << answer << ", " << count << " times";
  }

 private:
  Mutex mu_;
  std::map<std::string, uint64_t> ok_ LARDER_GUARDED_BY(mu_);
  std::map<std::string, uint64_t> overloaded_ LARDER_GUARDED_BY(mu_);
  std::map<std::string, uint64_t> other_ LARDER_GUARDED_BY(mu_);
};

class OverloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(daemon_.serves()) << daemon_.errors();
    Store(0);
  }
  void Store(uint32_t number) {
    const TestBlock block = maker_.Block(number);
    grpc::ClientContext context;
    v1::StoreBlocksReply reply;
    const auto stub = v1::Engine::NewStub(daemon_.DataChannel());
    const auto stream = stub->StoreBlocks(&context, &reply);
    v1::StoreBlocksRequest request;
    wire::Encode(maker_.content, request.mutable_content());
    wire::Encode(maker_.variant, request.mutable_variant());
    request.set_engine_id("overload");
    request.mutable_block()->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
    wire::Encode(maker_.Table(block.digest, kLayerBytes),
                 request.mutable_block()->mutable_segments());
    stream->Write(request);
    std::vector<std::byte> layer(kLayerBytes);
    for (uint32_t i = 0; i < 2; ++i) {
      FillLayer(block.digest, i, layer);
      v1::StoreBlocksRequest data;
      data.set_data(layer.data(), layer.size());
      stream->Write(data);
    }
    stream->WritesDone();
    ASSERT_TRUE(stream->Finish().ok());
    ASSERT_EQ(reply.status(0), v1::BLOCK_STATUS_OK) << reply.message();
  }

  // Starts `width` threads, each of which repeats the call until the end of the test.
  void Offer(int width, const std::function<void(const std::shared_ptr<grpc::Channel>&)>& call) {
    constexpr int kThreadsPerConnection = 16;
    std::shared_ptr<grpc::Channel> channel;
    for (int i = 0; i < width; ++i) {
      if (i % kThreadsPerConnection == 0) channel = daemon_.DataChannel();
      threads_.emplace_back([this, channel, call] {
        while (!end_) call(channel);
      });
    }
  }
  static void Limit(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }
  void LookUp(const std::shared_ptr<grpc::Channel>& channel, const v1::LookupRequest& request) {
    grpc::ClientContext context;
    Limit(context);
    v1::LookupReply reply;
    const grpc::Status status = v1::Cache::NewStub(channel)->Lookup(&context, request, &reply);
    answers_.Add("lookup", status, context);
  }
  void Attach(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    Limit(context);
    const auto stub = v1::Engine::NewStub(channel);
    const auto stream = stub->Attach(&context);
    v1::Up up;
    up.mutable_hello()->set_engine_id("overload");
    up.mutable_hello()->set_role(v1::ROLE_BOTH);
    up.mutable_hello()->set_write_mode(v1::WRITE_MODE_STREAM);
    stream->Write(up);
    v1::Down down;
    if (stream->Read(&down)) {
      up.Clear();
      up.set_bye(true);
      stream->Write(up);
      stream->WritesDone();
      while (stream->Read(&down)) {
      }
    }
    answers_.Add("attach", stream->Finish(), context);
  }
  // Fetches a block.  Only block 0 is stored.
  void Fetch(const std::shared_ptr<grpc::Channel>& channel, uint32_t number = 0) {
    grpc::ClientContext context;
    Limit(context);
    v1::FetchBlocksRequest request;
    wire::Encode(maker_.variant, request.mutable_variant());
    request.set_digests(Packed(maker_.Block(number).digest));
    const auto stub = v1::Engine::NewStub(channel);
    const auto stream = stub->FetchBlocks(&context, request);
    v1::FetchBlocksReply reply;
    while (stream->Read(&reply)) {
    }
    answers_.Add("fetch", stream->Finish(), context);
  }

  static constexpr uint32_t kLayerBytes = 1 << 20;
  const BlockMaker maker_;
  DaemonProcess daemon_{{"--calls-max", std::to_string(kCallsMax), "--sessions-max",
                         std::to_string(kSessionsOfAll), "--connections-per-process", "1000"}};
  std::atomic<bool> end_{false};
  Answers answers_;
  std::vector<std::thread> threads_;
};

TEST_F(OverloadTest, MemoryStaysBoundedAndRefusalsHaveARetryHint) {
  const uint64_t resident_before = daemon_.ResidentBytesBesidePool();
  v1::LookupRequest small, large;
  wire::Encode(maker_.content, small.mutable_content());
  large = small;
  small.set_digests(std::string(500 * 16, 'x'));
  for (uint32_t i = 0; i < 1u << 20; ++i) large.add_tokens(i);
  // These sessions stay, so that too few slots are left for the callers of Attach.
  std::vector<std::unique_ptr<RawSession>> held;
  for (int i = 0; i < kSessionsMax - kPlaces; ++i) {
    held.push_back(std::make_unique<RawSession>(daemon_.DataChannel(), RawSession::Options{}));
    ASSERT_NE(held.back()->attached().session_id(), 0u);
  }
  Offer(kTimes * kCallsMax, [&](const auto& channel) { LookUp(channel, small); });
  Offer(kCallsMax, [&](const auto& channel) { LookUp(channel, large); });
  Offer(kTimes * kPlaces, [&](const auto& channel) { Attach(channel); });
  Offer(kTimes * kStreamsMax, [&](const auto& channel) { Fetch(channel); });

  uint64_t resident_max = 0;
  const auto until = std::chrono::steady_clock::now() + Duration();
  while (std::chrono::steady_clock::now() < until && daemon_.alive()) {
    resident_max = std::max(resident_max, daemon_.ResidentBytesBesidePool());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  end_ = true;
  for (std::thread& thread : threads_) thread.join();
  held.clear();
  ASSERT_TRUE(daemon_.alive()) << daemon_.errors();
  answers_.Report();
  EXPECT_GT(answers_.Overloaded("attach"), 0u)
      << "the daemon was not overloaded, so this proves nothing";
  std::printf("resident beside the pool: %lu MiB before, %lu MiB at most\n", resident_before >> 20,
              resident_max >> 20);
  EXPECT_LE(resident_max, uint64_t{512} << 20);
  EXPECT_TRUE(Eventually([&] {
    const v1::TenantStats t = daemon_.Tenant();
    return t.pool_limit() > 0 && t.sessions() == 0 && t.leases() == 0 && t.reservations() == 0;
  })) << daemon_.Tenant().ShortDebugString();
  EXPECT_EQ(daemon_.Health(), "SERVING");
  EXPECT_EQ(daemon_.Terminate(), 0) << daemon_.errors();
}

// Nearly as many callers as there are slots have one small stream at a time each.  None may be
// refused, however late gRPC tells the daemon that a stream has ended; the other slots are for
// streams that have ended and that gRPC has not reported yet.
TEST_F(OverloadTest, AStreamsSlotIsFreeOnceItsCallerHasTheAnswer) {
  Offer(kStreamsMax - 8, [this](const auto& channel) { Fetch(channel, /*number=*/1); });
  std::this_thread::sleep_for(Duration());
  end_ = true;
  for (std::thread& thread : threads_) thread.join();
  answers_.Report();
  EXPECT_EQ(answers_.Overloaded("fetch"), 0u);
  EXPECT_EQ(daemon_.Terminate(), 0) << daemon_.errors();
}

}  // namespace
}  // namespace larder::e2e
