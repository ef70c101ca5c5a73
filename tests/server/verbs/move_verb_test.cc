// Move between HOST and DISK: which blocks move, which stay, and what a call leaves behind when its
// caller stops it.
#include "server/verbs/move.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/server/verbs/scope_fixture.h"

namespace larder {
namespace {

using testing::DiskProcess;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kBoth;
using testing::kDiskBit;
using testing::kHostBit;
using wire::SelectionScope;

class MoveVerbTest : public testing::ScopeTest {
 protected:
  absl::Status TryMove(
      const MoveVerb::What& what, wire::MoveProgress* last,
      const MoveVerb::Report& report = [](const auto&) { return true; }) {
    MoveVerb mover(store(), {&process_->tier, &*process_->work}, process_->counters);
    return mover.Move(what, [&](const wire::MoveProgress& progress) {
      EXPECT_GE(progress.blocks_done, last->blocks_done);
      EXPECT_LE(progress.blocks_done, progress.blocks);
      *last = progress;
      return report(progress);
    });
  }
  wire::MoveProgress Move(Tier from, Tier to, bool copy,
                          SelectionScope scope = SelectionScope::kAll,
                          const std::string& model = "", uint32_t blocks = 0) {
    wire::MoveProgress last;
    const absl::Status status = TryMove(
        {.scope = Scope(scope, model, blocks), .from = from, .to = to, .copy = copy}, &last);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(last.blocks_done, last.blocks);
    EXPECT_EQ(last.bytes_done, last.bytes);
    return last;
  }
};

TEST_F(MoveVerbTest, MovesToDiskAndBack) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 5, /*spilled=*/false));
  ASSERT_NO_FATAL_FAILURE(PutChain("b", 2, /*spilled=*/false));
  EXPECT_EQ(Move(Tier::kHost, Tier::kDisk, true, SelectionScope::kContent, "a").moved, 5u);
  EXPECT_THAT(TiersOf("a", 5), Each(kBoth));
  EXPECT_THAT(TiersOf("b", 2), Each(kHostBit));
  const wire::MoveProgress moved =
      Move(Tier::kHost, Tier::kDisk, false, SelectionScope::kPrefix, "a", 3);
  EXPECT_EQ(moved.moved, 3u);
  EXPECT_THAT(TiersOf("a", 5), ElementsAre(kBoth, kBoth, kDiskBit, kDiskBit, kDiskBit));
  EXPECT_EQ(Move(Tier::kDisk, Tier::kHost, true, SelectionScope::kContent, "a").moved, 3u)
      << "only blocks that are not in HOST are moved";
  EXPECT_THAT(TiersOf("a", 5), Each(kBoth));
  EXPECT_EQ(Move(Tier::kDisk, Tier::kHost, false, SelectionScope::kContent, "a").moved, 5u);
  EXPECT_THAT(TiersOf("a", 5), Each(kHostBit));
  process_->work->spiller().EraseFreedExtents();
  EXPECT_EQ(medium_.records.size(), 0u) << "their space on disk must be free";
  EXPECT_EQ(process_->counters.blocks_moved_disk.value(), 8u);
  EXPECT_EQ(process_->counters.blocks_moved_host.value(), 8u);
}

TEST_F(MoveVerbTest, CountsBlocksThatStayInTheSourceTier) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  const PinKey pinned = process_->Key(Name("a", 1));
  ASSERT_THAT(process_->Pin({pinned}, testing::kNow_ms + 1'000'000), ElementsAre(BlockStatus::kOk));
  const Digest leased = Name("a", 2);
  const auto lease = store().Acquire(process_->f.variant(), {&leased, 1}, MiB(1));
  const wire::MoveProgress moved = Move(Tier::kHost, Tier::kDisk, false);
  EXPECT_EQ(moved.moved, 3u);
  EXPECT_EQ(moved.kept_pinned, 1u);
  EXPECT_EQ(moved.kept_in_use, 1u);
  EXPECT_THAT(TiersOf("a", 3), ElementsAre(kBoth, kBoth, kDiskBit));
}

// Records that are pinned on disk are not erased to make space for the move.
TEST_F(MoveVerbTest, AMoveWithoutSpaceIsRefused) {
  disk_bytes_ = ByteCount(RoundUp(DiskProcess::kBlockBytes, kPageBytes));
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 1));
  const PinKey pinned = process_->Key(Name("a", 1), Tier::kDisk);
  ASSERT_THAT(process_->Pin({pinned}, testing::kNow_ms + 1'000'000), ElementsAre(BlockStatus::kOk));
  ASSERT_NO_FATAL_FAILURE(PutChain("b", 1, /*spilled=*/false));
  wire::MoveProgress last;
  const absl::Status status = TryMove(
      {.scope = Scope(SelectionScope::kContent, "b"), .from = Tier::kHost, .to = Tier::kDisk},
      &last);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(TiersOf("b", 1), ElementsAre(kHostBit)) << "the block must stay in HOST";
}

// Each of two opposite moves removes what the other relies on: first one runs inside the other,
// then both run at once.
TEST_F(MoveVerbTest, TwoOppositeMovesLoseNothing) {
  Start();
  constexpr uint32_t kBlocks = 20;
  ASSERT_NO_FATAL_FAILURE(PutChain("a", kBlocks));
  const auto move = [&](Tier from, Tier to, const MoveVerb::Report& report) {
    wire::MoveProgress last;
    const MoveVerb::What what{.scope = Scope(SelectionScope::kAll), .from = from, .to = to};
    EXPECT_TRUE(TryMove(what, &last, report).ok());
    return last;
  };
  const auto go_on = [](const wire::MoveProgress&) { return true; };
  const wire::MoveProgress down =
      move(Tier::kHost, Tier::kDisk, [&](const wire::MoveProgress& progress) {
        if (progress.blocks_done == kBlocks && progress.moved == kBlocks)
          (void)move(Tier::kDisk, Tier::kHost, go_on);
        return true;
      });
  EXPECT_EQ(down.moved, 0u)
      << "the inner move took the blocks back before the outer one removed them from HOST";
  EXPECT_EQ(down.no_room, kBlocks);
  EXPECT_THAT(TiersOf("a", kBlocks), Each(kHostBit));
  std::thread other([&] {
    for (int i = 0; i < 30; ++i) (void)move(Tier::kHost, Tier::kDisk, go_on);
  });
  for (int i = 0; i < 30; ++i) (void)move(Tier::kDisk, Tier::kHost, go_on);
  other.join();
  EXPECT_THAT(TiersOf("a", kBlocks), Each(::testing::Ne(0)));
}

// A block that the disk cannot read at the moment is not missing.
TEST_F(MoveVerbTest, ADiskThatFailsIsAnError) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  (void)Move(Tier::kHost, Tier::kDisk, false);
  medium_.records.begin()->second.unreadable = true;
  wire::MoveProgress last;
  const absl::Status status = TryMove(
      {.scope = Scope(SelectionScope::kAll), .from = Tier::kDisk, .to = Tier::kHost}, &last);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(last.missing, 0u);
  EXPECT_THAT(TiersOf("a", 3), Each(::testing::Ne(0)));
}

TEST_F(MoveVerbTest, AMoveLargerThanTheTierIsRefused) {
  disk_bytes_ = ByteCount(2 * RoundUp(DiskProcess::kBlockBytes, kPageBytes));
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3, /*spilled=*/false));
  wire::MoveProgress last;
  const absl::Status status = TryMove(
      {.scope = Scope(SelectionScope::kAll), .from = Tier::kHost, .to = Tier::kDisk}, &last);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("select fewer"));
  EXPECT_THAT(TiersOf("a", 3), Each(kHostBit));
}

TEST_F(MoveVerbTest, StopsWhenTheCallerStops) {
  Start();
  constexpr uint32_t kBlocks = 60;
  ASSERT_NO_FATAL_FAILURE(PutChain("a", kBlocks, /*spilled=*/false));
  wire::MoveProgress last;
  const absl::Status status =
      TryMove({.scope = Scope(SelectionScope::kAll), .from = Tier::kHost, .to = Tier::kDisk}, &last,
              [](const wire::MoveProgress&) { return false; });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_THAT(TiersOf("a", kBlocks), Each(kHostBit))
      << "the caller stopped the call before it moved anything";
  EXPECT_EQ(Move(Tier::kHost, Tier::kDisk, false).moved, kBlocks)
      << "a further call moves the rest";
  EXPECT_THAT(TiersOf("a", kBlocks), Each(kDiskBit));
}

TEST_F(MoveVerbTest, ADamagedBlockIsMissing) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  (void)Move(Tier::kHost, Tier::kDisk, false);
  medium_.records.begin()->second.payload[7] ^= std::byte{1};
  const wire::MoveProgress moved = Move(Tier::kDisk, Tier::kHost, true);
  EXPECT_EQ(moved.moved, 2u);
  EXPECT_EQ(moved.missing, 1u);
  EXPECT_THAT(TiersOf("a", 3), ::testing::UnorderedElementsAre(0, kBoth, kBoth));
}

TEST_F(MoveVerbTest, NeedsADisk) {
  testing::StoreFixture f;
  Counters counters;
  MoveVerb mover(f.store(), {}, counters);
  const absl::Status status = mover.Move({}, [](const auto&) { return true; });
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--disk"));
}

}  // namespace
}  // namespace larder
