// Engines report the blocks in their device memory to the real daemon: Lookup and WatchEvents list
// them, and Pin, Unpin, Clear and Compress reach the engine that has them.
#include <chrono>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "storage/mutex.h"
#include "tests/e2e/support/device_memory.h"
#include "tests/e2e/support/verb_fixture.h"
#include "tests/support/eventually.h"

namespace larder::e2e {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Records the directives that it gets, and can hang.
class RecordingMemory : public DeviceMemory {
 public:
  std::vector<BlockStatus> Do(const wire::Directive& directive) LARDER_EXCLUDES(mu_) {
    std::vector<BlockStatus> statuses = DeviceMemory::Do(directive);
    std::shared_future<void> hang;
    {
      MutexLock lock(mu_);
      hang = hang_;
      done_.push_back(directive);
    }
    if (hang.valid()) hang.wait();
    return statuses;
  }
  [[nodiscard]] std::vector<wire::Directive> done() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return done_;
  }
  // From now on a directive is answered only once `ready` is.
  void HangUntil(std::shared_future<void> ready) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    hang_ = std::move(ready);
  }

 private:
  Mutex mu_;
  std::vector<wire::Directive> done_ LARDER_GUARDED_BY(mu_);
  std::shared_future<void> hang_ LARDER_GUARDED_BY(mu_);
};

class DeviceBlocksTest : public VerbTest {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Start()); }
  // Attaches an engine that accepts directives, beside the fixture's engine, which accepts none.
  void AttachEngine(const std::string& engine_id = "gpu") {
    auto session = client_->Attach(
        {.engine_id = engine_id, .on_directive = [this](const wire::Directive& directive) {
           auto statuses = memory_.Do(directive);
           if (directive.kind == wire::DirectiveKind::kDrop)
             ReportDropped(directive.digests, statuses);
           return statuses;
         }});
    ASSERT_TRUE(session.ok()) << session.status();
    engine_ = *std::move(session);
    const auto variants = engine_->Register({&maker_.content, 1}, {&maker_.variant, 1});
    ASSERT_TRUE(variants.ok()) << variants.status();
    engine_variant_ = variants->front();
  }
  // Reports the dropped blocks, as an engine does before it answers the directive.
  void ReportDropped(std::span<const Digest> digests, std::span<const BlockStatus> statuses) {
    std::vector<Digest> gone;
    for (size_t i = 0; i < digests.size(); ++i)
      if (statuses[i] == BlockStatus::kOk) gone.push_back(digests[i]);
    EXPECT_TRUE(engine_->ReportDevice(engine_variant_, {.removed = gone}).ok());
  }
  // Puts blocks into the engine's device memory and reports them, each as its own chain with its
  // tokens.
  void Have(uint32_t from, uint32_t to) {
    for (uint32_t number = from; number < to; ++number) {
      const TestBlock block = maker_.Block(number);
      memory_.Add(block.digest);
      ASSERT_TRUE(engine_
                      ->ReportDevice(engine_variant_, {.stored = {&block.digest, 1},
                                                       .parent = block.parent,
                                                       .tokens = block.tokens})
                      .ok());
    }
    ASSERT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, from, to) == to - from; }));
  }
  std::vector<v1::BlockStatus> Pin(uint32_t from, uint32_t to, const std::string& owner) {
    v1::PinRequest request;
    Name(from, to, &request);
    request.set_owner(owner);
    request.set_tier(v1::TIER_DEVICE);
    v1::PinReply reply;
    EXPECT_TRUE(
        Ask([&](auto& stub, auto& context) { return stub.Pin(&context, request, &reply); }).ok());
    EXPECT_FALSE(reply.durable());
    return StatusesOf(reply.blocks());
  }
  // Ends all pins of the owner.
  v1::UnpinReply UnpinAll(const std::string& owner) {
    v1::UnpinRequest unpin;
    unpin.set_owner(owner);
    unpin.set_all(true);
    v1::UnpinReply reply;
    EXPECT_TRUE(
        Ask([&](auto& stub, auto& context) { return stub.Unpin(&context, unpin, &reply); }).ok());
    return reply;
  }
  // Pins block 0 of an engine that hangs.  When this returns, the engine has the directive; it
  // answers once `wake` is set.
  void PinWhileItHangs(std::promise<void>& wake,
                       std::future<std::vector<v1::BlockStatus>>* pinned) {
    ASSERT_NO_FATAL_FAILURE(AttachEngine());
    ASSERT_NO_FATAL_FAILURE(Have(0, 1));
    memory_.HangUntil(wake.get_future().share());
    *pinned = std::async(std::launch::async, [this] { return Pin(0, 1, "router"); });
    ASSERT_TRUE(Eventually([&] { return !memory_.done().empty(); }));
  }
  v1::ClearReply Clear(v1::ClearRequest request) {
    if (request.tiers().empty()) request.add_tiers(v1::TIER_DEVICE);
    v1::ClearReply reply;
    EXPECT_TRUE(
        Ask([&](auto& stub, auto& context) { return stub.Clear(&context, request, &reply); }).ok());
    return reply;
  }
  static uint64_t Cleared(const v1::ClearReply& reply, v1::Tier tier = v1::TIER_DEVICE) {
    for (const v1::TierCleared& cleared : reply.tiers())
      if (cleared.tier() == tier) return cleared.blocks();
    return 0;
  }
  // Watches the tier DEVICE until `enough(events)`.
  template <class Enough>
  std::vector<v1::Event> Hear(v1::WatchEventsRequest request, Enough enough) {
    request.clear_tiers();
    request.add_tiers(v1::TIER_DEVICE);
    std::vector<v1::Event> events;
    (void)Ask([&](auto& stub, auto& context) {
      const auto reader = stub.WatchEvents(&context, request);
      for (v1::WatchEventsReply reply; !enough(events) && reader->Read(&reply);) {
        if (!reply.boot_id().empty()) boot_id_ = reply.boot_id();
        sequence_ = reply.sequence();
        events.insert(events.end(), reply.events().begin(), reply.events().end());
      }
      context.TryCancel();
      return reader->Finish();
    });
    return events;
  }

  RecordingMemory memory_;
  std::unique_ptr<Session> engine_;
  VariantHandle engine_variant_;
  std::string boot_id_;
  uint64_t sequence_ = 0;
};

TEST_F(DeviceBlocksTest, LookupListsTheEngineThatHasTheBlocks) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  ASSERT_NO_FATAL_FAILURE(Have(0, 3));
  EXPECT_EQ(Put(0), BlockStatus::kOk);
  const auto found = client_->Lookup(QueryOf(0));
  ASSERT_TRUE(found.ok());
  std::map<std::string, std::vector<Tier>> tiers;
  for (const wire::InstanceHit& hit : found->instances)
    for (const wire::TierHit& tier : hit.tiers) {
      tiers[hit.engine_id].push_back(tier.tier);
      EXPECT_EQ(tier.contiguous, TokenCount(16));
    }
  EXPECT_THAT(tiers["gpu"], ::testing::Contains(Tier::kDevice));
  EXPECT_THAT(tiers["gpu"], ::testing::Contains(Tier::kHost)) << "every engine can read the pool";
  EXPECT_THAT(tiers["disk"], ::testing::Not(::testing::Contains(Tier::kDevice)));
  EXPECT_EQ(daemon_->Metric("larder_device_blocks"), 3);
  const Digest gone = maker_.Block(1).digest;
  EXPECT_TRUE(engine_->ReportDevice(engine_variant_, {.removed = {&gone, 1}}).ok());
  EXPECT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 3) == 2; }));
  engine_.reset();
  EXPECT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 3) == 0; }));
}

TEST_F(DeviceBlocksTest, WatchersGetTheEventsInOrderAndAfterAGap) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  ASSERT_NO_FATAL_FAILURE(Have(0, 2));
  v1::WatchEventsRequest snapshot;
  snapshot.set_snapshot(true);
  snapshot.set_with_tokens(true);
  const auto told = Hear(snapshot, [](const auto& events) { return events.size() >= 2; });
  ASSERT_EQ(told.size(), 2u);
  std::set<std::string> digests;
  for (const v1::Event& event : told) {
    ASSERT_TRUE(event.has_stored());
    EXPECT_EQ(event.stored().engine_id(), "gpu");
    EXPECT_EQ(event.stored().tier(), v1::TIER_DEVICE);
    EXPECT_EQ(event.stored().tokens_size(), 16);
    EXPECT_EQ(event.stored().parent(), Packed(maker_.content.Id()));
    digests.insert(event.stored().digests());
  }
  EXPECT_EQ(digests, (std::set{Packed(maker_.Block(0).digest), Packed(maker_.Block(1).digest)}));
  // These events happen while there is no watcher.
  const Digest gone = maker_.Block(0).digest;
  ASSERT_TRUE(engine_->ReportDevice(engine_variant_, {.removed = {&gone, 1}}).ok());
  ASSERT_NO_FATAL_FAILURE(Have(7, 8));
  engine_.reset();
  v1::WatchEventsRequest after;
  after.set_boot_id(boot_id_);
  after.set_after(sequence_);
  const auto rest = Hear(
      after, [](const auto& events) { return !events.empty() && events.back().has_cleared(); });
  ASSERT_EQ(rest.size(), 3u);
  EXPECT_EQ(rest[0].removed().digests(), Packed(gone));
  EXPECT_EQ(rest[1].stored().digests(), Packed(maker_.Block(7).digest));
  EXPECT_EQ(rest[2].cleared().engine_id(), "gpu");
  EXPECT_EQ(rest[2].cleared().tier(), v1::TIER_DEVICE);
}

TEST_F(DeviceBlocksTest, PinsReachTheEngineAndAreAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  ASSERT_NO_FATAL_FAILURE(Have(0, 2));
  EXPECT_THAT(Pin(0, 3, "router"),
              ElementsAre(v1::BLOCK_STATUS_OK, v1::BLOCK_STATUS_OK, v1::BLOCK_STATUS_MISSING));
  EXPECT_THAT(memory_.PinsOf(maker_.Block(0).digest), ElementsAre("router"));
  EXPECT_GT(memory_.done().front().deadline_unix_ms, 0u);
  (void)Pin(0, 1, "other");
  v1::UnpinRequest unpin;
  Name(0, 1, &unpin);
  unpin.set_owner("router");
  unpin.set_tier(v1::TIER_DEVICE);
  v1::UnpinReply reply;
  ASSERT_TRUE(
      Ask([&](auto& stub, auto& context) { return stub.Unpin(&context, unpin, &reply); }).ok());
  EXPECT_EQ(reply.unpinned(), 1u);
  EXPECT_THAT(memory_.PinsOf(maker_.Block(0).digest), ElementsAre("other"));
  EXPECT_EQ(UnpinAll("router").sessions_unanswered(), 0u);
  EXPECT_THAT(memory_.PinsOf(maker_.Block(1).digest), IsEmpty());
}

TEST_F(DeviceBlocksTest, UnpinAllCountsTheEnginesThatMayStillPin) {
  const TestBlock block = maker_.Block(0);
  // The fixture's engine accepts no directives, so it has no pins.
  ASSERT_TRUE(session_->ReportDevice(variant_, {.stored = {&block.digest, 1}}).ok());
  ASSERT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 1) == 1; }));
  EXPECT_EQ(UnpinAll("router").sessions_unanswered(), 0u);
  const auto refuses = client_->Attach({.engine_id = "refuses", .on_directive = [](const auto&) {
                                          return std::vector{BlockStatus::kCancelled};
                                        }});
  ASSERT_TRUE(refuses.ok()) << refuses.status();
  const auto variants = (*refuses)->Register({&maker_.content, 1}, {&maker_.variant, 1});
  ASSERT_TRUE(variants.ok()) << variants.status();
  const TestBlock other = maker_.Block(1);
  ASSERT_TRUE((*refuses)->ReportDevice(variants->front(), {.stored = {&other.digest, 1}}).ok());
  ASSERT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 2) == 2; }));
  EXPECT_EQ(UnpinAll("router").sessions_unanswered(), 1u);
}

TEST_F(DeviceBlocksTest, ClearDropsBlocksThatAreNotPinned) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  ASSERT_NO_FATAL_FAILURE(Have(0, 4));
  EXPECT_EQ(Put(0), BlockStatus::kOk);
  (void)Pin(0, 1, "router");
  v1::ClearRequest content;
  content.set_scope(v1::SELECTION_SCOPE_CONTENT);
  content.mutable_blocks()->mutable_content()->set_model(maker_.content.model);
  content.set_dry_run(true);
  EXPECT_EQ(Cleared(Clear(content)), 4u);
  EXPECT_EQ(CountIn(Tier::kDevice, 0, 4), 4u) << "a dry run dropped blocks";
  content.set_dry_run(false);
  const v1::ClearReply reply = Clear(content);
  EXPECT_EQ(Cleared(reply), 3u);
  EXPECT_EQ(reply.kept_pinned(), 1u);
  EXPECT_EQ(CountIn(Tier::kDevice, 0, 4), 1u);
  EXPECT_EQ(CountIn(Tier::kHost, 0, 1), 1u) << "a tier was cleared that the request did not name";
  v1::ClearRequest named;
  named.set_scope(v1::SELECTION_SCOPE_BLOCKS);
  Name(0, 2, &named);
  named.set_pinned(true);
  EXPECT_THAT(StatusesOf(Clear(named).blocks()),
              ElementsAre(v1::BLOCK_STATUS_OK, v1::BLOCK_STATUS_MISSING));
  EXPECT_EQ(CountIn(Tier::kDevice, 0, 4), 0u);
}

// The engine reported its block without tokens, so the daemon knows the block's content only from
// the stored block, which the same call clears.
TEST_F(DeviceBlocksTest, ClearOfAllTiersFindsBlocksReportedWithoutTokens) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  ASSERT_NO_FATAL_FAILURE(PutDurable(2));
  const TestBlock block = maker_.Block(0);
  memory_.Add(block.digest);
  ASSERT_TRUE(engine_->ReportDevice(engine_variant_, {.stored = {&block.digest, 1}}).ok());
  ASSERT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 1) == 1; }));
  v1::ClearRequest content;
  content.set_scope(v1::SELECTION_SCOPE_CONTENT);
  content.mutable_blocks()->mutable_content()->set_model(maker_.content.model);
  for (const v1::Tier tier : {v1::TIER_HOST, v1::TIER_DISK, v1::TIER_DEVICE})
    content.add_tiers(tier);
  const v1::ClearReply reply = Clear(content);
  EXPECT_EQ(Cleared(reply, v1::TIER_HOST), 2u);
  EXPECT_EQ(Cleared(reply, v1::TIER_DISK), 2u);
  EXPECT_EQ(Cleared(reply, v1::TIER_DEVICE), 1u);
}

TEST_F(DeviceBlocksTest, CompressAsksTheEngine) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  ASSERT_NO_FATAL_FAILURE(Have(0, 3));
  v1::CompressRequest request;
  request.set_scope(v1::SELECTION_SCOPE_ALL);
  request.add_tiers(v1::TIER_DEVICE);
  request.set_codec(v1::CODEC_LOSSLESS);
  v1::CompressProgress last;
  const auto compress = [&](auto& stub, auto& context) {
    const auto reader = stub.Compress(&context, request);
    while (reader->Read(&last)) continue;
    return reader->Finish();
  };
  ASSERT_TRUE(Ask(compress).ok());
  EXPECT_EQ(last.blocks(), 3u);
  EXPECT_EQ(last.changed(), 3u);
  EXPECT_EQ(memory_.done().back().codec, Codec::kLossless);
  request.set_dry_run(true);
  EXPECT_EQ(Ask(compress).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(DeviceBlocksTest, AnEngineWithoutDirectivesIsReportedAsUnsupported) {
  const TestBlock block = maker_.Block(0);
  ASSERT_TRUE(session_->ReportDevice(variant_, {.stored = {&block.digest, 1}}).ok());
  ASSERT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 1) == 1; }));
  EXPECT_THAT(Pin(0, 1, "router"), ElementsAre(v1::BLOCK_STATUS_UNSUPPORTED));
  v1::ClearRequest all;
  all.set_scope(v1::SELECTION_SCOPE_ALL);
  EXPECT_EQ(Clear(all).unanswered(), 1u);
}

TEST_F(DeviceBlocksTest, AHangingEngineDelaysOnlyItsCaller) {
  std::promise<void> wake;
  std::future<std::vector<v1::BlockStatus>> pinned;
  ASSERT_NO_FATAL_FAILURE(PinWhileItHangs(wake, &pinned));
  EXPECT_EQ(Put(5), BlockStatus::kOk);
  EXPECT_EQ(CountIn(Tier::kHost, 5, 6), 1u);
  EXPECT_THAT(pinned.get(), ElementsAre(v1::BLOCK_STATUS_PENDING));
  EXPECT_EQ(daemon_->Metric("larder_directives_total{step=\"unanswered\"}"), 1);
  // Nor does it delay calls on the pins that the daemon keeps.
  v1::PinRequest host;
  Name(5, 6, &host);
  host.set_owner("router");
  host.set_tier(v1::TIER_HOST);
  v1::PinReply kept;
  ASSERT_TRUE(Ask([&](auto& stub, auto& context) { return stub.Pin(&context, host, &kept); }).ok());
  const v1::UnpinReply reply = UnpinAll("router");
  EXPECT_EQ(reply.unpinned(), 1u);
  EXPECT_EQ(reply.sessions_unanswered(), 1u);
  wake.set_value();
  // The client does not execute a directive that came while it hung and whose caller has stopped
  // waiting.
  EXPECT_THAT(Pin(0, 1, "other"), ElementsAre(v1::BLOCK_STATUS_OK));
  for (const wire::Directive& directive : memory_.done())
    EXPECT_NE(directive.kind, wire::DirectiveKind::kUnpin);
}

// The daemon ends although an engine owes an answer, and the caller gets an answer without it.
TEST_F(DeviceBlocksTest, AnOpenDirectiveDoesNotDelayTheDaemonsEnd) {
  std::promise<void> wake;
  std::future<std::vector<v1::BlockStatus>> pinned;
  ASSERT_NO_FATAL_FAILURE(PinWhileItHangs(wake, &pinned));
  daemon_->Signal(SIGTERM);
  session_.reset();
  // The engine's session ends with its last release, which may be at once.
  EXPECT_THAT(pinned.get(),
              ElementsAre(::testing::AnyOf(v1::BLOCK_STATUS_PENDING, v1::BLOCK_STATUS_MISSING)));
  wake.set_value();
  engine_.reset();
  EXPECT_EQ(daemon_->Wait(), 0);
}

// A lookup counts two sessions of an engine as one, and a directive goes to each session that has
// the block.
TEST_F(DeviceBlocksTest, SessionsOfOneEngineCountOnce) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  ASSERT_NO_FATAL_FAILURE(Have(0, 2));
  auto other = std::move(engine_);
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  const Digest shared = maker_.Block(0).digest;
  ASSERT_TRUE(engine_->ReportDevice(engine_variant_, {.stored = {&shared, 1}}).ok());
  EXPECT_TRUE(Eventually([&] {
    const size_t before = memory_.done().size();
    (void)Pin(0, 1, "router");
    return memory_.done().size() == before + 2;
  }));
  EXPECT_EQ(daemon_->Metric("larder_device_blocks"), 2);
  other.reset();
  EXPECT_TRUE(Eventually([&] { return daemon_->Metric("larder_device_blocks") == 1; }));
  EXPECT_EQ(CountIn(Tier::kDevice, 0, 2), 1u) << "the other session still has block 0";
}

TEST_F(DeviceBlocksTest, BlocksOfASessionThatEndedAreGone) {
  RawSession raw(daemon_->DataChannel(),
                 {.engine_id = "gpu",
                  .feature_bits = v1::FEATURE_BIT_DEVICE_BLOCKS | v1::FEATURE_BIT_DIRECTIVES});
  const TestBlock block = maker_.Block(0);
  v1::Up up;
  v1::Register* registered = up.add_registers();
  registered->set_id(1);
  wire::Encode(maker_.content, registered->add_contents());
  wire::Encode(maker_.variant, registered->add_variants());
  v1::DeviceBlocks* have = up.add_device_blocks();
  have->set_stored(Packed(block.digest));
  have->set_parent(Packed(block.parent));
  have->mutable_tokens()->Add(block.tokens.begin(), block.tokens.end());
  ASSERT_TRUE(raw.Send(up));
  ASSERT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 1) == 1; }));
  auto pinned = std::async(std::launch::async, [this] { return Pin(0, 1, "router"); });
  for (int orders = 0; orders == 0;) {
    const std::optional<v1::Down> down = raw.Receive();
    ASSERT_TRUE(down.has_value());
    orders = down->directives_size();
  }
  raw.Cancel();  // the session ends without an answer
  EXPECT_THAT(pinned.get(), ElementsAre(v1::BLOCK_STATUS_MISSING));
  EXPECT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 1) == 0; }));
}

// The daemon ignores a report whose digests do not follow from its tokens, and counts it; the
// session goes on.
TEST_F(DeviceBlocksTest, DigestsThatDoNotFollowFromTheTokensAreRefused) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  const TestBlock block = maker_.Block(0);
  const Digest wrong = maker_.Block(1).digest;
  ASSERT_TRUE(
      engine_
          ->ReportDevice(engine_variant_,
                         {.stored = {&wrong, 1}, .parent = block.parent, .tokens = block.tokens})
          .ok())
      << "ReportDevice does not wait for the daemon's check";
  EXPECT_TRUE(
      Eventually([&] { return daemon_->Metric("larder_device_reports_refused_total") == 1; }));
  EXPECT_EQ(CountIn(Tier::kDevice, 0, 2), 0u);
  ASSERT_TRUE(engine_
                  ->ReportDevice(engine_variant_, {.stored = {&block.digest, 1},
                                                   .parent = block.parent,
                                                   .tokens = block.tokens})
                  .ok());
  EXPECT_TRUE(Eventually([&] { return CountIn(Tier::kDevice, 0, 2) == 1u; }));
  EXPECT_EQ(session_->ReportDevice(variant_, {.tokens = block.tokens}).code(),
            absl::StatusCode::kInvalidArgument);
}

// One call reports more blocks than a message holds.
TEST_F(DeviceBlocksTest, OneReportMayHaveMoreBlocksThanAMessage) {
  ASSERT_NO_FATAL_FAILURE(AttachEngine());
  constexpr uint32_t kBlocks = 524'288;  // as many as an engine may have; a report of 40 MiB
  std::vector<uint32_t> tokens(16 * kBlocks);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = i;
  const std::vector<Digest> chain = Chain(maker_.content.Id(), tokens);
  ASSERT_TRUE(engine_
                  ->ReportDevice(engine_variant_,
                                 {.stored = chain, .parent = maker_.content.Id(), .tokens = tokens})
                  .ok());
  EXPECT_TRUE(Eventually([&] { return daemon_->Metric("larder_device_blocks") == kBlocks; }));
  wire::LookupQuery query = QueryOf(0);
  query.tokens = {tokens.begin(), tokens.begin() + wire::kLookupTokensMax};
  const auto found = client_->Lookup(query);
  ASSERT_TRUE(found.ok() && !found->instances.empty());
  EXPECT_EQ(found->instances[0].tiers[0].contiguous, TokenCount(wire::kLookupTokensMax));
  ASSERT_TRUE(engine_->ReportDevice(engine_variant_, {.cleared = true}).ok());
  EXPECT_TRUE(Eventually([&] { return daemon_->Metric("larder_device_blocks") == 0; }));
  EXPECT_TRUE(engine_->status().ok());
}

}  // namespace
}  // namespace larder::e2e
