// A daemon whose disk does not report at once what an earlier daemon left there.
#include "storage/tiering/tier_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "storage/disk/file_disk_tier.h"
#include "storage/disk/memory_disk_tier.h"
#include "storage/spin_wait.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiering/forwarding_tier.h"
#include "tests/storage/tiering/tiers_fixture.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

using testing::DiskBlock;
using testing::StoreFixture;
using std::chrono_literals::operator""s;

// A tier of which some part cannot be read the first `failures` times.
class LateTier final : public MemoryDiskTier {
 public:
  LateTier(Medium& medium, int failures) : MemoryDiskTier(MiB(64), medium), failures_(failures) {}

  absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                       absl::FunctionRef<bool()> stop) override {
    (void)SpinUntil(std::chrono::steady_clock::now() + 60s, [this] { return !waits; });
    if (calls_++ < failures_) return absl::UnavailableError("shard 3 stays closed");
    for (const Entry& entry : told) owner_of(entry);
    return MemoryDiskTier::Recover(owner_of, stop);
  }
  absl::Status Describe(std::span<const DiskAddress> blocks,
                        std::span<std::optional<Description>> out) override {
    if (unread-- > 0) return absl::UnavailableError("shard 3 cannot be read now");
    return MemoryDiskTier::Describe(blocks, out);
  }
  [[nodiscard]] int calls() const { return calls_; }

  absl::StatusOr<std::optional<Description>> FindUntold(const BlockKey& key) override {
    if (unreadable) return absl::UnavailableError("a block of the catalog cannot be read");
    if (closed) return std::nullopt;
    return MemoryDiskTier::FindUntold(key);
  }

  std::vector<Entry> told;  // set before the first call
  std::atomic<bool> unreadable{false};
  std::atomic<bool> waits{false};
  std::atomic<bool> closed{false};  // it cannot report what it has
  std::atomic<int> unread{0};       // descriptions, from the first

 private:
  const int failures_;
  std::atomic<int> calls_{0};
};

class TierWorkerTest : public ::testing::Test {
 protected:
  // With `waits`, the tier reports nothing until the test allows it.
  void Start(int failures, std::vector<DiskTier::Entry> told = {}, bool waits = false) {
    tier_.emplace(medium_, failures);
    tier_->told = std::move(told);
    tier_->waits = waits;
    work_.emplace(*tier_, f_.store(), clock_, 1, ByteCount(0),
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
    work_->StartRecovery([this](const absl::Status& status, uint64_t, Duration) {
      MutexLock lock(mu_);
      heard_.push_back(status.code());
    });
  }
  // Puts a block on disk as an earlier process left it.
  void PutOnDisk(uint64_t number) {
    MemoryDiskTier tier(MiB(64), medium_);
    ASSERT_TRUE(testing::RecoverAll(tier).empty());
    ASSERT_EQ(testing::PutOne(tier, DiskBlock(number, 1, 1000)).status, DiskTier::PutStatus::kOk);
  }
  std::vector<absl::StatusCode> heard() {
    MutexLock lock(mu_);
    return heard_;
  }
  // An earlier process leaves block 1 on disk.  Returns its name.
  Digest LeaveOnDisk() {
    testing::Process former(medium_, MiB(64));
    return former.PutThrough(1);
  }
  BlockStatus PutOne(std::byte fill) { return f_.Put(Digest{}, 1, testing::kBlockBytes, fill); }
  // Publishes as a staged publish does.
  BlockStatus CopyOne(std::byte fill, const std::function<void()>& while_claimed = {}) {
    const ByteCount size(testing::kBlockBytes);
    BlockStore::ReserveResult room = f_.store().Reserve({&size, 1}, size);
    LARDER_CHECK(room.status == BlockStatus::kOk);
    const std::vector<uint32_t> tokens = testing::TestTokens(1);
    SegmentTable table = UniformTable(1, testing::kBlockBytes);
    const BlockStore::NewBlock block{f_.variant(), Chain(Digest{}, tokens).back(), Digest{}, tokens,
                                     &table};
    EntryRef claim;
    const BlockStatus claimed = f_.store().Claim(room.reservation, 0, block, &claim);
    if (claimed != BlockStatus::kOk) return claimed;
    const std::span<std::byte> to =
        f_.store().Bytes(room.reservation.extent(0)).first(size.value());
    std::fill(to.begin(), to.end(), fill);
    HashPayload(to, &table);
    if (while_claimed) while_claimed();
    return f_.store().Fill(room.reservation, 0, block, claim);
  }
  // Flips one bit of the block in the pool.
  void Flip(const Digest& digest) {
    const BlockIndex::Held held = f_.store().HoldUntouched(f_.variant(), digest);
    ASSERT_TRUE(InHost(held.state));
    f_.store().Bytes(held.extent)[7] ^= std::byte{4};
    f_.store().Unhold({&held.ref, 1});
  }
  TierSet TiersOf(const Digest& digest) {
    BlockIndex::Presence presence;
    f_.store().index().Lookup(f_.variant(), {&digest, 1}, {&presence, 1});
    return presence.tiers;
  }
  size_t Records() {
    MutexLock lock(medium_.mu);
    return medium_.records.size();
  }

  MemoryDiskTier::Medium medium_;
  SteadyClock clock_;
  StoreFixture f_;
  Mutex mu_;
  std::vector<absl::StatusCode> heard_ LARDER_GUARDED_BY(mu_);
  std::optional<LateTier> tier_;
  std::optional<TierWorker> work_;
};

// The worker reports that something is missing and that it is back, and nothing in between.
TEST_F(TierWorkerTest, ReportsAnAbsentDiskOnceAndItsReturnOnce) {
  Start(/*failures=*/3);
  EXPECT_TRUE(Eventually([&] { return heard().size() >= 2 && tier_->calls() == 4; }));
  EXPECT_EQ(heard(), (std::vector{absl::StatusCode::kUnavailable, absl::StatusCode::kOk}));
  EXPECT_FALSE(work_->recovering());
}

TEST_F(TierWorkerTest, ReportsASuccessfulRecoveryOnce) {
  Start(/*failures=*/0);
  EXPECT_TRUE(Eventually([&] { return !work_->recovering(); }));
  work_.reset();
  EXPECT_EQ(heard(), std::vector{absl::StatusCode::kOk});
}

// A disk reports blocks in its own order, so children may come before their parents.
TEST_F(TierWorkerTest, ChildrenAreCountedOnceEverythingIsReported) {
  Digest variant, first, second;
  first.bytes.fill(std::byte{1});
  second.bytes.fill(std::byte{2});
  const auto entry = [&](const Digest& digest, const Digest& parent, uint64_t location) {
    return DiskTier::Entry{.key = {.variant = variant, .digest = digest},
                           .location = DiskLocation{location},
                           .parent = parent,
                           .payload_bytes = KiB(4),
                           .raw_pages = 1,
                           .disk_bytes = KiB(8)};
  };
  Start(/*failures=*/0, {entry(second, first, 1), entry(first, Digest{}, 2)});
  ASSERT_TRUE(Eventually([&] { return !work_->recovering(); }));
  std::map<Digest, uint32_t> children;
  f_.store().index().ForEach(
      [&](const BlockIndex::View& view) { children[view.digest] = view.children; });
  EXPECT_EQ(children, (std::map<Digest, uint32_t>{{first, 1}, {second, 0}}));
}

// A block whose name is claimed when it is found stays on disk, and is placed later.
TEST_F(TierWorkerTest, AClaimedNameLosesNoBlockOnDisk) {
  PutOnDisk(1);
  EntryRef claim;
  const BlockKey key = DiskBlock(1, 1, 1000).key();
  const VariantIndex variant = *f_.store().index().InternVariant(key.variant);
  ASSERT_EQ(f_.store().index().Claim(variant, key.digest, &claim),
            BlockIndex::InsertResult::kInserted);
  Start(/*failures=*/0);
  EXPECT_TRUE(Eventually([&] { return tier_->calls() >= 3; }))
      << "the block must be reported again";
  EXPECT_FALSE(work_->recovering());
  EXPECT_FALSE(work_->all_known());
  EXPECT_EQ(work_->stats().tier.unplaced, 1u);
  EXPECT_EQ(work_->stats().tier.blocks, 1u);
  f_.store().index().Abandon(claim);
  EXPECT_TRUE(Eventually([&] { return work_->all_known(); }));
  EXPECT_EQ(work_->stats().tier.unplaced, 0u);
  EXPECT_EQ(work_->stats().recovered_blocks, 1u);
  BlockIndex::Presence presence;
  f_.store().index().Lookup(variant, {&key.digest, 1}, {&presence, 1});
  EXPECT_NE(presence.tiers, 0u);
}

// Such a claim does not take the name: the block that was on disk before it keeps it.
TEST_F(TierWorkerTest, AClaimedNameKeepsTheBytesOnDisk) {
  const Digest digest = LeaveOnDisk();
  EXPECT_EQ(CopyOne(std::byte{99},
                    [&] {
                      Start(/*failures=*/0);
                      EXPECT_TRUE(Eventually([&] { return tier_->calls() >= 2; }));
                      EXPECT_FALSE(work_->recovering());
                      EXPECT_EQ(work_->stats().tier.unplaced, 1u);
                    }),
            BlockStatus::kDuplicate);
  EXPECT_TRUE(Eventually([&] { return work_->all_known(); }));
  EXPECT_EQ(TiersOf(digest), TierBit(Tier::kDisk));
  EXPECT_EQ(Records(), 1u);
  EXPECT_FALSE(f_.store().asks_disk()) << "the disk has reported everything";
}

// Numbers of variants are never released, so only the next daemon has free ones again.
TEST_F(TierWorkerTest, ABlockWithoutAVariantNumberStaysOnDisk) {
  PutOnDisk(1);
  Digest other;
  absl::Status status;
  for (uint64_t i = 1; status.ok(); ++i) {
    std::memcpy(other.bytes.data(), &i, sizeof i);
    status = f_.store().index().InternVariant(other).status();
    ASSERT_LT(i, 100'000u);
  }
  Start(/*failures=*/0);
  EXPECT_TRUE(Eventually([&] { return tier_->calls() >= 3; }));
  EXPECT_EQ(work_->stats().tier.unplaced, 1u);
  work_.reset();
  StoreFixture next;
  MemoryDiskTier tier(MiB(64), medium_);
  EXPECT_EQ(testing::RecoverInto(next.store(), tier), 1u);
  EXPECT_EQ(tier.stats().unplaced, 0u);
}

// A block that an earlier daemon left has its name, even if this daemon has not been told about it
// yet.
TEST_F(TierWorkerTest, UnreportedBlocksKeepTheirNames) {
  const Digest digest = LeaveOnDisk();
  Start(/*failures=*/0, {}, /*waits=*/true);
  EXPECT_EQ(PutOne(std::byte{99}), BlockStatus::kDuplicate);
  EXPECT_EQ(CopyOne(std::byte{99}), BlockStatus::kDuplicate);
  EXPECT_EQ(TiersOf(digest), 0) << "the block is not in the index yet";
  tier_->waits = false;
  ASSERT_TRUE(Eventually([&] { return !work_->recovering(); }));
  EXPECT_EQ(TiersOf(digest), testing::kDiskBit);
  EXPECT_EQ(PutOne(std::byte{99}), BlockStatus::kDuplicate);
  f_.store().CheckInvariants();
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(0));
}

// A name is not free either while the disk cannot tell whose it is: no writer is answered OK or
// DUPLICATE.
TEST_F(TierWorkerTest, ANameThatTheDiskCannotLookUpIsRefused) {
  const Digest digest = LeaveOnDisk();
  Start(/*failures=*/0, {}, /*waits=*/true);
  tier_->unreadable = true;
  EXPECT_EQ(PutOne(std::byte{99}), BlockStatus::kFull);
  EXPECT_EQ(CopyOne(std::byte{99}), BlockStatus::kFull);
  tier_->unreadable = false;
  EXPECT_EQ(TiersOf(digest), 0);
  EXPECT_EQ(PutOne(std::byte{99}), BlockStatus::kDuplicate);
  EXPECT_EQ(PutOne(std::byte{1}), BlockStatus::kOk) << "the same bytes as the record's";
  tier_->waits = false;
  ASSERT_TRUE(Eventually([&] { return !work_->recovering(); }));
  EXPECT_EQ(TiersOf(digest), testing::kHostBit | testing::kDiskBit);
  f_.store().CheckInvariants();
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(0));
}

TEST_F(TierWorkerTest, TheSameBytesAreAcceptedAndKeepTheirDurableCopy) {
  const Digest digest = LeaveOnDisk();
  for (const bool staged : {false, true}) {
    SCOPED_TRACE(staged);
    Start(/*failures=*/0, {}, /*waits=*/true);
    EXPECT_EQ(staged ? CopyOne(std::byte{1}) : PutOne(std::byte{1}), BlockStatus::kOk);
    EXPECT_EQ(TiersOf(digest), testing::kHostBit);
    tier_->waits = false;
    ASSERT_TRUE(Eventually([&] { return !work_->recovering(); }));
    EXPECT_EQ(TiersOf(digest), testing::kHostBit | testing::kDiskBit);
    work_.reset();
    EXPECT_EQ(Records(), 1u);
    ASSERT_TRUE(f_.store().Drop(f_.variant(), digest));
    (void)f_.store().TakeFreedExtents(1);
  }
}

// The start does not wait for a part of the disk that failed.  A block that was published meanwhile
// was read by engines, so it stays; a record of the same bytes stays as well.
TEST_F(TierWorkerTest, ALateReportDoesNotReplaceABlockInThePool) {
  const Digest digest = LeaveOnDisk();
  for (const std::byte fill : {std::byte{1}, std::byte{99}}) {
    SCOPED_TRACE(static_cast<int>(fill));
    Start(/*failures=*/1);
    ASSERT_TRUE(Eventually([&] { return !work_->recovering(); }));
    EXPECT_EQ(PutOne(fill), BlockStatus::kOk);
    ASSERT_TRUE(Eventually([&] { return work_->all_known(); }));
    const bool same = fill == std::byte{1};
    EXPECT_EQ(TiersOf(digest), testing::kHostBit | (same ? testing::kDiskBit : 0));
    EXPECT_EQ(Records(), same ? 1u : 0u);
    work_.reset();
    ASSERT_TRUE(f_.store().Drop(f_.variant(), digest));
    (void)f_.store().TakeFreedExtents(1);
  }
}

// The part could not be asked for its names, and opens while the rest is being reported.
TEST_F(TierWorkerTest, ARecordOfAClosedPartIsNotJoinedWithOtherBytes) {
  const Digest digest = LeaveOnDisk();
  for (const std::byte fill : {std::byte{1}, std::byte{99}}) {
    SCOPED_TRACE(static_cast<int>(fill));
    Start(/*failures=*/0, {}, /*waits=*/true);
    tier_->closed = true;
    EXPECT_EQ(PutOne(fill), BlockStatus::kOk);
    tier_->closed = false;
    tier_->waits = false;
    ASSERT_TRUE(Eventually([&] { return !work_->recovering(); }));
    const bool same = fill == std::byte{1};
    EXPECT_EQ(TiersOf(digest), testing::kHostBit | (same ? testing::kDiskBit : 0));
    EXPECT_EQ(Records(), same ? 1u : 0u);
    EXPECT_TRUE(work_->all_known());
    work_.reset();
    ASSERT_TRUE(f_.store().Drop(f_.variant(), digest));
    (void)f_.store().TakeFreedExtents(1);
  }
}

// A record that cannot be compared now is neither joined with the block in the pool nor erased.
TEST_F(TierWorkerTest, ATemporarilyUnreadableRecordStays) {
  const Digest digest = LeaveOnDisk();
  Start(/*failures=*/0, {}, /*waits=*/true);
  EXPECT_EQ(PutOne(std::byte{1}), BlockStatus::kOk);
  tier_->unread = 2;
  tier_->waits = false;
  EXPECT_TRUE(Eventually([&] { return work_->all_known(); }));
  EXPECT_EQ(tier_->calls(), 3);
  EXPECT_EQ(TiersOf(digest), testing::kHostBit | testing::kDiskBit);
  EXPECT_EQ(Records(), 1u);
}

// The damaged copy is not what its writer put there, so the record alone is the block.
TEST_F(TierWorkerTest, ADamagedBlockInThePoolDoesNotEraseTheRecord) {
  const Digest digest = LeaveOnDisk();
  Start(/*failures=*/0, {}, /*waits=*/true);
  EXPECT_EQ(PutOne(std::byte{1}), BlockStatus::kOk);
  Flip(digest);
  tier_->waits = false;
  EXPECT_TRUE(Eventually([&] { return work_->all_known(); }));
  EXPECT_EQ(TiersOf(digest), testing::kDiskBit);
  EXPECT_EQ(Records(), 1u);
  f_.store().CheckInvariants();
}

// If Compress has encoded the record, it is not known whether the bytes are the same.
TEST_F(TierWorkerTest, AnEncodedRecordWaitsUntilItsNameLeavesThePool) {
  const Digest digest = LeaveOnDisk();
  {
    MutexLock lock(medium_.mu);
    Segment& segment = medium_.records.begin()->second.header.table.segments[0];
    segment.codec = Codec::kLossless;
    segment.raw_bytes = segment.bytes;
  }
  Start(/*failures=*/1, {}, /*waits=*/true);
  tier_->closed = true;
  EXPECT_EQ(PutOne(std::byte{1}), BlockStatus::kOk);
  tier_->closed = false;
  tier_->waits = false;
  EXPECT_TRUE(Eventually([&] { return tier_->calls() >= 3; }));
  EXPECT_EQ(TiersOf(digest), testing::kHostBit);
  EXPECT_EQ(work_->stats().tier.unplaced, 1u);
  EXPECT_EQ(Records(), 1u);
  ASSERT_TRUE(f_.store().Drop(f_.variant(), digest));
  EXPECT_TRUE(Eventually([&] { return work_->all_known(); }));
  EXPECT_EQ(TiersOf(digest), testing::kDiskBit);
  EXPECT_EQ(Records(), 1u);
}

// Blocks of that part that cannot be placed at once keep their names from then on.
TEST_F(TierWorkerTest, NamesOfAPartThatOpensLateAreLookedUp) {
  const Digest digest = LeaveOnDisk();
  EXPECT_EQ(CopyOne(std::byte{99},
                    [&] {
                      Start(/*failures=*/1);
                      EXPECT_TRUE(Eventually([&] { return tier_->calls() >= 3; }));
                      EXPECT_EQ(work_->stats().tier.unplaced, 1u);
                      EXPECT_TRUE(f_.store().asks_disk());
                    }),
            BlockStatus::kDuplicate);
  EXPECT_TRUE(Eventually([&] { return work_->all_known(); }));
  EXPECT_EQ(TiersOf(digest), testing::kDiskBit);
  EXPECT_EQ(Records(), 1u);
  EXPECT_FALSE(f_.store().asks_disk());
}

// A tier that reports nothing until the test allows it.
class WaitingTier final : public testing::ForwardingTier {
 public:
  using ForwardingTier::ForwardingTier;
  absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                       absl::FunctionRef<bool()> stop) override {
    (void)SpinUntil(std::chrono::steady_clock::now() + 60s, [this] { return !waits; });
    return ForwardingTier::Recover(owner_of, stop);
  }
  std::atomic<bool> waits{true};
};

// The same on files: a shard that could not be opened at the start opens while the others are
// scanned.  Each name yields the bytes of one writer all the time.
TEST(TierWorkerOnFiles, AShardThatOpensDuringTheScanBringsNoOtherBytes) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "Debian's RocksDB is not instrumented, so its hand-overs look like races";
#endif
  constexpr uint32_t kBlocks = 24;
  const TemporaryDirectory directory;
  FaultPoints faults;
  SteadyClock clock;
  std::unique_ptr<FileDiskTier> files;
  const auto open = [&] {
    auto opened = FileDiskTier::Open({.directory = directory.path() + "/disk",
                                      .limit = MiB(160),
                                      .faults = &faults,
                                      .faulty_shard = 1,
                                      .warn = {}});
    ASSERT_TRUE(opened.ok()) << opened.status();
    files = *std::move(opened);
  };
  const auto eventually = [](const std::function<bool()>& condition) {
    return SpinUntil(std::chrono::steady_clock::now() + 60s, condition);
  };
  const auto told = [](SessionId, VariantIndex, std::span<const Digest>) {};
  std::vector<Digest> digests(kBlocks);
  ASSERT_NO_FATAL_FAILURE(open());
  {
    StoreFixture f;
    TierWorker work(*files, f.store(), clock, 1, ByteCount(0), told);
    work.StartRecovery([](const absl::Status&, uint64_t, Duration) {});
    ASSERT_TRUE(eventually([&] { return work.all_known(); }));
    for (uint32_t i = 0; i < kBlocks; ++i) {  // one at a time, so that they go to all shards
      ASSERT_EQ(f.Put({}, i + 1, testing::kBlockBytes, std::byte{1}, &digests[i]),
                BlockStatus::kOk);
      work.spiller().Offer({}, f.variant(), digests[i]);
      ASSERT_TRUE(work.spiller().WaitIdle(std::chrono::steady_clock::now() + 60s));
    }
    ASSERT_EQ(work.stats().tier.blocks, kBlocks);
  }
  files.reset();
  ASSERT_TRUE(faults.Arm("catalog.open=error").ok());
  ASSERT_NO_FATAL_FAILURE(open());
  StoreFixture f;
  WaitingTier tier(*files);
  TierWorker work(tier, f.store(), clock, 1, ByteCount(0), told);
  work.StartRecovery([](const absl::Status&, uint64_t, Duration) {});
  std::vector<bool> other;  // whose name was free while the shard was closed
  for (uint32_t i = 0; i < kBlocks; ++i)
    other.push_back(f.Put({}, i + 1, testing::kBlockBytes, std::byte{99}) == BlockStatus::kOk);
  const auto others = static_cast<size_t>(std::count(other.begin(), other.end(), true));
  EXPECT_GT(others, 0u);
  EXPECT_LT(others, size_t{kBlocks});
  ASSERT_TRUE(faults.Arm("").ok());
  tier.waits = false;
  ASSERT_TRUE(eventually([&] { return work.all_known(); }));
  for (uint32_t i = 0; i < kBlocks; ++i) {
    BlockIndex::Presence presence;
    f.store().index().Lookup(f.variant(), {&digests[i], 1}, {&presence, 1});
    EXPECT_EQ(presence.tiers, other[i] ? testing::kHostBit : testing::kDiskBit) << i;
  }
  EXPECT_EQ(work.stats().tier.blocks, kBlocks - others);
  while (f.store().index().EvictOne(0)) {
  }
  for (uint32_t i = 0; i < kBlocks; ++i) {
    std::atomic<int> answer{-1};
    ASSERT_TRUE(work.Promote(f.variant(), {&digests[i], 1}, [&](size_t, BlockStatus status) {
      answer = static_cast<int>(status);
    }));
    ASSERT_TRUE(eventually([&] { return answer >= 0; }));
    const BlockStatus expected = other[i] ? BlockStatus::kMissing : BlockStatus::kOk;
    EXPECT_EQ(answer, static_cast<int>(expected)) << i;
  }
}

TEST_F(TierWorkerTest, EndsEvenIfTheDiskStaysAway) {
  Start(/*failures=*/1'000'000);
  EXPECT_TRUE(Eventually([&] { return tier_->calls() >= 2; }));
  work_.reset();
  EXPECT_EQ(heard(), std::vector{absl::StatusCode::kUnavailable});
}

}  // namespace
}  // namespace larder
