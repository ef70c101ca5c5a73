#include "storage/index/event_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <thread>
#include <vector>

namespace larder {
namespace {

using ::testing::ElementsAre;

constexpr TierSet kStored = TierBit(Tier::kHost) | TierBit(Tier::kDisk);
constexpr TierSet kDevice = TierBit(Tier::kDevice);

TierEvent Event(uint16_t number, Tier tier = Tier::kHost) {
  return {.digest = {}, .variant = static_cast<VariantIndex>(number), .tier = tier};
}
std::vector<uint16_t> Numbers(const EventRing& ring, uint64_t after, size_t most = 100,
                              TierSet tiers = kStored) {
  std::vector<NumberedEvent> events(most);
  const auto read = ring.Read(after, tiers, events);
  if (!read) return {0xFFFF};
  std::vector<uint16_t> numbers;
  for (size_t i = 0; i < read->events; ++i)
    numbers.push_back(static_cast<uint16_t>(events[i].event.variant));
  return numbers;
}

TEST(EventRing, GivesTheLatestInOrder) {
  EventRing ring(4);
  EXPECT_EQ(ring.newest(), 0u);
  EXPECT_THAT(Numbers(ring, 0), ElementsAre());
  for (uint16_t number = 1; number <= 10; ++number) {
    ring.Append(Event(number));
    EXPECT_EQ(ring.newest(), number);
  }
  EXPECT_THAT(Numbers(ring, 6), ElementsAre(7, 8, 9, 10));
  EXPECT_THAT(Numbers(ring, 6, 3), ElementsAre(7, 8, 9));
  EXPECT_THAT(Numbers(ring, 10), ElementsAre());
}

TEST(EventRing, RefusesNumbersThatItDoesNotHave) {
  EventRing ring(4);
  for (uint16_t number = 1; number <= 10; ++number) ring.Append(Event(number));
  NumberedEvent one;
  EXPECT_FALSE(ring.Read(5, kStored, {&one, 1}).has_value()) << "number 6 was overwritten";
  EXPECT_FALSE(ring.Read(11, kStored, {&one, 1}).has_value()) << "number 11 does not exist yet";
  EXPECT_EQ(ring.Read(9, kStored, {&one, 1})->events, 1u);
  EXPECT_EQ(one.number, 10u);
}

// An engine with many events displaces no other events, and the events of both lanes are read in
// one order.
TEST(EventRing, DeviceEventsHaveTheirOwnLaneAndShareTheNumbers) {
  EventRing ring(4);
  ring.Append(Event(1));
  for (uint16_t number = 2; number <= 9; ++number) ring.Append(Event(number, Tier::kDevice));
  ring.Append(Event(10, Tier::kDisk));
  EXPECT_THAT(Numbers(ring, 0), ElementsAre(1, 10));
  EXPECT_THAT(Numbers(ring, 0, 100, kStored | kDevice), ElementsAre(0xFFFF))
      << "2 to 5 were overwritten";
  EXPECT_THAT(Numbers(ring, 5, 100, kStored | kDevice), ElementsAre(6, 7, 8, 9, 10));
  EXPECT_THAT(Numbers(ring, 5, 100, kDevice), ElementsAre(6, 7, 8, 9));
  EXPECT_FALSE(ring.KnowsOfDevice(5));
  EXPECT_TRUE(ring.KnowsOfDevice(6));
  // Events of other tiers are skipped, and the read reports how far it got.
  NumberedEvent one;
  const auto host = ring.Read(1, TierBit(Tier::kHost), {&one, 1});
  ASSERT_TRUE(host.has_value());
  EXPECT_EQ(host->events, 0u);
  EXPECT_EQ(host->through, 10u);
  const auto some = ring.Read(5, kDevice, {&one, 1});
  EXPECT_EQ(some->through, 6u);
}

TEST(EventRing, ARingOfSizeZeroKeepsNothing) {
  EventRing ring(0);
  ring.Append(Event(1));
  EXPECT_EQ(ring.newest(), 0u);
}

// Two threads write and one reads: it reads every number once, and each writer's events in the
// writer's order.
TEST(EventRing, CanBeReadWhileItIsWritten) {
  constexpr uint16_t kEach = 20'000;
  EventRing ring(2 * kEach);
  const auto write = [&](Tier tier) {
    for (uint16_t number = 0; number < kEach; ++number) {
      TierEvent event = Event(number);
      event.tier = tier;
      ring.Append(event);
    }
  };
  std::thread host(write, Tier::kHost), disk(write, Tier::kDisk);
  uint64_t read = 0;
  std::array<uint16_t, 2> next{};
  std::array<NumberedEvent, 64> events;
  while (read < uint64_t{2} * kEach) {
    const EventRing::Progress progress = ring.Read(read, kStored, events).value();
    read = progress.through;
    for (size_t i = 0; i < progress.events; ++i) {
      const TierEvent& event = events[i].event;
      uint16_t& expected = next[event.tier == Tier::kHost ? 0 : 1];
      ASSERT_EQ(static_cast<uint16_t>(event.variant), expected++);
    }
  }
  host.join();
  disk.join();
}

// A watcher of both lanes reads pages of 3.  Now and then a page is lost, and the watcher reads
// again from the last page that it has, while others write.  It gets every event once, in the order
// of the numbers.
TEST(EventRing, BothLanesAreReadInOneOrder) {
  constexpr uint16_t kEach = 20'000;
  EventRing ring(2 * kEach);
  const auto write = [&](Tier tier) {
    for (uint16_t number = 0; number < kEach; ++number) ring.Append(Event(number, tier));
  };
  std::thread disk(write, Tier::kDisk), device(write, Tier::kDevice);
  std::vector<NumberedEvent> heard;
  std::array<NumberedEvent, 3> page;
  uint64_t after = 0;
  for (int pages = 0; heard.size() < size_t{2} * kEach; ++pages) {
    const auto read = ring.Read(after, kStored | kDevice, page);
    ASSERT_TRUE(read.has_value());
    if (pages % 5 == 0) continue;  // the page was lost
    after = read->through;
    heard.insert(heard.end(), page.begin(), page.begin() + static_cast<ptrdiff_t>(read->events));
  }
  disk.join();
  device.join();
  std::array<uint16_t, 2> next{};
  for (size_t i = 0; i < heard.size(); ++i) {
    ASSERT_EQ(heard[i].number, i + 1);
    uint16_t& expected = next[heard[i].event.tier == Tier::kDisk ? 0 : 1];
    ASSERT_EQ(static_cast<uint16_t>(heard[i].event.variant), expected++);
  }
  EXPECT_THAT(next, ElementsAre(kEach, kEach));
}

}  // namespace
}  // namespace larder
