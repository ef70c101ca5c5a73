#include "storage/event_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <thread>
#include <vector>

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

TierEvent Event(uint16_t number) {
  return {.digest = {}, .variant = static_cast<VariantIndex>(number)};
}
std::vector<uint16_t> Numbers(const EventRing& ring, uint64_t after, size_t most = 100) {
  std::vector<TierEvent> events(most);
  const auto count = ring.Read(after, events);
  if (!count) return {0xFFFF};
  std::vector<uint16_t> numbers;
  for (size_t i = 0; i < *count; ++i) numbers.push_back(static_cast<uint16_t>(events[i].variant));
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

TEST(EventRing, SaysWhatItCannotGive) {
  EventRing ring(4);
  for (uint16_t number = 1; number <= 10; ++number) ring.Append(Event(number));
  TierEvent one;
  EXPECT_EQ(ring.Read(5, {&one, 1}), std::nullopt) << "number 6 is gone";
  EXPECT_EQ(ring.Read(11, {&one, 1}), std::nullopt) << "it is yet to come";
  EXPECT_THAT(ring.Read(9, {&one, 1}), Optional(1u));
}

TEST(EventRing, OfNoneKeepsNone) {
  EventRing ring(0);
  ring.Append(Event(1));
  EXPECT_EQ(ring.newest(), 0u);
}

// Two write, one reads: every number once, each writer's in his order.
TEST(EventRing, IsReadWhileItIsWritten) {
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
  std::array<TierEvent, 64> events;
  while (read < 2 * kEach) {
    const size_t count = ring.Read(read, events).value();
    read += count;
    for (size_t i = 0; i < count; ++i) {
      uint16_t& expected = next[events[i].tier == Tier::kHost ? 0 : 1];
      ASSERT_EQ(static_cast<uint16_t>(events[i].variant), expected++);
    }
  }
  host.join();
  disk.join();
}

}  // namespace
}  // namespace larder
