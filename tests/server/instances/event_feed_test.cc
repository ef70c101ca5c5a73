// What one watcher receives about a store and about engines that come and go.
#include "server/instances/event_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/server/verbs/scope_fixture.h"

namespace larder {
namespace {

constexpr TierSet kAllTiers = testing::kBoth | TierBit(Tier::kDevice);

class EventFeedTest : public testing::ScopeTest {
 protected:
  void SetUp() override {
    Start();
    devices_.emplace(store().index().events());
  }
  [[nodiscard]] EventFeed Watch(bool snapshot) {
    wire::WatchQuery query;
    query.snapshot = snapshot;
    query.tiers = kAllTiers;
    auto feed = EventFeed::Make(query, store(), &process_->tier, &*devices_, "boot");
    EXPECT_TRUE(feed.ok()) << feed.status();
    return *std::move(feed);
  }

  std::optional<DeviceTable> devices_;
};

TEST_F(EventFeedTest, ASnapshotCoversAllTiersAndLaterEventsFollowIt) {
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  const Digest first = Name("a", 1), second = Name("a", 2);
  devices_->SessionBegan(SessionId{1}, "gpu");
  (void)devices_->Stored(SessionId{1}, {.variant = process_->f.variant(), .digests = {&first, 1}});
  EventFeed feed = Watch(/*snapshot=*/true);
  std::multiset<Tier> told;
  uint64_t sequence = 0;
  while (sequence == 0) {
    const auto reply = feed.Next();
    ASSERT_TRUE(reply.ok()) << reply.status();
    sequence = reply->sequence;
    for (const wire::BlockEvent& event : reply->events) {
      for (size_t i = 0; i < event.digests.size(); ++i) told.insert(event.tier);
      EXPECT_EQ(event.engine_id, event.tier == Tier::kDevice ? "gpu" : "");
    }
  }
  EXPECT_EQ(told.count(Tier::kHost), 3u);
  EXPECT_EQ(told.count(Tier::kDisk), 3u);
  EXPECT_EQ(told.count(Tier::kDevice), 1u);
  (void)devices_->Stored(SessionId{1}, {.variant = process_->f.variant(), .digests = {&second, 1}});
  const auto next = feed.Next();
  ASSERT_TRUE(next.ok());
  ASSERT_EQ(next->events.size(), 1u);
  EXPECT_THAT(next->events[0].digests, ::testing::ElementsAre(second));
}

// Blocks of different writers are in separate events, although they form one chain.  A block on
// disk alone has no engine.
TEST_F(EventFeedTest, SaysWhoStoredABlock) {
  const BlockWriter writer{.uid = 7, .engine = 3};
  for (const bool restart : {false, true}) {
    SCOPED_TRACE(restart);
    if (restart) {
      devices_.reset();  // it belongs to the store that Start replaces
      Start();
    } else {
      ASSERT_NO_FATAL_FAILURE(PutChain("a", 2, /*spilled=*/true, writer));
    }
    wire::WatchQuery query;
    query.snapshot = query.with_tokens = true;
    query.tiers = testing::kBoth;
    auto feed = EventFeed::Make(query, store(), &process_->tier, nullptr, "boot");
    ASSERT_TRUE(feed.ok()) << feed.status();
    size_t told = 0;
    for (bool end = false; !end;) {
      const auto reply = feed->Next();
      ASSERT_TRUE(reply.ok()) << reply.status();
      end = reply->snapshot_end;
      for (const wire::BlockEvent& event : reply->events) {
        ASSERT_TRUE(event.chain);
        const BlockWriter want{.uid = 7, .engine = static_cast<uint16_t>(restart ? 0 : 3)};
        EXPECT_EQ(event.chain->writer, want);
        told += event.digests.size();
      }
    }
    EXPECT_EQ(told, restart ? 2u : 4u);
  }
}

// The ring overwrote its events between the read and the lookup of the engine's name, so the engine
// is unknown.
TEST_F(EventFeedTest, AnEventOfAForgottenEngineCutsTheWatcherOff) {
  EventFeed feed = Watch(/*snapshot=*/false);
  store().index().events().Append(
      {.variant = process_->f.variant(), .tier = Tier::kDevice, .stored = true, .engine = 99});
  const auto reply = feed.Next();
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kOutOfRange);
}

}  // namespace
}  // namespace larder
