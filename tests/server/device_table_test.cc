// What engines have in device memory: against a model, and as a watcher rebuilds it.
#include "server/device_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <tuple>

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr VariantIndex kVariant{1};

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
  size_t Store(uint64_t session, const std::string& engine, const std::vector<Digest>& digests) {
    return table_.Stored(SessionId{session}, engine,
                         {.variant = kVariant, .digests = digests, .parent = {}, .tokens = {}});
  }
  [[nodiscard]] std::vector<SessionId> Holders(const std::string& engine, uint32_t n) const {
    return table_.HoldersOf(engine, kVariant, D(n));
  }

  EventRing ring_{1 << 20};
  DeviceTable table_{ring_};
};

// What a watcher knows: of which engine, variant and digest.
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

TEST_F(DeviceTableTest, ABlockCountsOnceAnEngine) {
  EXPECT_EQ(Store(1, "a", Ds({1, 2})), 0u);
  EXPECT_EQ(Store(2, "a", Ds({2})), 0u);
  EXPECT_EQ(Store(3, "b", Ds({2})), 0u);
  EXPECT_EQ(table_.blocks(), 3u);
  EXPECT_THAT(Holders("", 2), UnorderedElementsAre(SessionId{1}, SessionId{2}, SessionId{3}));
  EXPECT_THAT(Holders("a", 1), ElementsAre(SessionId{1}));
  EXPECT_THAT(Holders("b", 1), IsEmpty());
  EXPECT_EQ(ring_.newest(), 3u);
  table_.Removed(SessionId{1}, kVariant, Ds({2}));
  EXPECT_EQ(ring_.newest(), 3u) << "the other session still has it";
  table_.Removed(SessionId{2}, kVariant, Ds({2, 7}));
  EXPECT_EQ(ring_.newest(), 4u);
  table_.CheckInvariants();
}

TEST_F(DeviceTableTest, AnEngineThatEndsIsToldAsOneEvent) {
  (void)Store(1, "a", Ds({1, 2, 3}));
  (void)Store(2, "b", Ds({1}));
  table_.Cleared(SessionId{1});
  std::array<TierEvent, 8> events;
  ASSERT_EQ(ring_.Read(4, events), 1u);
  EXPECT_TRUE(events[0].cleared);
  EXPECT_EQ(table_.EngineOf(events[0]), "a");
  EXPECT_EQ(table_.blocks(), 1u);
  table_.Cleared(SessionId{1});
  table_.Cleared(SessionId{9});
  EXPECT_EQ(ring_.newest(), 5u) << "nothing was left";
  table_.CheckInvariants();
}

TEST_F(DeviceTableTest, ChainsAreKnownWhereTheyAreSaid) {
  const std::vector<uint32_t> tokens(32, 5);
  (void)table_.Stored(
      SessionId{1}, "a",
      {.variant = kVariant, .digests = Ds({1, 2}), .parent = D(9), .tokens = tokens});
  TierEvent event{.digest = D(2), .variant = kVariant, .tier = Tier::kDevice, .engine = 1};
  const auto chain = table_.ChainOf(event);
  ASSERT_TRUE(chain.has_value());
  EXPECT_EQ(chain->parent, D(1));
  EXPECT_EQ(chain->tokens.size(), 16u);
  std::map<Digest, Digest> parents;
  table_.ForEach("", [&](VariantIndex, const Digest& digest, const Digest* parent) {
    parents[digest] = *parent;
  });
  EXPECT_EQ(parents, (std::map<Digest, Digest>{{D(1), D(9)}, {D(2), D(1)}}));
  (void)Store(1, "a", Ds({3}));
  event.digest = D(3);
  EXPECT_FALSE(table_.ChainOf(event).has_value());
}

TEST_F(DeviceTableTest, BeyondItsLimitsBlocksAreLeftOutAndTokensToo) {
  DeviceTable small(ring_, {.blocks_max = 2, .tokens_max = 16});
  const std::vector<uint32_t> tokens(48, 5);
  EXPECT_EQ(small.Stored(
                SessionId{1}, "a",
                {.variant = kVariant, .digests = Ds({1, 2, 3}), .parent = D(9), .tokens = tokens}),
            1u);
  EXPECT_EQ(small.blocks(), 2u);
  const TierEvent second{.digest = D(2), .variant = kVariant, .tier = Tier::kDevice, .engine = 1};
  EXPECT_FALSE(small.ChainOf(second).has_value());
  small.CheckInvariants();
  small.Removed(SessionId{1}, kVariant, Ds({1}));
  EXPECT_EQ(small.Stored(SessionId{1}, "a",
                         {.variant = kVariant, .digests = Ds({3}), .parent = {}, .tokens = {}}),
            0u);
  small.CheckInvariants();
}

// Names of engines are kept while an event tells of them, and no longer.
TEST_F(DeviceTableTest, EnginesThatNobodyTellsOfAreForgotten) {
  EventRing ring(16);
  DeviceTable table(ring);
  for (uint64_t n = 1; n <= 10'000; ++n) {
    (void)table.Stored(SessionId{n}, "engine-" + std::to_string(n),
                       {.variant = kVariant, .digests = Ds({1}), .parent = {}, .tokens = {}});
    table.Cleared(SessionId{n});
    std::array<TierEvent, 16> events;
    const std::optional<size_t> count =
        ring.Read(ring.newest() - std::min<uint64_t>(16, 2 * n), events);
    ASSERT_TRUE(count.has_value());
    for (const TierEvent& event : std::span(events).first(*count))
      ASSERT_NE(table.EngineOf(event), "");
  }
  EXPECT_EQ(table.EngineOf({.engine = 1}), "");
  table.CheckInvariants();
}

TEST_F(DeviceTableTest, RandomReportsAgreeWithAModelAndAreRebuiltByWatchers) {
  std::mt19937 draw(7);
  std::map<uint64_t, std::set<uint32_t>> model;  // by session
  Known heard;
  uint64_t after = 0;
  for (int step = 0; step < 3'000; ++step) {
    const uint64_t session = 1 + draw() % 6;
    const std::string engine = session <= 3 ? "a" : "b";
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
      (void)Store(session, engine, digests);
    } else if (kind >= 1) {
      table_.Removed(SessionId{session}, kVariant, digests);
    } else {
      table_.Cleared(SessionId{session});
      has.clear();
    }
    if (step % 50 != 0) continue;
    table_.CheckInvariants();
    std::vector<TierEvent> events(1 << 16);
    const std::optional<size_t> count = ring_.Read(after, events);
    ASSERT_TRUE(count.has_value());
    after += *count;
    Hear(table_, std::span(events).first(*count), &heard);
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

}  // namespace
}  // namespace larder
