// Clear over a store with a disk: which blocks it removes, which it keeps, and that no restart
// brings removed blocks back.
#include "server/verbs/clear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/verbs/scope_fixture.h"

namespace larder {
namespace {

using testing::DiskProcess;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using wire::SelectionScope;

using testing::kBoth;
using testing::kDiskBit;
using testing::kHostBit;

class ClearVerbTest : public testing::ScopeTest {
 protected:
  absl::Status TryClear(const ClearVerb::What& what, wire::ClearResult* result) {
    ClearVerb cleaner(store(), {&process_->tier, &*process_->work}, *process_->keeper,
                      process_->counters);
    return cleaner.Clear(what, result);
  }
  wire::ClearResult Clear(BlockScope scope, TierSet tiers = kBoth, bool pinned = false,
                          bool dry_run = false) {
    wire::ClearResult result;
    const absl::Status status = TryClear(
        {.scope = std::move(scope), .tiers = tiers, .pinned = pinned, .dry_run = dry_run}, &result);
    EXPECT_TRUE(status.ok()) << status;
    return result;
  }
};

TEST_F(ClearVerbTest, ClearsNamedBlocksAndAnswersForEach) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  ASSERT_NO_FATAL_FAILURE(PutChain("b", 2));
  BlockScope scope = Scope(SelectionScope::kBlocks, "a", 4);
  const wire::ClearResult result = Clear(std::move(scope));
  EXPECT_EQ(result.host.blocks, 3u);
  EXPECT_EQ(result.disk.blocks, 3u);
  EXPECT_EQ(result.disk.bytes, ByteCount(3 * RoundUp(DiskProcess::kBlockBytes, kPageBytes)));
  std::vector<BlockStatus> answers;
  for (const wire::BlockAnswer& block : result.blocks) answers.push_back(block.status);
  using enum BlockStatus;
  EXPECT_THAT(answers, ElementsAre(kOk, kOk, kOk, kMissing));
  EXPECT_THAT(TiersOf("a", 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(TiersOf("b", 2), ElementsAre(kBoth, kBoth));
  EXPECT_EQ(medium_.records.size(), 2u) << "their space on disk must be free";
  EXPECT_EQ(process_->counters.blocks_cleared_disk.value(), 3u);
}

TEST_F(ClearVerbTest, ClearsABlockThatIsNamedTwiceOnce) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 1));
  const BlockScope scope = NamedTwice("a");
  for (const bool dry_run : {true, false}) {
    const wire::ClearResult result = Clear(scope, kBoth, /*pinned=*/false, dry_run);
    EXPECT_EQ(result.host.blocks, 1u);
    ASSERT_EQ(result.blocks.size(), 2u);
    EXPECT_EQ(result.blocks[0].status, BlockStatus::kOk);
    EXPECT_EQ(result.blocks[1].status, BlockStatus::kOk);
  }
}

TEST_F(ClearVerbTest, ClearsBlocksBehindAPrefix) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 4));
  EXPECT_EQ(Clear(Scope(SelectionScope::kPrefix, "a", 3)).host.blocks, 2u);
  EXPECT_THAT(TiersOf("a", 4), ElementsAre(kBoth, kBoth, 0, 0));
}

TEST_F(ClearVerbTest, APrefixShorterThanABlockIsRefused) {
  Start();
  const std::vector<uint32_t> few(kStepTokens - 1, 1);
  const auto made =
      MakeScope(SelectionScope::kPrefix, {}, ContentOf("a").Id(), few, *instances_, store());
  EXPECT_TRUE(absl::IsInvalidArgument(made.status()));
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("SELECTION_SCOPE_CONTENT"));
}

// In HOST, and after a restart on disk alone: a block behind a hole still knows its content.
TEST_F(ClearVerbTest, ClearsAContentWithAHole) {
  for (const bool restart : {false, true}) {
    SCOPED_TRACE(restart);
    Start();
    ASSERT_NO_FATAL_FAILURE(PutChain("a", 5));
    ASSERT_NO_FATAL_FAILURE(PutChain("b", 3));
    for (const char* model : {"a", "b"}) {
      BlockScope second = Scope(SelectionScope::kBlocks, model, 2);
      second.blocks.blocks.erase(second.blocks.blocks.begin());
      EXPECT_EQ(Clear(std::move(second)).host.blocks, 1u);
    }
    if (restart) Start();
    const TierSet there = restart ? kDiskBit : kBoth;
    EXPECT_THAT(TiersOf("a", 5), ElementsAre(there, 0, there, there, there));
    EXPECT_EQ(Clear(Scope(SelectionScope::kContent, "a")).disk.blocks, 4u);
    EXPECT_THAT(TiersOf("a", 5), ElementsAre(0, 0, 0, 0, 0));
    EXPECT_THAT(TiersOf("b", 3), ElementsAre(there, 0, there));
    Clear(Scope(SelectionScope::kAll));
    EXPECT_EQ(store().stats().blocks, 0u);
    EXPECT_THAT(medium_.records, IsEmpty());
  }
}

// In HOST and on disk, and after a restart on disk alone, where the engine of a block is unknown.
TEST_F(ClearVerbTest, ClearsTheBlocksOfAWriter) {
  const BlockWriter bad{.uid = 7, .engine = 1}, mate{.uid = 7, .engine = 2}, good{.uid = 8};
  for (const bool restart : {false, true}) {
    SCOPED_TRACE(restart);
    Start();
    ASSERT_NO_FATAL_FAILURE(PutChain("bad", 2, /*spilled=*/true, bad));
    ASSERT_NO_FATAL_FAILURE(PutChain("mate", 1, /*spilled=*/true, mate));
    ASSERT_NO_FATAL_FAILURE(PutChain("good", 2, /*spilled=*/true, good));
    ASSERT_NO_FATAL_FAILURE(PutChain("unknown", 1));
    const TierSet there = restart ? kDiskBit : kBoth;
    if (restart) Start();
    const wire::ClearResult of_engine = Clear(ScopeOf(bad));
    EXPECT_EQ(of_engine.disk.blocks, restart ? 0u : 2u);
    EXPECT_THAT(TiersOf("mate", 1), ElementsAre(there))
        << "a block of another engine of the same user stays";
    EXPECT_EQ(Clear(ScopeOf({.uid = 7})).disk.blocks, restart ? 3u : 1u);
    EXPECT_THAT(TiersOf("bad", 2), ElementsAre(0, 0));
    EXPECT_THAT(TiersOf("mate", 1), ElementsAre(0));
    EXPECT_THAT(TiersOf("good", 2), ElementsAre(there, there));
    EXPECT_EQ(Clear(ScopeOf({})).disk.blocks, 1u)
        << "only the block whose writer is unknown is cleared";
    EXPECT_THAT(TiersOf("good", 2), ElementsAre(there, there));
    Clear(Scope(SelectionScope::kAll));
  }
}

// With --pinned, the pins on the writer's blocks end and the pins on other blocks stay.  A scope
// may also be limited to some variants.
TEST_F(ClearVerbTest, ClearsPinnedBlocksOfAWriterOnlyIfAsked) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("bad", 1, /*spilled=*/true, {.uid = 7}));
  ASSERT_NO_FATAL_FAILURE(PutChain("good", 1, /*spilled=*/true, {.uid = 8}));
  ASSERT_THAT(process_->Pin({process_->Key(Name("bad", 1)), process_->Key(Name("good", 1))},
                            testing::kNow_ms + 1'000'000),
              ElementsAre(BlockStatus::kOk, BlockStatus::kOk));
  EXPECT_EQ(Clear(ScopeOf({.uid = 7})).kept_pinned, 1u);
  BlockScope elsewhere = ScopeOf({.uid = 7});
  elsewhere.variants.emplace();
  EXPECT_EQ(Clear(std::move(elsewhere), kBoth, /*pinned=*/true).host.blocks, 0u);
  const wire::ClearResult gone = Clear(ScopeOf({.uid = 7}), kBoth, /*pinned=*/true);
  EXPECT_EQ(gone.host.blocks, 1u);
  EXPECT_EQ(gone.pins_ended, 1u);
  EXPECT_THAT(TiersOf("good", 1), ElementsAre(kBoth));
  EXPECT_EQ(store().stats().pins, 1u);
}

TEST_F(ClearVerbTest, ClearsOneTierOnly) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 2));
  ASSERT_NO_FATAL_FAILURE(PutChain("b", 1, /*spilled=*/false));
  const wire::ClearResult host = Clear(Scope(SelectionScope::kContent, "a"), kHostBit);
  EXPECT_EQ(host.host.blocks, 2u);
  EXPECT_EQ(host.disk.blocks, 0u);
  EXPECT_THAT(TiersOf("a", 2), ElementsAre(kDiskBit, kDiskBit));
  EXPECT_EQ(Clear(Scope(SelectionScope::kAll), kDiskBit).disk.blocks, 2u);
  EXPECT_THAT(TiersOf("a", 2), ElementsAre(0, 0));
  EXPECT_THAT(TiersOf("b", 1), ElementsAre(kHostBit));
}

TEST_F(ClearVerbTest, ALeasedBlockLosesItsNameAtOnce) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 1));
  const Digest name = Name("a", 1);
  auto lease = store().Acquire(process_->f.variant(), {&name, 1}, MiB(1));
  EXPECT_EQ(Clear(Scope(SelectionScope::kAll), kHostBit).kept_in_use, 1u);
  EXPECT_THAT(TiersOf("a", 1), ElementsAre(kBoth));
  const wire::ClearResult result = Clear(Scope(SelectionScope::kAll));
  EXPECT_EQ(result.host.blocks, 1u);
  EXPECT_EQ(result.leased, 1u);
  EXPECT_THAT(TiersOf("a", 1), ElementsAre(0));
  EXPECT_EQ(store().Bytes(lease.blocks[0].extent)[0], std::byte{1});
  ASSERT_EQ(medium_.records.size(), 1u);
  EXPECT_TRUE(medium_.records.begin()->second.forgotten) << "a crash must not bring the block back";
  lease.lease.Reset();
  process_->work->spiller().EraseFreedExtents();
  EXPECT_THAT(medium_.records, IsEmpty());
  EXPECT_EQ(store().stats().pool_stored, ByteCount(0));
}

TEST_F(ClearVerbTest, PinnedBlocksStayUnlessPinnedIsSet) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 2));
  const PinKey key = process_->Key(Name("a", 1));
  ASSERT_THAT(process_->Pin({key}, testing::kNow_ms + 1'000'000), ElementsAre(BlockStatus::kOk));
  const wire::ClearResult kept = Clear(Scope(SelectionScope::kBlocks, "a", 2));
  EXPECT_EQ(kept.kept_pinned, 1u);
  EXPECT_EQ(kept.blocks.at(0).status, BlockStatus::kKept);
  EXPECT_THAT(TiersOf("a", 2), ElementsAre(kBoth, 0));
  const wire::ClearResult would =
      Clear(Scope(SelectionScope::kAll), kBoth, /*pinned=*/true, /*dry_run=*/true);
  EXPECT_EQ(would.host.blocks, 1u);
  EXPECT_EQ(would.pins_ended, 1u);
  EXPECT_EQ(store().stats().pins, 1u);
  const wire::ClearResult gone = Clear(Scope(SelectionScope::kAll), kBoth, /*pinned=*/true);
  EXPECT_EQ(gone.host.blocks, 1u);
  EXPECT_EQ(gone.pins_ended, 1u);
  EXPECT_THAT(medium_.facts, IsEmpty());
  Start();
  EXPECT_EQ(store().stats().blocks, 0u);
  EXPECT_EQ(process_->loaded, 0u);
}

TEST_F(ClearVerbTest, ADryRunChangesNothing) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 3));
  const wire::ClearResult result =
      Clear(Scope(SelectionScope::kContent, "a"), kBoth, /*pinned=*/false, /*dry_run=*/true);
  EXPECT_EQ(result.host.blocks, 3u);
  EXPECT_EQ(result.disk.blocks, 3u);
  EXPECT_THAT(TiersOf("a", 3), ElementsAre(kBoth, kBoth, kBoth));
  EXPECT_EQ(process_->counters.blocks_cleared_host.value(), 0u);
}

// The blocks can no longer be found, but a crash could bring them back; the call reports this.
TEST_F(ClearVerbTest, ADiskThatDoesNotEraseIsAnError) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 2));
  {
    MutexLock lock(medium_.mu);
    medium_.keeps_all = true;
  }
  wire::ClearResult result;
  EXPECT_TRUE(absl::IsUnavailable(
      TryClear({.scope = Scope(SelectionScope::kAll), .tiers = kBoth}, &result)));
  EXPECT_EQ(result.disk.blocks, 2u);
  EXPECT_THAT(TiersOf("a", 2), ElementsAre(0, 0));
  {
    MutexLock lock(medium_.mu);
    medium_.keeps_all = false;
  }
  EXPECT_TRUE(TryClear({.scope = Scope(SelectionScope::kAll), .tiers = kBoth}, &result).ok());
  EXPECT_THAT(medium_.records, IsEmpty());
}

// An erasure that one call could not make durable is made durable by the next call, even if that
// call clears nothing.
TEST_F(ClearVerbTest, TheNextCallCompletesPendingErasures) {
  Start();
  ASSERT_NO_FATAL_FAILURE(PutChain("a", 1));
  const Digest name = Name("a", 1);
  auto lease = store().Acquire(process_->f.variant(), {&name, 1}, MiB(1));
  const auto keep_all = [&](bool keeps) {
    MutexLock lock(medium_.mu);
    medium_.keeps_all = keeps;
  };
  ClearVerb cleaner(store(), {&process_->tier, &*process_->work}, *process_->keeper,
                    process_->counters);
  const ClearVerb::What all{.scope = Scope(SelectionScope::kAll), .tiers = kBoth};
  wire::ClearResult result;
  keep_all(true);
  EXPECT_TRUE(absl::IsUnavailable(cleaner.Clear(all, &result)));
  EXPECT_EQ(result.leased, 1u);
  EXPECT_TRUE(absl::IsUnavailable(cleaner.Clear(all, &result)))
      << "a crash could still bring the block back";
  keep_all(false);
  ASSERT_EQ(medium_.records.size(), 1u);
  EXPECT_FALSE(medium_.records.begin()->second.forgotten);
  EXPECT_TRUE(cleaner.Clear(all, &result).ok());
  EXPECT_TRUE(medium_.records.begin()->second.forgotten);
  lease.lease.Reset();
  process_->work->spiller().EraseFreedExtents();
  EXPECT_THAT(medium_.records, IsEmpty());
}

}  // namespace
}  // namespace larder
