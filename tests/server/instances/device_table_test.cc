// Which blocks engines have in device memory, compared with a model and with what a watcher
// reconstructs.
#include "server/instances/device_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "tests/support/test_scale.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr VariantIndex kVariant{1};
constexpr TierSet kDevice = TierBit(Tier::kDevice);

Digest D(uint32_t n) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &n, sizeof n);
  return digest;
}

std::vector<Digest> Ds(std::initializer_list<uint32_t> numbers) {
  std::vector<Digest> digests;
  for (const uint32_t n : numbers) digests.push_back(D(n));
  return digests;
}

class DeviceTableTest : public ::testing::Test {
 protected:
  // Sessions 1 to 3 belong to engine a, sessions 4 to 6 to engine b.
  void SetUp() override {
    for (uint64_t session = 1; session <= 6; ++session)
      table_.SessionBegan(SessionId{session}, session <= 3 ? "a" : "b");
  }
  size_t Store(uint64_t session, const std::vector<Digest>& digests) {
    return table_.Stored(SessionId{session}, {.variant = kVariant, .digests = digests});
  }
  [[nodiscard]] std::vector<SessionId> Holders(const std::string& engine, uint32_t n) const {
    std::vector<SessionId> holders;
    const DeviceTable::Name name{kVariant, D(n)};
    table_.ForEachHolder(engine, {&name, 1},
                         [&](size_t, SessionId session) { holders.push_back(session); });
    return holders;
  }

  EventRing ring_{1 << 20};
  DeviceTable table_{ring_};
};

// What a watcher knows: engine, variant and digest of each block.
using Known = std::set<std::tuple<std::string, VariantIndex, Digest>>;

void Hear(const DeviceTable& table, std::span<const TierEvent> events, Known* known) {
  for (const TierEvent& event : events) {
    const std::string engine = table.EngineOf(event);
    ASSERT_NE(engine, "");
    if (event.cleared) {
      std::erase_if(*known, [&](const auto& block) { return std::get<0>(block) == engine; });
    } else if (event.stored) {
      known->emplace(engine, event.variant, event.digest);
    } else {
      known->erase({engine, event.variant, event.digest});
    }
  }
}

TEST_F(DeviceTableTest, ABlockOfSeveralSessionsIsReportedOncePerEngine) {
  EXPECT_EQ(Store(1, Ds({1, 2})), 0u);
  EXPECT_EQ(Store(2, Ds({2})), 0u);
  EXPECT_EQ(Store(4, Ds({2})), 0u);
  EXPECT_EQ(table_.blocks(), 3u);
  EXPECT_THAT(Holders("", 2), UnorderedElementsAre(SessionId{1}, SessionId{2}, SessionId{4}));
  EXPECT_THAT(Holders("a", 1), ElementsAre(SessionId{1}));
  EXPECT_THAT(Holders("b", 1), IsEmpty());
  EXPECT_EQ(ring_.newest(), 3u);
  table_.Removed(SessionId{1}, kVariant, Ds({2}));
  EXPECT_EQ(ring_.newest(), 3u) << "the other session still has it";
  table_.Removed(SessionId{2}, kVariant, Ds({2, 7}));
  EXPECT_EQ(ring_.newest(), 4u);
  table_.CheckInvariants();
}

TEST_F(DeviceTableTest, ClearingAnEngineIsOneEvent) {
  (void)Store(1, Ds({1, 2, 3}));
  (void)Store(4, Ds({1}));
  table_.Cleared(SessionId{1});
  std::array<NumberedEvent, 8> events;
  ASSERT_EQ(ring_.Read(4, kDevice, events)->events, 1u);
  EXPECT_TRUE(events[0].event.cleared);
  EXPECT_EQ(table_.EngineOf(events[0].event), "a");
  EXPECT_EQ(table_.blocks(), 1u);
  table_.Cleared(SessionId{1});
  table_.Cleared(SessionId{9});
  EXPECT_EQ(ring_.newest(), 5u) << "the session had no blocks left, so no event is written";
  table_.CheckInvariants();
}

TEST_F(DeviceTableTest, KnowsTheChainOnlyOfBlocksReportedWithTokens) {
  const std::vector<uint32_t> tokens(32, 5);
  (void)Store(2, Ds({2}));
  (void)table_.Stored(
      SessionId{1}, {.variant = kVariant, .digests = Ds({1, 2}), .parent = D(9), .tokens = tokens});
  TierEvent event{.digest = D(2), .variant = kVariant, .tier = Tier::kDevice, .engine = 1};
  const auto chain = table_.ChainOf(event);
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(chain->parent, D(1));
  EXPECT_EQ(chain->tokens.size(), 16u);
  (void)table_.Stored(SessionId{1}, {.variant = kVariant, .digests = Ds({3}), .parent = D(7)});
  std::map<Digest, Digest> parents;
  table_.ForEach("", [&](VariantIndex, const Digest& digest, const Digest* parent) {
    if (parent != nullptr) parents[digest] = *parent;
  });
  EXPECT_EQ(parents, (std::map<Digest, Digest>{{D(1), D(9)}, {D(2), D(1)}}))
      << "a parent without tokens is not recorded";
  event.digest = D(3);
  EXPECT_FALSE(table_.ChainOf(event).has_value());
}

TEST_F(DeviceTableTest, BeyondItsLimitsBlocksAndTokensAreLeftOut) {
  DeviceTable small(ring_, {.places_max = 4, .tokens_max = 32});
  small.SessionBegan(SessionId{1}, "a");
  small.SessionBegan(SessionId{2}, "a");
  small.SessionBegan(SessionId{3}, "b");
  small.SessionBegan(SessionId{4}, "c");
  const std::vector<uint32_t> tokens(48, 5);
  EXPECT_EQ(small.Stored(
                SessionId{1},
                {.variant = kVariant, .digests = Ds({1, 2, 3}), .parent = D(9), .tokens = tokens}),
            1u)
      << "one engine may have half of all places";
  EXPECT_EQ(small.blocks(), 2u);
  const TierEvent second{.digest = D(2), .variant = kVariant, .tier = Tier::kDevice, .engine = 1};
  EXPECT_FALSE(small.ChainOf(second).has_value());
  EXPECT_EQ(small.Stored(SessionId{2}, {.variant = kVariant, .digests = Ds({1})}), 1u)
      << "each session's copy takes a place";
  EXPECT_EQ(small.Stored(SessionId{3}, {.variant = kVariant, .digests = Ds({1, 2})}), 0u);
  EXPECT_EQ(small.Stored(SessionId{4}, {.variant = kVariant, .digests = Ds({1})}), 1u);
  small.CheckInvariants();
  small.Removed(SessionId{1}, kVariant, Ds({1}));
  EXPECT_EQ(small.Stored(SessionId{4}, {.variant = kVariant, .digests = Ds({3})}), 0u);
  small.CheckInvariants();
}

std::vector<Digest> Numbered(uint32_t from, uint32_t to) {
  std::vector<Digest> digests;
  for (uint32_t n = from; n < to; ++n) digests.push_back(D(n));
  return digests;
}

// A session ends that has more blocks than the ring keeps events, while its engine keeps few.  The
// table writes one cleared event and the remaining blocks, so no watcher is cut off.
TEST_F(DeviceTableTest, TheEndOfALargeSessionCutsOffNoWatcher) {
  EventRing ring(1'000);
  DeviceTable table(ring);
  for (uint64_t session = 1; session <= 3; ++session) table.SessionBegan(SessionId{session}, "a");
  const auto store = [&](uint64_t session, uint32_t from, uint32_t to) {
    (void)table.Stored(SessionId{session}, {.variant = kVariant, .digests = Numbered(from, to)});
  };
  store(1, 0, 4'000);
  store(2, 3'900, 4'000);
  store(3, 3'900, 4'000);
  const auto heard_since = [&](uint64_t after) {
    std::vector<NumberedEvent> events(2'000);
    const auto read = ring.Read(after, kDevice, events);
    EXPECT_TRUE(read.has_value()) << "the watcher was cut off";
    events.resize(read ? read->events : 0);
    return events;
  };
  const uint64_t before = ring.newest();
  table.SessionEnded(SessionId{1});
  const std::vector<NumberedEvent> events = heard_since(before);
  ASSERT_EQ(events.size(), 101u);
  EXPECT_TRUE(events[0].event.cleared);
  Known known, expected;
  std::vector<TierEvent> happened;
  for (const NumberedEvent& event : events) happened.push_back(event.event);
  Hear(table, happened, &known);
  for (uint32_t n = 3'900; n < 4'000; ++n) expected.emplace("a", kVariant, D(n));
  EXPECT_EQ(known, expected);
  // No event is written for blocks that other sessions of the engine also have.
  store(1, 0, 4'000);
  store(2, 0, 4'000);
  const uint64_t again = ring.newest();
  table.Cleared(SessionId{1});
  EXPECT_EQ(heard_since(again).size(), 0u);
  table.CheckInvariants();
}

TEST_F(DeviceTableTest, LookupsCoverMoreThanOneSlice) {
  constexpr uint32_t kBlocks = 3 * DeviceTable::kSlice + 7;
  const std::vector<Digest> digests = Numbered(0, kBlocks);
  (void)Store(1, digests);
  (void)Store(4, digests);
  std::vector<DeviceTable::Name> names;
  for (const Digest& digest : digests) names.emplace_back(kVariant, digest);
  std::map<SessionId, std::vector<size_t>> holders;
  table_.ForEachHolder("", names, [&](size_t i, SessionId who) { holders[who].push_back(i); });
  for (const uint64_t session : {uint64_t{1}, uint64_t{4}}) {
    ASSERT_EQ(holders[SessionId{session}].size(), kBlocks);
    EXPECT_TRUE(std::ranges::is_sorted(holders[SessionId{session}]));
  }
  std::vector<char> there(kBlocks);
  table_.Lookup("b", kVariant, digests, there);
  EXPECT_EQ(std::ranges::count(there, 1), kBlocks);
  std::map<std::string, std::set<Digest>> seen;
  for (const std::string engine : {"a", "b", "c", ""})
    table_.ForEach(engine, [&](VariantIndex, const Digest& digest, const Digest*) {
      seen[engine].insert(digest);
    });
  EXPECT_EQ(seen["a"].size(), kBlocks);
  EXPECT_EQ(seen["b"].size(), kBlocks);
  EXPECT_EQ(seen["c"].size(), 0u);
  EXPECT_EQ(seen[""].size(), kBlocks);
}

TEST_F(DeviceTableTest, ReportsOfAnEndedSessionAreIgnored) {
  (void)Store(1, Ds({1}));
  table_.SessionEnded(SessionId{1});
  table_.SessionEnded(SessionId{1});
  EXPECT_EQ(Store(1, Ds({2})), 0u);
  EXPECT_EQ(table_.blocks(), 0u);
  EXPECT_FALSE(table_.Has("a"));
  table_.CheckInvariants();
}

// The name of an engine is kept as long as an event in the ring refers to it, and no longer.
TEST_F(DeviceTableTest, EnginesThatNoEventNamesAreForgotten) {
  EventRing ring(16);
  DeviceTable table(ring);
  for (uint64_t n = 1; n <= 10'000; ++n) {
    table.SessionBegan(SessionId{n}, "engine-" + std::to_string(n));
    (void)table.Stored(SessionId{n}, {.variant = kVariant, .digests = Ds({1})});
    table.SessionEnded(SessionId{n});
    std::array<NumberedEvent, 16> events;
    const auto read = ring.Read(ring.newest() - std::min<uint64_t>(16, 2 * n), kDevice, events);
    ASSERT_TRUE(read.has_value());
    for (const NumberedEvent& event : std::span(events).first(read->events))
      ASSERT_NE(table.EngineOf(event.event), "");
  }
  EXPECT_EQ(table.EngineOf({.engine = 1}), "");
  table.CheckInvariants();
}

TEST_F(DeviceTableTest, AgreesWithAModelAndWithItsWatchersUnderRandomReports) {
  std::mt19937 draw(7);
  std::map<uint64_t, std::set<uint32_t>> model;  // by session
  Known heard;
  uint64_t after = 0;
  for (int step = 0; step < 3'000; ++step) {
    const uint64_t session = 1 + draw() % 6;
    std::vector<Digest> digests;
    std::set<uint32_t>& has = model[session];
    const auto kind = static_cast<unsigned>(draw() % 20);
    for (unsigned i = 0; i < 1 + draw() % 8; ++i) {
      const uint32_t n = draw() % 64;
      digests.push_back(D(n));
      if (kind >= 10) has.insert(n);
      if (kind >= 1 && kind < 10) has.erase(n);
    }
    if (kind >= 10) {
      (void)Store(session, digests);
    } else if (kind >= 1) {
      table_.Removed(SessionId{session}, kVariant, digests);
    } else {
      table_.Cleared(SessionId{session});
      has.clear();
    }
    if (step % 50 != 0) continue;
    table_.CheckInvariants();
    std::vector<NumberedEvent> events(1 << 16);
    const auto read = ring_.Read(after, kDevice, events);
    ASSERT_TRUE(read.has_value());
    after = read->through;
    std::vector<TierEvent> happened;
    for (const NumberedEvent& event : std::span(events).first(read->events))
      happened.push_back(event.event);
    Hear(table_, happened, &heard);
    Known expected;
    for (const auto& [who, blocks] : model)
      for (const uint32_t n : blocks) expected.emplace(who <= 3 ? "a" : "b", kVariant, D(n));
    ASSERT_EQ(heard, expected);
    Known listed;
    std::array<TierEvent, 7> page;
    for (DeviceTable::Cursor cursor; !cursor.done();)
      Hear(table_, std::span(page).first(table_.Page(&cursor, page)), &listed);
    ASSERT_EQ(listed, expected);
    std::vector<Digest> all;
    for (uint32_t n = 0; n < 64; ++n) all.push_back(D(n));
    std::vector<char> there(all.size());
    table_.Lookup("a", kVariant, all, there);
    for (uint32_t n = 0; n < 64; ++n)
      ASSERT_EQ(there[n] != 0, expected.contains({"a", kVariant, D(n)}));
  }
}

// Four sessions of two engines begin, report and end; one thread watches as WatchEvents does, and
// another looks up.  When all threads are done, the watcher knows exactly the blocks that are
// there.
TEST(DeviceTableThreads, AWatcherEndsWithTheTrueState) {
  const uint64_t rounds = larder::testing::Scaled(3'000);
  EventRing ring(2'048);  // small, so that one session has more than a quarter of it
  DeviceTable table(ring);
  std::atomic<uint64_t> last_session{0};
  const auto engine = [&](uint32_t seed) {
    std::mt19937 draw(seed);
    std::optional<SessionId> session;
    for (uint64_t i = 0; i < rounds; ++i) {
      if (!session) {
        session = SessionId{++last_session};
        table.SessionBegan(*session, seed % 2 == 0 ? "a" : "b");
      }
      const auto from = static_cast<uint32_t>(draw() % 3'000);
      switch (draw() % 16) {
        case 0:
          table.SessionEnded(*session);
          session.reset();
          break;
        case 1:
          table.Cleared(*session);
          break;
        case 2:
        case 3:
        case 4:
          table.Removed(*session, kVariant, Numbered(from, from + 300));
          break;
        default:
          (void)table.Stored(*session,
                             {.variant = kVariant, .digests = Numbered(from, from + 300)});
      }
    }
  };
  std::atomic<bool> stop{false};
  const auto look = [&] {
    const std::vector<Digest> digests = Numbered(0, 3'000);
    std::vector<DeviceTable::Name> names;
    for (const Digest& digest : digests) names.emplace_back(kVariant, digest);
    std::vector<char> there(digests.size());
    while (!stop) {
      table.Lookup("a", kVariant, digests, there);
      table.ForEachHolder("", names, [](size_t, SessionId) {});
      size_t seen = 0;
      table.ForEach("b", [&](VariantIndex, const Digest&, const Digest*) { ++seen; });
      ASSERT_LE(seen, 3'300u);
      (void)table.Holders();
    }
  };
  Known known;
  const auto watch = [&] {
    std::array<NumberedEvent, 64> events;
    std::array<TierEvent, 64> page;
    for (uint64_t after = 0;;) {
      const bool last = stop;
      const auto read = ring.Read(after, kDevice, events);
      if (!read) {  // the watcher was cut off
        known.clear();
        after = ring.newest();
        for (DeviceTable::Cursor cursor; !cursor.done();)
          Hear(table, std::span(page).first(table.Page(&cursor, page)), &known);
        continue;
      }
      std::vector<TierEvent> happened;
      for (const NumberedEvent& event : std::span(events).first(read->events))
        happened.push_back(event.event);
      Hear(table, happened, &known);
      if (last && read->through == after) return;
      after = read->through;
    }
  };
  std::vector<std::thread> engines, others;
  for (const uint32_t seed : {2u, 3u, 4u, 5u}) engines.emplace_back(engine, seed);
  others.emplace_back(look);
  others.emplace_back(watch);
  for (std::thread& one : engines) one.join();
  stop = true;
  for (std::thread& one : others) one.join();
  table.CheckInvariants();
  Known expected;
  for (const std::string name : {"a", "b"})
    table.ForEach(name, [&](VariantIndex variant, const Digest& digest, const Digest*) {
      expected.emplace(name, variant, digest);
    });
  EXPECT_EQ(known.size(), expected.size());
  EXPECT_TRUE(known == expected);
}

}  // namespace
}  // namespace larder
