#include "storage/index/block_state.h"

#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "storage/index/index_entry.h"

namespace larder {
namespace {

Extent Pages(uint32_t page, uint32_t pages) {
  return {.slab = SlabId{3}, .page = page, .pages = pages};
}
constexpr uint8_t kInHost = 1u << static_cast<int>(Tier::kHost);

TEST(BlockStateLaw, AllowsExactlyTheListedTransitions) {
  using enum BlockState;
  const std::set<std::pair<BlockState, BlockState>> allowed = {
      {kAbsent, kReserved}, {kAbsent, kHost},      {kAbsent, kDisk},      {kReserved, kHost},
      {kReserved, kAbsent}, {kHost, kHostDisk},    {kHost, kAbsent},      {kHost, kDoomed},
      {kHostDisk, kDisk},   {kHostDisk, kHost},    {kHostDisk, kAbsent},  {kHostDisk, kDoomed},
      {kDisk, kPromoting},  {kDisk, kAbsent},      {kDisk, kDoomed},      {kPromoting, kHostDisk},
      {kPromoting, kDisk},  {kPromoting, kAbsent}, {kPromoting, kDoomed}, {kDoomed, kAbsent},
  };
  for (int from = 0; from < kBlockStates; ++from) {
    for (int to = 0; to < kBlockStates; ++to) {
      const std::pair pair(static_cast<BlockState>(from), static_cast<BlockState>(to));
      EXPECT_EQ(TransitionAllowed(pair.first, pair.second), allowed.contains(pair))
          << from << " -> " << to;
    }
  }
}

TEST(BlockStateLaw, OnlyCompleteCopiesCountAsPresent) {
  using enum BlockState;
  const uint8_t disk = 1u << static_cast<int>(Tier::kDisk);
  const std::map<BlockState, uint8_t> tiers = {
      {kAbsent, 0},  {kReserved, 0},     {kHost, kInHost}, {kHostDisk, kInHost | disk},
      {kDisk, disk}, {kPromoting, disk}, {kDoomed, 0}};
  ASSERT_EQ(tiers.size(), size_t{kBlockStates});
  for (const auto& [state, expected] : tiers) {
    EXPECT_EQ(TiersOf(state), expected);
    EXPECT_EQ(InHost(state), (expected & kInHost) != 0);
  }
}

TEST(PackedExtent, RoundTrips) {
  for (const Extent& extent :
       {Extent{}, Pages(7, 9), Extent{SlabId{0xFFFF}, (1u << 24) - 1, (1u << 24) - 1}}) {
    PackedExtent packed;
    packed.Set(extent);
    EXPECT_EQ(packed.Get(), extent);
  }
}

}  // namespace
}  // namespace larder
