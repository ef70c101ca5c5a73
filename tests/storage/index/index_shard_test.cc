#include "storage/index/index_shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace larder {
namespace {

using EnterResult = IndexShard::EnterResult;

// Returns a digest that is spread like a real one; equal numbers give equal digests.
Digest Name(uint64_t i) {
  Digest digest;
  const uint64_t words[2] = {(i + 1) * 0x9E3779B97F4A7C15, (i + 1) * 0xD1B54A32D192ED03};
  std::memcpy(digest.bytes.data(), words, sizeof words);
  return digest;
}

constexpr Extent kOnePage = {.slab = SlabId{3}, .page = 0, .pages = 1};

// A shard as BlockIndex has it, for blocks that are numbers.  The clock stands still unless a test
// moves it, so that all blocks are worth the same and the order of the lists decides.
class IndexShardTest : public testing::Test {
 protected:
  ~IndexShardTest() override {
    std::vector<VariantTotals> sums(1);
    shard_.CheckInvariants(sums);
  }

  [[nodiscard]] uint64_t Hash(uint64_t name) const { return IndexHash(variant_, Name(name)); }
  static std::unique_ptr<const BlockMetadata> Metadata(uint64_t parent) {
    return BlockMetadata::Make(Name(parent), {}, UniformTable(1, 1));
  }
  IndexShard::Raised Raise(uint64_t parent, uint64_t child) {
    return shard_.RaiseChildren(variant_, Hash(parent), Name(child));
  }
  void LowerFormer(const IndexShard::Raised& raised) {
    if (raised.counted_by) shard_.LowerChildren(variant_, *raised.counted_by, std::nullopt);
  }
  // Inserts a block.  Returns what its parent recorded for it; `slot` receives its slot.
  IndexShard::Raised Insert(uint64_t name, uint32_t now_s, std::optional<uint64_t> parent = {},
                            uint32_t* slot = nullptr) {
    IndexShard::Raised raised;
    if (parent) raised = Raise(*parent, name);
    const IndexShard::Raised before = raised;
    IndexedBlock block{.variant = variant_,
                       .digest = Name(name),
                       .extent = kOnePage,
                       .metadata = parent ? Metadata(*parent) : nullptr};
    uint32_t any = 0;
    EXPECT_EQ(shard_.Insert(Hash(name), block, raised, now_s, slot == nullptr ? &any : slot),
              EnterResult::kEntered);
    LowerFormer(raised);
    return before;
  }
  // Inserts a name that a block has already, in whichever tier.
  void InsertDuplicate(uint64_t name, uint64_t parent) {
    IndexShard::Raised raised = Raise(parent, name);
    IndexedBlock block{.variant = variant_,
                       .digest = Name(name),
                       .extent = kOnePage,
                       .metadata = Metadata(parent)};
    uint32_t slot = 0;
    EXPECT_EQ(shard_.Insert(Hash(name), block, raised, kNow_s, &slot), EnterResult::kDuplicate);
    LowerFormer(raised);
  }
  // Enters a copy on disk, also of a block that is in HOST.
  uint32_t InsertOnDisk(uint64_t name, std::optional<uint64_t> parent = {}) {
    const uint32_t same = Hold(name, HoldWhat::kUntouched, kNow_s).ref.value;
    const uint32_t slot = InsertOnDiskAs(same, name, parent, EnterResult::kEntered);
    std::vector<Extent> freed;
    if (same != 0) shard_.Unhold({&same, 1}, &freed, nullptr);
    return slot;
  }
  uint32_t InsertOnDiskAs(uint32_t same, uint64_t name, std::optional<uint64_t> parent,
                          EnterResult expected) {
    IndexShard::Raised raised;
    if (parent) raised = Raise(*parent, name);
    uint32_t slot = 0;
    const BlockOnDisk block{.variant = variant_,
                            .digest = Name(name),
                            .parent = parent ? Name(*parent) : Digest{},
                            .location = name + 1,
                            .pages = 1};
    EXPECT_EQ(shard_.InsertOnDisk(Hash(name), block, same, raised, kNow_s, &slot), expected);
    LowerFormer(raised);
    return slot;
  }
  HeldBlock Hold(uint64_t name, HoldWhat what, uint32_t now_s) {
    const Digest key = Name(name);
    const uint64_t hash = Hash(name);
    const uint16_t first = 0;
    HeldBlock held;
    shard_.Hold(
        {.variant = variant_, .keys = {&key, 1}, .hashes = {&hash, 1}, .order = {&first, 1}}, what,
        now_s, {&held, 1});
    return held;
  }
  // Promotes a block from disk into HOST and ends the hold.
  void Promote(uint64_t name, uint64_t parent) {
    const uint32_t slot = Hold(name, HoldWhat::kUntouched, kNow_s).ref.value;
    IndexShard::Raised raised = Raise(parent, name);
    ASSERT_TRUE(shard_.BeginPromote(slot));
    ASSERT_TRUE(shard_.FinishPromote(slot, kOnePage, Metadata(parent), raised, kNow_s));
    LowerFormer(raised);
    std::vector<Extent> freed;
    shard_.Unhold({&slot, 1}, &freed, nullptr);
  }
  [[nodiscard]] Digest EvictColdest() {
    return shard_.EvictColdest(policy_, false, kNow_s)->block.digest;
  }
  // Evicts block 2, the only child of `parent`, last used at 100, and returns which block leaves
  // next; blocks 3, 4 and so on could leave too.
  [[nodiscard]] Digest NextAfterTheOnlyChildOf(uint64_t parent, uint32_t used_s) {
    Insert(parent, used_s);
    EXPECT_TRUE(Raise(parent, 2).counted_by.has_value());
    for (uint64_t i = 2; i < 2 + 2 * IndexShard::kEvictionLook; ++i) Insert(i, 150);
    EXPECT_EQ(EvictColdest(), Name(2));
    shard_.LowerChildren(variant_, Hash(parent), /*child_last_use_s=*/100);
    return EvictColdest();
  }
  // Evicts a block from disk and lowers the child count of its parent, as BlockIndex does.
  [[nodiscard]] std::optional<Digest> EvictColdestFromDisk(bool parents_too = false) {
    const auto gone = shard_.EvictColdestFromDisk(policy_, parents_too, kNow_s);
    if (!gone) return std::nullopt;
    if (gone->counted_by) shard_.LowerChildren(variant_, *gone->counted_by, gone->last_use_s);
    return gone->block.on_disk.digest;
  }

  static constexpr uint32_t kNow_s = 100;
  VariantTable variants_;
  const VariantIndex variant_ = *variants_.Intern(Name(0));
  IndexShard shard_{variants_};
  const EvictionPolicy policy_;
};

TEST_F(IndexShardTest, AFullShardRefusesAnInsert) {
  IndexShard shard(variants_, /*entries_max=*/3);
  uint32_t slot = 0;
  for (uint64_t i = 0; i < 3; ++i)
    ASSERT_EQ(shard.Claim(Hash(i), variant_, Name(i), &slot), EnterResult::kEntered);
  IndexedBlock block{
      .variant = variant_, .digest = Name(3), .extent = {}, .metadata = Metadata(99)};
  uint32_t none = 0;
  IndexShard::Raised raised;
  EXPECT_EQ(shard.Insert(Hash(3), block, raised, 0, &none), EnterResult::kFull);
  EXPECT_NE(block.metadata, nullptr) << "the caller must keep the metadata";
  shard.Abandon(slot);
  EXPECT_EQ(shard.Insert(Hash(3), block, raised, 0, &slot), EnterResult::kEntered);
  std::vector<VariantTotals> sums(1);
  shard.CheckInvariants(sums);
}

// Eviction moves parents that it skips to the hot end.  They return to the cold end when their last
// child has left.
TEST_F(IndexShardTest, AParentFollowsItsLastChild) {
  EXPECT_EQ(NextAfterTheOnlyChildOf(1, /*used_s=*/100), Name(1));
}
TEST_F(IndexShardTest, AParentThatWasUsedAfterItsLastChildStays) {
  EXPECT_EQ(NextAfterTheOnlyChildOf(1, /*used_s=*/200), Name(3));
}

// The only child of a block inherits its history.  A second child makes a fork: it inherits none,
// and the block and its parents are marked as shared.
TEST_F(IndexShardTest, HistoryIsInheritedDownAChainUpToAFork) {
  Insert(1, 100, 0);
  Insert(2, 100, 1);
  Hold(2, HoldWhat::kHost, 164);
  const auto only = Insert(3, 100, 2);
  EXPECT_EQ(only.history, UsedAgain({}, 64));
  EXPECT_FALSE(only.forked);
  EXPECT_FALSE(Raise(2, 3).forked) << "the same child again is not a fork";
  const auto second = Insert(4, 100, 2);
  EXPECT_EQ(second.history, ReuseHistory());
  EXPECT_TRUE(second.forked);
  EXPECT_EQ(shard_.MarkShared(variant_, Hash(2)), Hash(1));
  EXPECT_EQ(shard_.MarkShared(variant_, Hash(2)), std::nullopt)
      << "a marked block is not marked again";
  EXPECT_EQ(shard_.MarkShared(variant_, Hash(1)), Hash(0));
  EXPECT_EQ(shard_.MarkShared(variant_, Hash(0)), std::nullopt) << "block 0 is not in the index";
  EXPECT_FALSE(Insert(5, 100, 2).forked) << "the block is already known to be shared";
  EXPECT_EQ(Insert(6, 100, 1).history, ReuseHistory());
  const uint32_t slot = Hold(2, HoldWhat::kUntouched, 164).ref.value;
  std::vector<Extent> freed;
  for (int holds = 0; holds < 2; ++holds) shard_.Unhold({&slot, 1}, &freed, nullptr);
}

// A block that was evicted and returns has its history again.
TEST_F(IndexShardTest, AnEvictedBlockKeepsItsHistory) {
  Insert(1, 0);
  ASSERT_EQ(EvictColdest(), Name(1));
  Insert(1, 64);
  Insert(2, 64);
  // A block that alone follows it inherits its history.
  EXPECT_EQ(Raise(1, 99).history, UsedAgain({}, 64));
  EXPECT_EQ(Raise(2, 99).history, ReuseHistory());
}

// A block that is also on disk leaves HOST before a block that is only in HOST, even if that one is
// colder.
TEST_F(IndexShardTest, BlocksThatAreAlsoOnDiskLeaveHostFirst) {
  for (uint64_t i = 0; i < 10; ++i) {
    Insert(i, 100);
    if (i >= 5) InsertOnDisk(i);
  }
  for (const uint64_t next : {5, 6, 7, 8, 9, 0, 1, 2, 3, 4}) EXPECT_EQ(EvictColdest(), Name(next));
}

// Parents that are also on disk may leave, so a search for the least worthy block moves none of
// them.
TEST_F(IndexShardTest, ASearchKeepsTheOrderOfBlocksThatAreAlsoOnDisk) {
  constexpr uint64_t kParents = 40;
  for (uint64_t i = 0; i < kParents; ++i) {
    Insert(i, 100);
    InsertOnDisk(i);
    ASSERT_TRUE(Raise(i, 1000 + i).counted_by.has_value());
  }
  for (uint64_t i = 0; i < kParents; ++i) {
    EXPECT_NE(shard_.Least(policy_, 100).slot, EntrySlots::kNone);
    EXPECT_EQ(EvictColdest(), Name(i));
  }
}

// However many of the coldest blocks have no disk copy.
TEST_F(IndexShardTest, DiskCopiesAreFoundBehindBlocksWithoutOne) {
  constexpr uint64_t kBlocks = 1000;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    Insert(i, 100);
    InsertOnDisk(i);
  }
  for (uint64_t i = 0; i < kBlocks; ++i)
    ASSERT_TRUE(shard_.DropDiskCopy(policy_, 100).has_value()) << i;
  EXPECT_FALSE(shard_.DropDiskCopy(policy_, 100).has_value());
}

// ---- Chains on disk: a hole would make the rest of a chain worthless.

TEST_F(IndexShardTest, OnDiskAChildLeavesBeforeItsParent) {
  InsertOnDisk(1);
  InsertOnDisk(2, 1);
  InsertOnDisk(3, 2);
  InsertOnDisk(4);
  EXPECT_EQ(EvictColdestFromDisk(), Name(3));
  EXPECT_EQ(EvictColdestFromDisk(), Name(2))
      << "a parent that was used no later than its last child leaves next";
  EXPECT_EQ(EvictColdestFromDisk(), Name(1));
  EXPECT_EQ(EvictColdestFromDisk(), Name(4));
  EXPECT_EQ(EvictColdestFromDisk(), std::nullopt);
}

TEST_F(IndexShardTest, AParentOnDiskStaysForAChildInHost) {
  InsertOnDisk(1);
  Insert(2, 100, 1);
  EXPECT_EQ(EvictColdestFromDisk(), std::nullopt);
  EXPECT_EQ(EvictColdestFromDisk(/*parents_too=*/true), Name(1))
      << "it may leave only when no other block can";
  EXPECT_EQ(EvictColdest(), Name(2));
}

TEST_F(IndexShardTest, ABlockThatLeavesHostForTheDiskStillCountsAsAChild) {
  uint32_t parent = 0, child = 0;
  Insert(1, 100, {}, &parent);
  Insert(2, 100, 1, &child);
  for (const uint64_t name : {1, 2}) InsertOnDisk(name);
  for (const uint32_t slot : {parent, child}) ASSERT_TRUE(shard_.Evict(slot).has_value());
  EXPECT_EQ(EvictColdestFromDisk(), Name(2));
  EXPECT_EQ(EvictColdestFromDisk(), Name(1));
}

// Each change of tier counts the child once.
TEST_F(IndexShardTest, AChildThatReturnsIsCountedOnce) {
  InsertOnDisk(1);
  InsertOnDisk(2, 1);
  Promote(2, 1);
  EXPECT_EQ(EvictColdest(), Name(2));
  InsertDuplicate(2, 1);  // published while it is on disk alone
  EXPECT_EQ(EvictColdestFromDisk(), Name(2));
  EXPECT_EQ(EvictColdestFromDisk(), Name(1)) << "no child may be left";
}

// A start finds blocks in any order.
TEST_F(IndexShardTest, AParentFoundAfterItsChildCountsItOnceTheChildIsUsed) {
  InsertOnDisk(2, 1);
  InsertOnDisk(1);
  Promote(2, 1);
  EXPECT_EQ(EvictColdest(), Name(2));
  EXPECT_EQ(EvictColdestFromDisk(), Name(2));
  EXPECT_EQ(EvictColdestFromDisk(), Name(1));
}

TEST_F(IndexShardTest, ABlockEvictedForItsSlotLowersItsParentsCount) {
  InsertOnDisk(1);
  const uint32_t slot = InsertOnDisk(2, 1);
  const auto gone = shard_.EvictFromDisk(slot);
  ASSERT_TRUE(gone.has_value());
  EXPECT_EQ(gone->counted_by, Hash(1));
  shard_.LowerChildren(variant_, *gone->counted_by, gone->last_use_s);
  EXPECT_EQ(EvictColdestFromDisk(), Name(1));
}

// ---- Worth.

// Within one shard, the least worthy blocks of the cold end leave first.
TEST_F(IndexShardTest, ReadBlocksOutliveUnreadOnes) {
  std::vector<uint32_t> slots(40);
  for (uint64_t i = 0; i < slots.size(); ++i) Insert(i, 100, {}, &slots[i]);
  // A lease on the first ten blocks as one chain, released at once: block 0 becomes the most
  // recent.
  for (uint64_t i = 0; i < 10; ++i) Hold(i, HoldWhat::kHost, 500);
  std::vector<Extent> freed;
  shard_.Unhold(std::span(slots).first(10), &freed, nullptr);
  std::vector<Digest> gone;
  while (auto departure = shard_.EvictColdest(policy_, false, 600))
    gone.push_back(departure->block.digest);
  ASSERT_EQ(gone.size(), 40u);
  for (uint64_t i = 0; i < 30; ++i) EXPECT_EQ(gone[i], Name(10 + i)) << i;
  for (uint64_t i = 0; i < 10; ++i)
    EXPECT_EQ(gone[30 + i], Name(9 - i)) << "tails must leave first";
}

// The two copies have not been compared, unless the thread that holds the block says so.
TEST_F(IndexShardTest, ABlockInHostGetsARecordOnlyFromItsHolder) {
  uint32_t slot = 0, other = 0;
  Insert(1, kNow_s, {}, &slot);
  Insert(2, kNow_s, {}, &other);
  InsertOnDiskAs(/*same=*/0, 1, {}, EnterResult::kBusy);
  InsertOnDiskAs(other, 1, {}, EnterResult::kBusy);
  const HeldBlock held = Hold(1, HoldWhat::kUntouched, kNow_s);
  EXPECT_EQ(shard_.LookAt(slot).state, BlockState::kHost);
  EXPECT_EQ(InsertOnDiskAs(held.ref.value, 1, {}, EnterResult::kEntered), slot);
  EXPECT_EQ(shard_.LookAt(slot).state, BlockState::kHostDisk);
  std::vector<Extent> freed;
  shard_.Unhold({&slot, 1}, &freed, nullptr);
}

// Readers of the damaged copy keep their bytes, and everything that is known of the block stays
// with its name.
TEST_F(IndexShardTest, DamageInHostLeavesTheCopyOnDiskUnderItsName) {
  uint32_t slot = 0;
  Insert(1, kNow_s);
  Insert(2, kNow_s, 1, &slot);
  Insert(3, kNow_s, 2);
  const HeldBlock reader = Hold(2, HoldWhat::kHost, kNow_s);
  InsertOnDisk(2, 1);
  EXPECT_TRUE(shard_.SetPinned(Hash(2), variant_, Name(2), Tier::kHost, true));
  EXPECT_TRUE(shard_.SetPinned(Hash(2), variant_, Name(2), Tier::kDisk, true));
  const auto gone = shard_.DropHostCopy(slot);
  ASSERT_TRUE(gone);
  EXPECT_TRUE(gone->doomed);
  EXPECT_FALSE(gone->counted_by) << "its parent must still count it";
  EXPECT_EQ(shard_.LookAt(slot).extent, reader.extent) << "the reader must keep the extent";
  std::array<BlockView, 8> views;
  size_t count = 0;
  (void)shard_.Views(1, views, &count);
  const auto now = std::find_if(views.begin(), views.begin() + static_cast<ptrdiff_t>(count),
                                [](const BlockView& view) { return view.digest == Name(2); });
  ASSERT_NE(now, views.begin() + static_cast<ptrdiff_t>(count));
  EXPECT_EQ(now->state, BlockState::kDisk);
  EXPECT_EQ(now->disk_location, 3u);
  EXPECT_EQ(now->holds, 0u);
  EXPECT_EQ(now->children, 1u);
  EXPECT_TRUE(now->counted_in_parent && now->pinned_host && now->pinned_disk);
  EXPECT_FALSE(shard_.DropHostCopy(slot)) << "the copy in HOST is gone already";
  std::vector<Extent> freed;
  std::vector<FreedExtent> on_disk;
  shard_.Unhold({&slot, 1}, &freed, &on_disk);
  EXPECT_EQ(freed, std::vector{kOnePage});
  EXPECT_TRUE(on_disk.empty());
}

// If the name moved to a second entry now, that entry would keep the old location, which the disk
// has forgotten.
TEST_F(IndexShardTest, DamageInHostWaitsForARewriteOnDisk) {
  uint32_t slot = 0;
  Insert(1, kNow_s, {}, &slot);
  (void)Hold(1, HoldWhat::kUntouched, kNow_s);
  ASSERT_EQ(shard_.SetOnDisk(slot, 7), 0u);
  ASSERT_TRUE(shard_.BeginRewrite(slot, 7));
  EXPECT_FALSE(shard_.DropHostCopy(slot));
  ASSERT_TRUE(shard_.FinishRewrite(slot, 8));
  ASSERT_TRUE(shard_.DropHostCopy(slot));
  const HeldBlock now = Hold(1, HoldWhat::kUntouched, kNow_s);
  EXPECT_EQ(now.state, BlockState::kDisk);
  EXPECT_EQ(now.disk_location, 8u);
  std::vector<Extent> freed;
  std::vector<FreedExtent> on_disk;
  shard_.Unhold({&slot, 1}, &freed, &on_disk);
  shard_.Unhold({&now.ref.value, 1}, &freed, &on_disk);
}

TEST_F(IndexShardTest, DamageInHostLeavesTheCopyOnDiskOfAFullShard) {
  IndexShard full(variants_, /*entries_max=*/1);
  IndexShard::Raised raised;
  IndexedBlock block{
      .variant = variant_, .digest = Name(1), .extent = kOnePage, .metadata = Metadata(99)};
  uint32_t slot = 0;
  ASSERT_EQ(full.Insert(Hash(1), block, raised, kNow_s, &slot), EnterResult::kEntered);
  const Digest key = Name(1);
  const uint64_t hash = Hash(1);
  const uint16_t first = 0;
  const IndexShard::Group group{
      .variant = variant_, .keys = {&key, 1}, .hashes = {&hash, 1}, .order = {&first, 1}};
  HeldBlock held;
  full.Hold(group, HoldWhat::kHost, kNow_s, {&held, 1});
  ASSERT_EQ(held.ref.value, slot);
  ASSERT_EQ(full.SetOnDisk(slot, 7), 0u);
  ASSERT_TRUE(full.DropHostCopy(slot));
  BlockPresence now;
  full.Lookup(group, {&now, 1});
  EXPECT_EQ(now.tiers, TierBit(Tier::kDisk));
  IndexedBlock other{
      .variant = variant_, .digest = Name(2), .extent = kOnePage, .metadata = Metadata(99)};
  uint32_t none = 0;
  EXPECT_EQ(full.Insert(Hash(2), other, raised, kNow_s, &none), EnterResult::kFull);
  std::vector<Extent> freed;
  std::vector<FreedExtent> on_disk;
  full.Unhold({&slot, 1}, &freed, &on_disk);
  EXPECT_EQ(freed.size(), 1u);
  EXPECT_TRUE(on_disk.empty()) << "the space on disk still belongs to the block";
}

TEST_F(IndexShardTest, DamageOfTheOnlyCopyRemovesTheName) {
  uint32_t slot = 0;
  Insert(1, kNow_s, {}, &slot);
  (void)Hold(1, HoldWhat::kHost, kNow_s);
  ASSERT_TRUE(shard_.DropHostCopy(slot));
  EXPECT_EQ(Hold(1, HoldWhat::kUntouched, kNow_s).ref, EntryRef{});
  std::vector<Extent> freed;
  shard_.Unhold({&slot, 1}, &freed, nullptr);
  EXPECT_EQ(freed.size(), 1u);
}

}  // namespace
}  // namespace larder
