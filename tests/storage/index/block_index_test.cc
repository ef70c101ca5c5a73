#include "storage/index/block_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using InsertResult = BlockIndex::InsertResult;

// Returns a digest that is spread like a real one; equal numbers give equal digests.
Digest Name(uint64_t i) {
  Digest digest;
  const uint64_t words[2] = {(i + 1) * 0x9E3779B97F4A7C15, (i + 1) * 0xD1B54A32D192ED03};
  std::memcpy(digest.bytes.data(), words, sizeof words);
  return digest;
}
Extent Pages(uint32_t page, uint32_t pages) {
  return {.slab = SlabId{3}, .page = page, .pages = pages};
}
constexpr uint8_t kInHost = 1u << static_cast<int>(Tier::kHost);

class BlockIndexTest : public testing::Test {
 protected:
  BlockIndexTest() : variant_(*index_.InternVariant(Name(1'000'000))) {}
  ~BlockIndexTest() override { index_.CheckInvariants(); }

  static std::unique_ptr<const BlockMetadata> After(uint64_t parent) {
    return BlockMetadata::Make(Name(parent), std::vector<uint32_t>(16), UniformTable(1, 64));
  }
  InsertResult Insert(uint64_t name, Extent extent, EntryRef* ref = nullptr,
                      std::unique_ptr<const BlockMetadata> metadata = nullptr) {
    return index_.Insert({.variant = variant_,
                          .digest = Name(name),
                          .extent = extent,
                          .metadata = std::move(metadata)},
                         now_s_, ref);
  }
  BlockIndex::Held Hold(uint64_t name, HoldWhat what = HoldWhat::kHost) {
    const Digest digest = Name(name);
    BlockIndex::Held held;
    index_.Hold(variant_, {&digest, 1}, now_s_, {&held, 1}, what);
    return held;
  }
  std::vector<Extent> Unhold(EntryRef ref) {
    std::vector<Extent> freed;
    index_.Unhold({&ref, 1}, &freed);
    return freed;
  }
  BlockIndex::Presence Lookup(uint64_t name) const {
    const Digest digest = Name(name);
    BlockIndex::Presence presence;
    index_.Lookup(variant_, {&digest, 1}, {&presence, 1});
    return presence;
  }
  std::optional<Extent> Drop(uint64_t name) {
    std::optional<Extent> freed;
    EXPECT_TRUE(index_.Drop(variant_, Name(name), &freed));
    return freed;
  }
  bool Pin(uint64_t name, Tier tier) { return index_.SetPinned(variant_, Name(name), tier, true); }
  bool Unpin(uint64_t name, Tier tier) {
    return index_.SetPinned(variant_, Name(name), tier, false);
  }
  void SpillOne(uint64_t name) {
    const EntryRef ref = Hold(name, HoldWhat::kUntouched).ref;
    ASSERT_TRUE(index_.SetOnDisk(ref, name + 1));
    Unhold(ref);
  }
  BlockIndex::View View(uint64_t name) const {
    BlockIndex::View found;
    index_.ForEach([&](const BlockIndex::View& view) {
      if (view.digest == Name(name)) found = view;
    });
    return found;
  }
  // Evicts all blocks.  Returns the numbers, 0 to 99, of their names in the order in which they
  // left.
  std::vector<int> EvictAll() {
    std::vector<int> order;
    while (const auto gone = index_.EvictOne(now_s_)) {
      for (int i = 0; i < 100; ++i) {
        if (Name(static_cast<uint64_t>(i)) == gone->digest) order.push_back(i);
      }
    }
    return order;
  }

  BlockIndex index_;
  VariantIndex variant_;
  uint32_t now_s_ = 1000;
};

TEST_F(BlockIndexTest, InsertedBlocksAreThere) {
  EntryRef ref;
  EXPECT_EQ(Insert(1, Pages(5, 2), &ref), InsertResult::kInserted);
  EXPECT_NE(ref.value, 0u);
  EXPECT_EQ(Lookup(1), (BlockIndex::Presence{.tiers = kInHost, .pages = 2}));
  EXPECT_EQ(Lookup(2), BlockIndex::Presence{});
  EXPECT_EQ(index_.blocks(), 1u);
  EXPECT_EQ(index_.TotalsOf(variant_).blocks, 1u);
  EXPECT_EQ(index_.TotalsOf(variant_).bytes, ByteCount(2 * kPageBytes));
}

TEST_F(BlockIndexTest, BlocksWithoutBytesAreFound) {
  EXPECT_EQ(Insert(1, {}), InsertResult::kInserted);
  EXPECT_EQ(Lookup(1), (BlockIndex::Presence{.tiers = kInHost, .pages = 0}));
  EXPECT_EQ(Drop(1), std::nullopt) << "the block has no extent to return";
}

TEST_F(BlockIndexTest, DuplicatesChangeNothing) {
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  EXPECT_EQ(Insert(1, Pages(9, 4)), InsertResult::kDuplicate);
  EXPECT_EQ(Lookup(1).pages, 2u);
  EXPECT_EQ(index_.TotalsOf(variant_).blocks, 1u);
}

TEST_F(BlockIndexTest, VariantsDoNotSeeEachOther) {
  const VariantIndex other = *index_.InternVariant(Name(2'000'000));
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  const Digest digest = Name(1);
  BlockIndex::Presence presence;
  index_.Lookup(other, {&digest, 1}, {&presence, 1});
  EXPECT_EQ(presence, BlockIndex::Presence{});
  EXPECT_EQ(index_.Insert({.variant = other, .digest = digest, .extent = {}, .metadata = nullptr},
                          now_s_),
            InsertResult::kInserted);
  EXPECT_EQ(index_.TotalsOf(other).blocks, 1u);
  EXPECT_EQ(index_.TotalsOf(other).bytes, ByteCount(0));
}

TEST_F(BlockIndexTest, VariantsInOneCellAreDistinguished) {
  // Finds two variants for which the same digest has the same shard, tag and cell of the smallest
  // table.
  std::map<uint64_t, VariantIndex> seen;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const VariantIndex variant = *index_.InternVariant(Name(3'000'000 + i));
    const uint64_t hash = IndexHash(variant, Name(1));
    const auto [twin, fresh] = seen.emplace((hash >> 52) << 10 | (hash & 1023), variant);
    if (fresh) continue;
    for (const VariantIndex v : {twin->second, variant}) {
      EXPECT_EQ(index_.Insert({.variant = v, .digest = Name(1), .extent = {}, .metadata = nullptr},
                              now_s_),
                InsertResult::kInserted);
    }
    const Digest digest = Name(1);
    std::vector<BlockIndex::Held> held(2);
    index_.Hold(twin->second, {&digest, 1}, now_s_, std::span(held).first(1));
    index_.Hold(variant, {&digest, 1}, now_s_, std::span(held).last(1));
    EXPECT_NE(held[0].ref, held[1].ref);
    return;
  }
  FAIL() << "found no such pair: the test needs more variants";
}

TEST_F(BlockIndexTest, VariantNumbersAreStable) {
  EXPECT_EQ(*index_.InternVariant(Name(1'000'000)), variant_);
  EXPECT_EQ(index_.FindVariant(Name(1'000'000)), variant_);
  EXPECT_EQ(index_.FindVariant(Name(3)), std::nullopt);
  EXPECT_EQ(index_.VariantId(variant_), Name(1'000'000));
}

TEST_F(BlockIndexTest, TheVariantTableHasALimit) {
  for (uint64_t i = 1; i < VariantTable::kVariantsMax; ++i) {
    ASSERT_TRUE(index_.InternVariant(Name(2'000'000 + i)).ok());
  }
  EXPECT_EQ(index_.InternVariant(Name(1)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*index_.InternVariant(Name(1'000'000)), variant_)
      << "known variants must still be found";
  EXPECT_EQ(index_.VariantId(VariantIndex{65'533}), Name(2'000'000 + 65'533));
}

TEST_F(BlockIndexTest, ClaimsAreInvisibleUntilFilled) {
  EntryRef claim, second;
  EXPECT_EQ(index_.Claim(variant_, Name(1), &claim), InsertResult::kInserted);
  EXPECT_EQ(index_.Claim(variant_, Name(1), &second), InsertResult::kDuplicate);
  EXPECT_EQ(Insert(1, Pages(1, 1)), InsertResult::kDuplicate);
  EXPECT_EQ(Lookup(1), BlockIndex::Presence{});
  EXPECT_EQ(Hold(1).ref, EntryRef{});
  EXPECT_FALSE(Pin(1, Tier::kHost));
  EXPECT_EQ(index_.WorthInHost(claim, 0), std::nullopt);
  EXPECT_FALSE(index_.EvictRef(claim));
  std::optional<Extent> freed;
  EXPECT_FALSE(index_.Drop(variant_, Name(1), &freed));
  EXPECT_FALSE(index_.Drop(claim, &freed));
  EXPECT_EQ(View(1).state, BlockState::kReserved);
  EXPECT_EQ(index_.TotalsOf(variant_).blocks, 0u);

  index_.Fill(claim, Pages(5, 2), After(9), now_s_);
  EXPECT_EQ(Lookup(1).pages, 2u);
  EXPECT_EQ(Hold(1).ref, claim);
  EXPECT_EQ(index_.TotalsOf(variant_).blocks, 1u);
  EXPECT_GT(index_.metadata_bytes(), ByteCount(0));
}

// The first writer wins, in whichever tier its bytes are by now.
TEST_F(BlockIndexTest, ATakenNameIsADuplicateInEveryState) {
  EntryRef other;
  const auto refuses = [&](BlockState state) {
    EXPECT_EQ(View(1).state, state);
    const BlockIndex::View before = View(1);
    EXPECT_EQ(Insert(1, Pages(40, 2), nullptr, After(9)), InsertResult::kDuplicate);
    EXPECT_EQ(index_.Claim(variant_, Name(1), &other), InsertResult::kDuplicate);
    EXPECT_EQ(View(1).state, before.state);
    EXPECT_EQ(View(1).extent, before.extent);
    EXPECT_EQ(View(1).disk_location, before.disk_location);
  };
  ASSERT_EQ(Insert(1, Pages(5, 2), nullptr, After(8)), InsertResult::kInserted);
  refuses(BlockState::kHost);
  SpillOne(1);
  refuses(BlockState::kHostDisk);
  ASSERT_TRUE(index_.EvictOne(now_s_));
  refuses(BlockState::kDisk);
  const EntryRef ref = Hold(1, HoldWhat::kAnyTier).ref;
  ASSERT_TRUE(index_.BeginPromote(ref));
  refuses(BlockState::kPromoting);
  ASSERT_TRUE(index_.FinishPromote(ref, Pages(7, 2), After(8), now_s_));
  refuses(BlockState::kHostDisk);
  EXPECT_THAT(Unhold(ref), IsEmpty());
}

TEST_F(BlockIndexTest, AbandonedClaimsFreeTheName) {
  EntryRef claim;
  EXPECT_EQ(index_.Claim(variant_, Name(1), &claim), InsertResult::kInserted);
  index_.Abandon(claim);
  EXPECT_EQ(index_.blocks(), 0u);
  EXPECT_EQ(Insert(1, Pages(1, 1)), InsertResult::kInserted);
}

TEST_F(BlockIndexTest, HeldBlocksStay) {
  EXPECT_EQ(Insert(1, Pages(5, 2), nullptr, After(9)), InsertResult::kInserted);
  const BlockIndex::Held held = Hold(1);
  EXPECT_EQ(held.state, BlockState::kHost);
  EXPECT_EQ(held.extent, Pages(5, 2));
  ASSERT_NE(held.metadata, nullptr);
  EXPECT_EQ(held.metadata->parent(), Name(9));
  EXPECT_EQ(index_.WorthInHost(held.ref, 0), std::nullopt);
  EXPECT_FALSE(index_.EvictRef(held.ref));
  EXPECT_FALSE(index_.EvictOne(now_s_));
  EXPECT_THAT(Unhold(held.ref), IsEmpty());
  EXPECT_NE(index_.WorthInHost(held.ref, 0), std::nullopt);
  const auto gone = index_.EvictRef(held.ref);
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->digest, Name(1));
  EXPECT_EQ(gone->variant, variant_);
  EXPECT_EQ(gone->extent, Pages(5, 2));
  EXPECT_FALSE(gone->kept_on_disk);
  EXPECT_EQ(index_.metadata_bytes(), ByteCount(0));
}

TEST_F(BlockIndexTest, BatchesAnswerInKeyOrder) {
  constexpr size_t kKeys = 3000;  // more than one window
  for (uint64_t i = 0; i < kKeys; i += 2) {
    ASSERT_EQ(Insert(i, Pages(static_cast<uint32_t>(i), 1)), InsertResult::kInserted);
  }
  std::vector<Digest> digests;
  for (uint64_t i = 0; i < kKeys; ++i) digests.push_back(Name(i));
  std::vector<BlockIndex::Presence> presence(kKeys);
  index_.Lookup(variant_, digests, presence);
  std::vector<BlockIndex::Held> held(kKeys);
  index_.Hold(variant_, digests, now_s_, held);
  std::vector<EntryRef> refs;
  for (size_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(presence[i].tiers, i % 2 == 0 ? kInHost : 0);
    ASSERT_EQ(held[i].ref.value != 0, i % 2 == 0);
    if (i % 2 != 0) continue;
    ASSERT_EQ(held[i].extent.page, i);
    refs.push_back(held[i].ref);
  }
  ASSERT_TRUE(index_.HoldAgain(refs));
  std::vector<Extent> freed;
  index_.Unhold(refs, &freed);
  EXPECT_FALSE(index_.EvictOne(now_s_)) << "each block is still held by its second hold";
  index_.Unhold(refs, &freed);
  EXPECT_TRUE(index_.EvictOne(now_s_));
  EXPECT_THAT(freed, IsEmpty());
}

TEST_F(BlockIndexTest, AKeyTwiceInABatchIsHeldTwice) {
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  const std::vector<Digest> digests = {Name(1), Name(1)};
  std::vector<BlockIndex::Held> held(2);
  index_.Hold(variant_, digests, now_s_, held);
  EXPECT_EQ(View(1).holds, 2u);
  const std::vector<EntryRef> refs = {held[0].ref, held[1].ref};
  std::vector<Extent> freed;
  index_.Unhold(refs, &freed);
  EXPECT_EQ(View(1).holds, 0u);
}

TEST_F(BlockIndexTest, ADroppedBlockIsDoomedWhileHeld) {
  EXPECT_EQ(Insert(1, Pages(5, 2), nullptr, After(9)), InsertResult::kInserted);
  const EntryRef first = Hold(1).ref;
  const BlockIndex::Held held = Hold(1);
  EXPECT_EQ(Drop(1), std::nullopt) << "the extent is still being read";
  EXPECT_EQ(index_.blocks(), 0u);
  EXPECT_EQ(index_.doomed(), 1u);
  EXPECT_EQ(index_.TotalsOf(variant_).blocks, 0u);
  EXPECT_EQ(Lookup(1), BlockIndex::Presence{});
  EXPECT_EQ(Hold(1).ref, EntryRef{});
  EXPECT_EQ(held.metadata->parent(), Name(9))
      << "the metadata must be valid while the block is held";
  std::optional<Extent> freed;
  EXPECT_FALSE(index_.Drop(first, &freed));
  EXPECT_FALSE(index_.EvictRef(first));

  EXPECT_EQ(Insert(1, Pages(7, 1)), InsertResult::kInserted) << "the name must be free";
  EXPECT_THAT(Unhold(first), IsEmpty());
  EXPECT_THAT(Unhold(held.ref), ElementsAre(Pages(5, 2)));
  EXPECT_EQ(index_.doomed(), 0u);
  EXPECT_EQ(Lookup(1).pages, 1u);
}

TEST_F(BlockIndexTest, DropReturnsTheExtent) {
  EntryRef ref;
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  EXPECT_EQ(Insert(2, Pages(8, 3), &ref), InsertResult::kInserted);
  EXPECT_EQ(Drop(1), Pages(5, 2));
  std::optional<Extent> freed;
  EXPECT_FALSE(index_.Drop(variant_, Name(1), &freed));
  EXPECT_TRUE(index_.Drop(ref, &freed));
  EXPECT_EQ(freed, Pages(8, 3));
  EXPECT_FALSE(index_.Drop(ref, &freed)) << "the reference is stale";
  EXPECT_EQ(freed, std::nullopt);
  EXPECT_EQ(index_.WorthInHost(ref, 0), std::nullopt);
  EXPECT_EQ(index_.WorthInHost(EntryRef{}, 0), std::nullopt);
  EXPECT_EQ(index_.WorthInHost(EntryRef{0x0FFFFFFF}, 0), std::nullopt);
}

TEST_F(BlockIndexTest, HoldsOfClientsAreLimitedAndTheDaemonsOwnHaveAReserve) {
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  EXPECT_EQ(Insert(2, Pages(8, 2)), InsertResult::kInserted);
  BlockIndex::Held held;
  for (int i = 0; i < kClientHoldsMax; ++i) {
    held = Hold(1);
    ASSERT_EQ(held.crowded, i >= kCrowdedHolds) << i;
  }
  const BlockIndex::Held over = Hold(1);
  EXPECT_TRUE(over.full);
  EXPECT_EQ(over.ref, EntryRef{});
  EXPECT_EQ(over.state, BlockState::kHost);
  EXPECT_TRUE(Hold(1, HoldWhat::kAnyTier).full);
  const std::vector<EntryRef> refs = {Hold(2).ref, held.ref};
  EXPECT_FALSE(index_.HoldAgain(refs));
  EXPECT_EQ(View(1).holds, kClientHoldsMax);
  EXPECT_EQ(View(2).holds, 1u) << "HoldAgain must hold all blocks or none";
  std::vector<EntryRef> all(kClientHoldsMax, held.ref);
  for (int i = kClientHoldsMax; i < kHoldsMax; ++i) {
    ASSERT_EQ(Hold(1, HoldWhat::kUntouched).ref, held.ref) << i;
    all.push_back(held.ref);
  }
  EXPECT_TRUE(Hold(1, HoldWhat::kUntouched).full);
  std::vector<Extent> freed;
  index_.Unhold(all, &freed);
  EXPECT_EQ(View(1).holds, 0u);
  EXPECT_FALSE(Hold(1).full);
}

TEST_F(BlockIndexTest, ABlockPinnedInHostLeavesNoTier) {
  EXPECT_FALSE(Pin(1, Tier::kHost));
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  EXPECT_TRUE(Pin(1, Tier::kHost));
  EXPECT_TRUE(Pin(1, Tier::kHost)) << "a repeated pin counts once";
  EXPECT_EQ(index_.PinnedBytes(Tier::kHost), KiB(8));
  Unhold(Hold(1).ref);
  EXPECT_FALSE(index_.EvictOne(now_s_));
  SpillOne(1);
  EXPECT_FALSE(index_.EvictOne(now_s_));
  EXPECT_FALSE(index_.EvictOneFromDisk(now_s_))
      << "without the disk copy, a block pinned in HOST would not survive a restart";
  EXPECT_TRUE(Unpin(1, Tier::kHost));
  EXPECT_EQ(index_.PinnedBytes(Tier::kHost), ByteCount(0));
  EXPECT_TRUE(index_.EvictOne(now_s_));
}

TEST_F(BlockIndexTest, ABlockPinnedOnDiskLeavesHostOnceItIsOnDisk) {
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  EXPECT_TRUE(Pin(1, Tier::kDisk));
  EXPECT_EQ(index_.PinnedBytes(Tier::kHost), KiB(8));
  EXPECT_FALSE(index_.EvictOne(now_s_)) << "HOST has the only copy";
  SpillOne(1);
  EXPECT_EQ(index_.PinnedBytes(Tier::kHost), ByteCount(0));
  EXPECT_EQ(index_.PinnedBytes(Tier::kDisk), KiB(8));
  EXPECT_FALSE(index_.EvictOneFromDisk(now_s_));
  EXPECT_TRUE(index_.EvictOne(now_s_));
  EXPECT_FALSE(index_.EvictOneFromDisk(now_s_));
  EXPECT_TRUE(Unpin(1, Tier::kDisk));
  EXPECT_TRUE(index_.EvictOneFromDisk(now_s_));
}

TEST_F(BlockIndexTest, PinnedDiskCopiesDoNotHideOthersFromEviction) {
  constexpr uint64_t kBlocks = 1'000;  // 60 per shard, of which one search sees 16
  for (uint64_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(Insert(i, Pages(0, 1)), InsertResult::kInserted);
    SpillOne(i);
    ASSERT_TRUE(i == kBlocks - 1 || Pin(i, Tier::kDisk));
  }
  std::optional<BlockIndex::EvictedFromDisk> gone;
  for (int looks = 0; looks < 8 && !gone; ++looks) gone = index_.EvictOneFromDisk(now_s_);
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->on_disk.digest, Name(kBlocks - 1));
}

TEST_F(BlockIndexTest, PinsDoNotOutliveTheirBlock) {
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  EXPECT_TRUE(Pin(1, Tier::kHost));
  EXPECT_EQ(Drop(1), Pages(5, 2));
  EXPECT_EQ(Insert(1, Pages(5, 2)), InsertResult::kInserted);
  EXPECT_FALSE(View(1).pinned_host);
  EXPECT_EQ(index_.PinnedBytes(Tier::kHost), ByteCount(0));
}

TEST_F(BlockIndexTest, ChildrenLeaveBeforeTheirParents) {
  for (uint64_t i = 0; i < 40; ++i) {  // 0 <- 1 <- 2 ...: heads are oldest, as written
    ASSERT_EQ(Insert(i, Pages(static_cast<uint32_t>(i), 1), nullptr, After(i == 0 ? 99 : i - 1)),
              InsertResult::kInserted);
    ++now_s_;
  }
  EXPECT_EQ(View(0).children, 1u);
  EXPECT_EQ(View(39).children, 0u);
  std::vector<int> tail_first(40);
  for (int i = 0; i < 40; ++i) tail_first[static_cast<size_t>(i)] = 39 - i;
  EXPECT_EQ(EvictAll(), tail_first);
}

TEST_F(BlockIndexTest, AnUnreadChainDoesNotHideOthersFromEviction) {
  // The chain is long enough that parents fill the cold end of every shard.  One newer block is not
  // a parent.
  for (uint64_t i = 100; i < 1000; ++i) {
    ASSERT_EQ(Insert(i, Pages(0, 1), nullptr, After(i - 1)), InsertResult::kInserted);
  }
  ASSERT_EQ(Insert(1, Pages(0, 1)), InsertResult::kInserted);
  bool met = false;
  for (int i = 0; i < 20 && !met; ++i) met = index_.EvictOne(now_s_)->digest == Name(1);
  EXPECT_TRUE(met);
}

// Only the ends of chains may leave, and most shards have none.  Blocks that are also on disk leave
// first all the same, not the end of the other chain that happens to lie in the shard whose turn it
// is.
TEST_F(BlockIndexTest, OfTwoLongChainsTheOneOnDiskLeavesHostFirst) {
  constexpr uint64_t kChain = 200;
  const auto insert = [&](uint64_t first, bool on_disk) {
    for (uint64_t i = first; i < first + kChain; ++i) {
      ASSERT_EQ(Insert(i, Pages(0, 1), nullptr, After(i - 1)), InsertResult::kInserted);
      if (!on_disk) continue;
      const EntryRef ref = Hold(i, HoldWhat::kUntouched).ref;
      ASSERT_TRUE(index_.SetOnDisk(ref, i));
      Unhold(ref);
    }
  };
  insert(1000, true);
  insert(2000, false);
  for (uint64_t i = 0; i < kChain; ++i) ASSERT_TRUE(index_.EvictOne(now_s_)->kept_on_disk) << i;
}

// The disk is smaller than the pool, so no block is on disk alone.
TEST_F(BlockIndexTest, DiskCopiesAreEvictedFromAllShards) {
  constexpr uint64_t kBlocks = 1600;
  for (uint64_t i = 1; i <= kBlocks; ++i) {
    ASSERT_EQ(Insert(i, Pages(0, 1)), InsertResult::kInserted);
    const EntryRef ref = Hold(i, HoldWhat::kUntouched).ref;
    ASSERT_TRUE(index_.SetOnDisk(ref, i));
    Unhold(ref);
  }
  std::map<uint64_t, int> given;
  for (uint64_t i = 0; i < kBlocks / 4; ++i) {
    const auto gone = index_.EvictOneFromDisk(now_s_);
    ASSERT_TRUE(gone.has_value());
    ++given[IndexHash(variant_, gone->on_disk.digest) >> 60];
  }
  EXPECT_EQ(given.size(), 16u);
  for (const auto& [shard, count] : given) EXPECT_NEAR(count, 25, 5) << shard;
}

TEST_F(BlockIndexTest, ParentsLeaveWhenNoOtherBlockCan) {
  ASSERT_EQ(Insert(1, Pages(1, 1)), InsertResult::kInserted);
  ASSERT_EQ(Insert(2, Pages(2, 1), nullptr, After(1)), InsertResult::kInserted);
  const EntryRef child = Hold(2).ref;
  EXPECT_THAT(EvictAll(), ElementsAre(1));
  Unhold(child);
  EXPECT_THAT(EvictAll(), ElementsAre(2));
}

// A start finds blocks in any order, and knows the order of each chain only when it has found them
// all.
TEST_F(BlockIndexTest, ChildrenFoundBeforeTheirParentsAreCountedInTheEnd) {
  constexpr uint64_t kChain = 200;
  EntryRef ref;
  for (uint64_t i = kChain; i > 0; --i) {
    ASSERT_EQ(index_.InsertOnDisk({.variant = variant_,
                                   .digest = Name(i),
                                   .parent = Name(i - 1),
                                   .location = i,
                                   .pages = 1},
                                  {}, now_s_, &ref),
              InsertResult::kInserted);
  }
  EXPECT_EQ(View(1).children, 0u);
  for (int again = 0; again < 2; ++again) {
    index_.CountChildren([] { return false; });
    index_.CheckInvariants();
    for (uint64_t i = 1; i < kChain; ++i) ASSERT_EQ(View(i).children, 1u) << i;
  }
  for (uint64_t i = kChain; i > 0; --i)
    ASSERT_EQ(index_.EvictOneFromDisk(now_s_)->on_disk.digest, Name(i)) << "tails must leave first";
}

// A block that is evicted because its slot is needed says nothing about the worth of its parents.
TEST_F(BlockIndexTest, AParentDoesNotFollowAChildThatWasEvictedForItsSlot) {
  const auto insert = [&](uint64_t name, uint64_t parent) {
    EntryRef ref;
    EXPECT_EQ(index_.InsertOnDisk({.variant = variant_,
                                   .digest = Name(name),
                                   .parent = Name(parent),
                                   .location = name,
                                   .pages = 1},
                                  {}, now_s_, &ref),
              InsertResult::kInserted);
    return ref;
  };
  constexpr uint64_t kColder = 1, kChild = 1000;
  uint64_t parent = kColder + 1;
  const auto shard = [&](uint64_t name) { return IndexHash(variant_, Name(name)) >> 60; };
  while (shard(parent) != shard(kColder)) ++parent;
  insert(kColder, 2000);
  insert(parent, 3000);
  ASSERT_TRUE(index_.EvictRefFromDisk(insert(kChild, parent)).has_value());
  ASSERT_EQ(View(parent).children, 0u);
  EXPECT_EQ(index_.EvictOneFromDisk(now_s_)->on_disk.digest, Name(kColder));
}

// If a record were worth less while HOST has its block, a full disk would erase the records of the
// blocks in HOST first, and these blocks would be lost once they leave HOST.
TEST_F(BlockIndexTest, ARecordIsWorthAsMuchWhileHostHasTheBlock) {
  EntryRef in_both, on_disk;
  ASSERT_EQ(Insert(1, Pages(1, 1), &in_both, After(9)), InsertResult::kInserted);
  SpillOne(1);
  ASSERT_EQ(index_.InsertOnDisk(
                {.variant = variant_, .digest = Name(2), .parent = {}, .location = 3, .pages = 1},
                {}, now_s_, &on_disk),
            InsertResult::kInserted);
  ASSERT_TRUE(index_.WorthOnDisk(in_both, now_s_));
  ASSERT_EQ(index_.WorthOnDisk(in_both, now_s_), index_.WorthOnDisk(on_disk, now_s_));
  now_s_ += 5;
  Unhold(Hold(1).ref);
  EXPECT_GT(*index_.WorthOnDisk(in_both, now_s_), *index_.WorthOnDisk(on_disk, now_s_));
}

TEST_F(BlockIndexTest, ChildrenAreCountedIfTheParentIsInHost) {
  ASSERT_EQ(Insert(2, {}, nullptr, After(1)), InsertResult::kInserted);  // its parent is not there
  ASSERT_EQ(Insert(1, {}), InsertResult::kInserted);
  EXPECT_EQ(View(1).children, 0u);
  ASSERT_EQ(Insert(3, {}, nullptr, After(1)), InsertResult::kInserted);
  EntryRef claim;
  ASSERT_EQ(index_.Claim(variant_, Name(4), &claim), InsertResult::kInserted);
  index_.Fill(claim, {}, After(1), now_s_);
  EXPECT_EQ(View(1).children, 2u);
  ASSERT_EQ(Insert(3, {}, nullptr, After(1)), InsertResult::kDuplicate);
  EXPECT_EQ(View(1).children, 2u) << "a duplicate does not count as a child";
  Drop(2);
  EXPECT_EQ(View(1).children, 2u) << "block 2 was never counted";
  Drop(3);
  Hold(4);
  Drop(4);
  EXPECT_EQ(View(1).children, 0u) << "a doomed child does not count";
}

TEST_F(BlockIndexTest, ForEachVisitsEveryNamedBlockAndMayChangeTheIndex) {
  for (uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(Insert(i, Pages(0, 1)), InsertResult::kInserted);
  Hold(5);
  Drop(5);
  std::set<Digest> seen;
  index_.ForEach([&](const BlockIndex::View& view) {
    std::optional<Extent> freed;
    EXPECT_TRUE(index_.Drop(view.variant, view.digest, &freed));
    EXPECT_TRUE(seen.insert(view.digest).second);
  });
  EXPECT_EQ(seen.size(), 1999u);
  EXPECT_FALSE(seen.contains(Name(5))) << "a doomed block must not be visited";
  EXPECT_EQ(index_.blocks(), 0u);
}

TEST_F(BlockIndexTest, MemoryIsBounded) {
  constexpr uint64_t kBlocks = 200'000;
  for (uint64_t i = 0; i < kBlocks; ++i) ASSERT_EQ(Insert(i, {}), InsertResult::kInserted);
  EXPECT_LE(index_.memory_bytes().value(), kBlocks * 85);
  EXPECT_GE(index_.memory_bytes().value(), kBlocks * 64);
  const ByteCount full = index_.memory_bytes();
  ByteCount again;
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < kBlocks; ++i) Drop(i);
    for (uint64_t i = 0; i < kBlocks; ++i) ASSERT_EQ(Insert(i, {}), InsertResult::kInserted);
    if (round == 0) again = index_.memory_bytes();
  }
  EXPECT_LE(again, full + ByteCount(16 * kBlocks))
      << "only the ghost entries of evicted blocks may be added";
  EXPECT_EQ(index_.memory_bytes(), again) << "free entries must be reused";
}

}  // namespace
}  // namespace larder
