// Calls WatchEvents on the real daemon: a watcher knows which blocks are stored, however often it
// is cut off.
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/create_channel.h>

#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kNumbers = 500;  // blocks; the pool holds about half of them

// What a watcher knows.
struct Known {
  std::set<std::pair<std::string, int>> blocks;  // digest, tier
  std::string boot_id;
  uint64_t sequence = 0;
  bool complete = false;  // it has received all of a snapshot

  // Applies a reply.  Returns what is wrong with it, or an empty string.
  std::string Hear(const v1::WatchEventsReply& reply) {
    if (!reply.boot_id().empty()) boot_id = reply.boot_id();
    for (const v1::Event& event : reply.events()) {
      const bool stored = event.has_stored();
      const std::string& digests = stored ? event.stored().digests() : event.removed().digests();
      const int tier = stored ? event.stored().tier() : event.removed().tier();
      if (event.sequence() != 0 && event.sequence() <= sequence)
        return "an event has an old sequence number";
      for (size_t at = 0; at < digests.size(); at += 16) {
        const auto block = std::pair(digests.substr(at, 16), tier);
        // An event that happened while the snapshot was taken may already be part of it.
        if (stored) {
          blocks.insert(block);
        } else {
          blocks.erase(block);
        }
      }
    }
    if (reply.sequence() < sequence) return "a reply has an old sequence number";
    sequence = reply.sequence();
    complete = complete || reply.snapshot_end();
    return "";
  }
};

class WatchTest : public VerbTest {
 protected:
  static v1::WatchEventsRequest Snapshot(bool with_tokens = false) {
    v1::WatchEventsRequest request;
    request.set_snapshot(true);
    request.set_with_tokens(with_tokens);
    return request;
  }
  static v1::WatchEventsRequest After(const Known& known) {
    v1::WatchEventsRequest request;
    request.set_boot_id(known.boot_id);
    request.set_after(known.sequence);
    return request;
  }
  // Watches until `enough(known)`, and then cancels the call.
  template <class Enough>
  grpc::Status Watch(const v1::WatchEventsRequest& request, Known* known, Enough enough) {
    if (request.snapshot()) *known = {};
    return Ask([&](auto& stub, auto& context) {
      const auto reader = stub.WatchEvents(&context, request);
      v1::WatchEventsReply reply;
      while (reader->Read(&reply)) {
        EXPECT_EQ(known->Hear(reply), "");
        if (!enough(*known)) continue;
        context.TryCancel();
        break;
      }
      return reader->Finish();
    });
  }
  // Returns the stored blocks according to Lookup, which does not use events.
  std::set<std::pair<std::string, int>> There(uint32_t numbers) {
    std::set<std::pair<std::string, int>> there;
    for (uint32_t number = 0; number < numbers; ++number) {
      const auto found = client_->Lookup(QueryOf(number));
      if (!found.ok() || found->instances.empty()) continue;
      for (const wire::TierHit& hit : found->instances[0].tiers)
        there.emplace(Packed(maker_.Block(number).digest), static_cast<int>(hit.tier));
    }
    return there;
  }
  // Clears a block from both tiers.
  void ClearOne(uint32_t number) {
    v1::ClearRequest request;
    request.set_scope(v1::SELECTION_SCOPE_BLOCKS);
    Name(number, number + 1, &request);
    v1::ClearReply reply;
    const grpc::Status status =
        Ask([&](auto& stub, auto& context) { return stub.Clear(&context, request, &reply); });
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  // Brings `known` up to date: resumes if it can, and otherwise begins with a snapshot.
  void CatchUp(Known* known) {
    Known now;
    (void)Watch(Snapshot(), &now, [](const Known& there) { return there.complete; });
    const auto enough = [&](const Known& heard) {
      return heard.complete && heard.sequence >= now.sequence;
    };
    if (known->complete && !enough(*known)) (void)Watch(After(*known), known, enough);
    if (!enough(*known)) (void)Watch(Snapshot(), known, enough);
    EXPECT_TRUE(enough(*known));
  }
};

// The watcher is cut off in the middle of a snapshot or of events, by its own cancellation or
// because it is slow.  It then resumes, or begins again where it must.
TEST_F(WatchTest, AWatcherKnowsTheBlocksHoweverOftenItIsCutOff) {
  const uint64_t rounds = testing::Scaled(100);
  ASSERT_NO_FATAL_FAILURE(Start({"--events-max", "2000"}));
  std::mt19937_64 random(testing::TestSeed());
  Known known;
  uint64_t resumed = 0, began_again = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    std::atomic<bool> stop{false};
    std::thread churn([&] {
      std::mt19937_64 numbers(round);
      while (!stop) {
        (void)TryPut(static_cast<uint32_t>(numbers() % kNumbers));
        (void)TryGet(static_cast<uint32_t>(numbers() % kNumbers));
        if (numbers() % 10 == 0) ClearOne(static_cast<uint32_t>(numbers() % kNumbers));
      }
    });
    // The watcher is cut off several times while blocks come and go.
    for (uint64_t cuts = 1 + random() % 3; cuts > 0; --cuts) {
      uint64_t left = random() % 6;
      const bool resume = known.complete && random() % 4 != 0;
      const grpc::Status status = Watch(resume ? After(known) : Snapshot(), &known,
                                        [&](const Known&) { return left-- == 0; });
      resumed += resume && status.error_code() == grpc::StatusCode::CANCELLED ? 1 : 0;
      began_again += resume ? 0 : 1;
      if (status.error_code() == grpc::StatusCode::OUT_OF_RANGE) known = {};
    }
    stop = true;
    churn.join();
    // Spills and evictions that are still under way end soon.
    ASSERT_TRUE(Eventually([&] {
      CatchUp(&known);
      return known.blocks == There(kNumbers);
    }));
  }
  EXPECT_GT(resumed, 0u);
  EXPECT_GT(began_again, 0u);
  EXPECT_GT(daemon_->Metric("larder_events_told_total"), 0);
}

TEST_F(WatchTest, TellsTokensParentAndContent) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(3));
  for (const bool from_disk : {false, true}) {
    SCOPED_TRACE(from_disk);
    if (from_disk) {
      ASSERT_NO_FATAL_FAILURE(StartAgain(""));
    }
    std::map<std::string, v1::Event::Stored> stored;
    ASSERT_EQ(Ask([&](auto& stub, auto& context) {
                v1::WatchEventsRequest request = Snapshot(/*with_tokens=*/true);
                request.add_tiers(v1::TIER_DISK);
                const auto reader = stub.WatchEvents(&context, request);
                v1::WatchEventsReply reply;
                while (reader->Read(&reply)) {
                  for (const v1::Event& event : reply.events())
                    stored[event.stored().digests()] = event.stored();
                  if (reply.snapshot_end()) break;
                }
                context.TryCancel();
                return reader->Finish();
              }).error_code(),
              grpc::StatusCode::CANCELLED);
    ASSERT_EQ(stored.size(), 3u);
    for (uint32_t number = 0; number < 3; ++number) {
      const TestBlock block = maker_.Block(number);
      const v1::Event::Stored& event = stored.at(Packed(block.digest));
      EXPECT_EQ(event.parent(), Packed(block.parent));
      EXPECT_EQ(event.content_id(), Packed(maker_.content.Id()));
      EXPECT_EQ(event.variant_id(), Packed(maker_.variant.Id()));
      EXPECT_EQ(event.tier(), v1::TIER_DISK);
      EXPECT_EQ(event.block_tokens(), 16u);
      EXPECT_EQ(std::vector<uint32_t>(event.tokens().begin(), event.tokens().end()), block.tokens);
    }
  }
}

TEST_F(WatchTest, ResumingAtAnotherBootIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_EQ(Put(1), BlockStatus::kOk);
  Known known;
  (void)Watch(Snapshot(), &known, [](const Known& now) { return now.complete; });
  EXPECT_GE(known.blocks.size(), 1u);
  daemon_->Kill9();
  ASSERT_NO_FATAL_FAILURE(Start());
  const grpc::Status status = Watch(After(known), &known, [](const Known&) { return true; });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("snapshot"));
}

// A watcher does not read.  The daemon goes on without it, and the watcher's next read reports that
// it was cut off.
TEST_F(WatchTest, ASlowWatcherIsCutOffAndDelaysNoEngine) {
  ASSERT_NO_FATAL_FAILURE(Start({"--events-max", "100"}));
  grpc::ChannelArguments small;  // gRPC accepts little before the watcher reads
  small.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  small.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
  const auto channel = grpc::CreateCustomChannel("unix:" + folder_->File("control.sock"),
                                                 grpc::InsecureChannelCredentials(), small);
  const auto stub = v1::Cache::NewStub(channel);
  grpc::ClientContext context;
  v1::WatchEventsRequest request;
  request.set_with_tokens(true);
  const auto reader = stub->WatchEvents(&context, request);
  ASSERT_TRUE(Eventually([&] {
    for (int i = 0; i < 100; ++i) (void)TryPut(next_++);
    return daemon_->Metric("larder_watchers_cut_off_total") == 1;
  }));
  v1::WatchEventsReply reply;
  while (reader->Read(&reply)) continue;
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE) << status.error_message();
  EXPECT_EQ(Get(next_ - 1), BlockStatus::kOk);
}

TEST_F(WatchTest, RefusesInvalidRequests) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto refused = [&](const char* what, grpc::StatusCode code, auto change) {
    v1::WatchEventsRequest request;
    change(&request);
    Known known;
    const grpc::Status status = Watch(request, &known, [](const Known&) { return true; });
    EXPECT_EQ(status.error_code(), code) << what << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(what));
  };
  using Request = v1::WatchEventsRequest;
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  refused("after", kInvalid, [](Request* r) { r->set_after(1); });
  refused("boot_id", kInvalid, [](Request* r) {
    r->set_snapshot(true);
    r->set_boot_id("x");
  });
  refused("tiers", grpc::StatusCode::UNIMPLEMENTED,
          [](Request* r) { r->add_tiers(v1::TIER_REMOTE); });
  refused("tenant", grpc::StatusCode::PERMISSION_DENIED, [](Request* r) { r->set_tenant("x"); });
  EXPECT_EQ(daemon_->Metric("larder_invalid_messages_total"), 4);
}

}  // namespace
}  // namespace larder::e2e
