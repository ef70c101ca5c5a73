#include "storage/index_shard.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace larder {
namespace {

// Spread as digests are; equal for equal numbers.
Digest Name(uint64_t i) {
  Digest digest;
  const uint64_t words[2] = {(i + 1) * 0x9E3779B97F4A7C15, (i + 1) * 0xD1B54A32D192ED03};
  std::memcpy(digest.bytes.data(), words, sizeof words);
  return digest;
}
Extent Pages(uint32_t page, uint32_t pages) {
  return {.slab = SlabId{3}, .page = page, .pages = pages};
}

TEST(IndexShard, FullIsAnAnswer) {
  VariantTable variants;
  const VariantIndex variant = *variants.Intern(Name(0));
  IndexShard shard(variants, /*entries_max=*/3);
  uint32_t slot = 0;
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(shard.Claim(IndexHash(variant, Name(i)), variant, Name(i), &slot),
              IndexShard::EnterResult::kEntered);
  }
  IndexedBlock block{.variant = variant,
                     .digest = Name(3),
                     .extent = {},
                     .metadata = BlockMetadata::Make({}, {}, UniformTable(1, 1))};
  uint32_t none = 0;
  EXPECT_EQ(shard.Insert(IndexHash(variant, Name(3)), block, {}, 0, &none),
            IndexShard::EnterResult::kFull);
  EXPECT_NE(block.metadata, nullptr) << "stays the caller's";
  shard.Abandon(slot);
  EXPECT_EQ(shard.Insert(IndexHash(variant, Name(3)), block, {}, 0, &slot),
            IndexShard::EnterResult::kEntered);
  std::vector<VariantTotals> sums(1);
  shard.CheckInvariants(sums);
}

// Parents go to the hot end when eviction passes over them, and come back when their last child has
// left.
TEST(IndexShard, AParentFollowsItsLastChild) {
  VariantTable variants;
  const VariantIndex variant = *variants.Intern(Name(0));
  for (const bool used_after_child : {false, true}) {
    IndexShard shard(variants);
    const auto hash = [&](uint64_t name) { return IndexHash(variant, Name(name)); };
    const auto insert = [&](uint64_t name, uint32_t now_s) {
      uint32_t slot = 0;
      IndexedBlock block{
          .variant = variant, .digest = Name(name), .extent = Pages(0, 1), .metadata = nullptr};
      EXPECT_EQ(shard.Insert(hash(name), block, {}, now_s, &slot),
                IndexShard::EnterResult::kEntered);
    };
    insert(1, used_after_child ? 200 : 100);
    ASSERT_TRUE(shard.RaiseChildren(hash(1), variant, Name(1), Name(2)).counted);
    // The clock stands still, so that all are worth the same and the order of the list shows.
    for (uint64_t i = 2; i < 2 + 2 * IndexShard::kEvictionLook; ++i) insert(i, 150);
    ASSERT_EQ(shard.EvictColdest(EvictionPolicy(), false, 100)->block.digest, Name(2));
    shard.LowerChildren(hash(1), variant, Name(1), /*child_last_use_s=*/100);
    const auto next = shard.EvictColdest(EvictionPolicy(), false, 100);
    EXPECT_EQ(next->block.digest, used_after_child ? Name(3) : Name(1));
  }
}

// What follows a block alone has its history; what makes it a fork has none, and marks it and those
// before it as shared.
TEST(IndexShard, HistoryGoesDownAChainAndStopsAtAFork) {
  VariantTable variants;
  const VariantIndex variant = *variants.Intern(Name(0));
  IndexShard shard(variants);
  const auto hash = [&](uint64_t name) { return IndexHash(variant, Name(name)); };
  const auto insert = [&](uint64_t name, uint64_t parent) {
    const auto raised = shard.RaiseChildren(hash(parent), variant, Name(parent), Name(name));
    IndexedBlock block{.variant = variant,
                       .digest = Name(name),
                       .extent = Pages(0, 1),
                       .metadata = BlockMetadata::Make(Name(parent), {}, UniformTable(1, 1))};
    uint32_t slot = 0;
    EXPECT_EQ(shard.Insert(hash(name), block, raised, 100, &slot),
              IndexShard::EnterResult::kEntered);
    return raised;
  };
  insert(1, 0);
  insert(2, 1);
  const Digest key = Name(2);
  const uint64_t key_hash = hash(2);
  const uint16_t first = 0;
  HeldBlock held;
  shard.Hold(
      {.variant = variant, .keys = {&key, 1}, .hashes = {&key_hash, 1}, .order = {&first, 1}},
      HoldWhat::kHost, 164, {&held, 1});
  const auto only = insert(3, 2);
  EXPECT_EQ(only.history, UsedAgain({}, 64));
  EXPECT_FALSE(only.forked);
  const auto again = shard.RaiseChildren(hash(2), variant, Name(2), Name(3));
  EXPECT_FALSE(again.forked) << "the same that comes again";
  const auto second = insert(4, 2);
  EXPECT_EQ(second.history, ReuseHistory());
  EXPECT_TRUE(second.forked);
  EXPECT_EQ(shard.MarkShared(hash(2), variant, Name(2)), Name(1));
  EXPECT_EQ(shard.MarkShared(hash(2), variant, Name(2)), std::nullopt) << "once";
  EXPECT_EQ(shard.MarkShared(hash(1), variant, Name(1)), Name(0));
  EXPECT_EQ(shard.MarkShared(hash(0), variant, Name(0)), std::nullopt) << "unknown";
  const auto third = insert(5, 2);
  EXPECT_FALSE(third.forked) << "known to be shared";
  EXPECT_EQ(insert(6, 1).history, ReuseHistory());
}

// A block that left comes back as what it was.
TEST(IndexShard, WhatLeftIsRemembered) {
  VariantTable variants;
  const VariantIndex variant = *variants.Intern(Name(0));
  IndexShard shard(variants);
  const EvictionPolicy policy;
  const auto insert = [&](uint64_t name, uint32_t now_s) {
    IndexedBlock block{
        .variant = variant, .digest = Name(name), .extent = Pages(0, 1), .metadata = nullptr};
    uint32_t slot = 0;
    EXPECT_EQ(shard.Insert(IndexHash(variant, Name(name)), block, {}, now_s, &slot),
              IndexShard::EnterResult::kEntered);
  };
  // Whoever follows it and nothing else has its history.
  const auto history_of = [&](uint64_t name) {
    return shard.RaiseChildren(IndexHash(variant, Name(name)), variant, Name(name), Name(99))
        .history;
  };
  insert(1, 0);
  ASSERT_TRUE(shard.EvictColdest(policy, false, 10).has_value());
  insert(1, 64);
  insert(2, 64);
  EXPECT_EQ(history_of(1), UsedAgain({}, 64));
  EXPECT_EQ(history_of(2), ReuseHistory());
}

// What is on disk too leaves HOST before what is nowhere else, though that is colder.
TEST(IndexShard, WhatIsOnDiskTooLeavesFirst) {
  VariantTable variants;
  const VariantIndex variant = *variants.Intern(Name(0));
  IndexShard shard(variants);
  const EvictionPolicy policy;
  for (uint64_t i = 0; i < 10; ++i) {
    IndexedBlock block{
        .variant = variant, .digest = Name(i), .extent = Pages(0, 1), .metadata = nullptr};
    uint32_t slot = 0;
    ASSERT_EQ(shard.Insert(IndexHash(variant, Name(i)), block, {}, 100, &slot),
              IndexShard::EnterResult::kEntered);
    if (i < 5) continue;
    ASSERT_EQ(shard.InsertOnDisk(IndexHash(variant, Name(i)), variant, Name(i), i, 1, 100, &slot),
              IndexShard::EnterResult::kEntered);
  }
  for (const uint64_t next : {5, 6, 7, 8, 9, 0, 1, 2, 3, 4})
    EXPECT_EQ(shard.EvictColdest(policy, false, 100)->block.digest, Name(next));
}

// Parents that are on disk too may leave, so whoever looks for the least worthy moves none of them.
TEST(IndexShard, ALookKeepsTheOrderOfWhatIsOnDiskToo) {
  VariantTable variants;
  const VariantIndex variant = *variants.Intern(Name(0));
  IndexShard shard(variants);
  const EvictionPolicy policy;
  constexpr uint64_t kParents = 40;
  for (uint64_t i = 0; i < kParents; ++i) {
    const uint64_t hash = IndexHash(variant, Name(i));
    IndexedBlock block{
        .variant = variant, .digest = Name(i), .extent = Pages(0, 1), .metadata = nullptr};
    uint32_t slot = 0;
    ASSERT_EQ(shard.Insert(hash, block, {}, 100, &slot), IndexShard::EnterResult::kEntered);
    ASSERT_EQ(shard.InsertOnDisk(hash, variant, Name(i), i + 1, 1, 100, &slot),
              IndexShard::EnterResult::kEntered);
    ASSERT_TRUE(shard.RaiseChildren(hash, variant, Name(i), Name(1000 + i)).counted);
  }
  for (uint64_t i = 0; i < kParents; ++i) {
    EXPECT_NE(shard.Least(policy, 100).slot, EntrySlots::kNone);
    EXPECT_EQ(shard.EvictColdest(policy, false, 100)->block.digest, Name(i));
  }
}

// However many of the coldest have none.
TEST(IndexShard, DiskCopiesAreFoundBehindThoseWithout) {
  constexpr uint64_t kBlocks = 1000;
  VariantTable variants;
  const VariantIndex variant = *variants.Intern(Name(0));
  IndexShard shard(variants);
  const EvictionPolicy policy;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    IndexedBlock block{
        .variant = variant, .digest = Name(i), .extent = Pages(0, 1), .metadata = nullptr};
    uint32_t slot = 0;
    ASSERT_EQ(shard.Insert(IndexHash(variant, Name(i)), block, {}, 100, &slot),
              IndexShard::EnterResult::kEntered);
    uint32_t same = 0;
    ASSERT_EQ(
        shard.InsertOnDisk(IndexHash(variant, Name(i)), variant, Name(i), i + 1, 1, 100, &same),
        IndexShard::EnterResult::kEntered);
  }
  for (uint64_t i = 0; i < kBlocks; ++i)
    ASSERT_TRUE(shard.DropDiskCopy(policy, 100).has_value()) << i;
  EXPECT_FALSE(shard.DropDiskCopy(policy, 100).has_value());
}

// Within one shard the least worthy of the cold end leaves first.
TEST(IndexShard, ReadBlocksOutliveUnreadOnes) {
  VariantTable variants;
  const VariantIndex variant = *variants.Intern(Name(0));
  IndexShard shard(variants);
  std::vector<uint32_t> slots(40);
  for (uint64_t i = 0; i < slots.size(); ++i) {
    IndexedBlock block{
        .variant = variant, .digest = Name(i), .extent = Pages(0, 1), .metadata = nullptr};
    ASSERT_EQ(shard.Insert(IndexHash(variant, Name(i)), block, {}, 100, &slots[i]),
              IndexShard::EnterResult::kEntered);
  }
  // A lease on the first ten as one chain, ended at once: key 0 becomes the most recent.
  std::vector<Digest> keys;
  std::vector<uint64_t> hashes;
  std::vector<uint16_t> order;
  for (uint64_t i = 0; i < 10; ++i) {
    keys.push_back(Name(i));
    hashes.push_back(IndexHash(variant, Name(i)));
    order.push_back(static_cast<uint16_t>(i));
  }
  std::vector<HeldBlock> held(10);
  shard.Hold({.variant = variant, .keys = keys, .hashes = hashes, .order = order}, HoldWhat::kHost,
             500, held);
  std::vector<Extent> freed;
  shard.Unhold(std::span(slots).first(10), &freed, nullptr);
  std::vector<Digest> gone;
  while (auto departure = shard.EvictColdest(EvictionPolicy(), false, 600)) {
    gone.push_back(departure->block.digest);
  }
  ASSERT_EQ(gone.size(), 40u);
  for (uint64_t i = 0; i < 30; ++i) EXPECT_EQ(gone[i], Name(10 + i)) << i;
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(gone[30 + i], Name(9 - i)) << "tails first";
}

}  // namespace
}  // namespace larder
