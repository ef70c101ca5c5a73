#include "storage/store/block_store.h"

#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include "server/sessions/quarantine.h"
#include "tests/storage/store/store_fixture.h"

namespace larder {
namespace {

using testing::StoreFixture;
using testing::TestTokens;

constexpr ByteCount kAll(1ull << 40);

BlockStore::AcquireResult AcquireOne(StoreFixture& f, const Digest& digest) {
  return f.store().Acquire(f.variant(), {&digest, 1}, kAll);
}

TEST(BlockStore, PublishedBlockIsFoundWithItsBytes) {
  StoreFixture f;
  Digest digest;
  ASSERT_EQ(f.Put({}, 1, 10000, std::byte{7}, &digest), BlockStatus::kOk);
  auto got = AcquireOne(f, digest);
  ASSERT_NE(got.blocks[0].ref.value, 0u);
  EXPECT_EQ(f.store().Bytes(got.blocks[0].extent)[9999], std::byte{7});
  EXPECT_EQ(got.blocks[0].metadata->payload_bytes(), ByteCount(10000));
  EXPECT_EQ(got.blocks[0].metadata->tokens().size(), 16u);
  EXPECT_EQ(got.lease.held_bytes(), ByteCount(12288));
  f.store().CheckInvariants();
}

TEST(BlockStore, FirstWriterWins) {
  StoreFixture f;
  Digest digest;
  ASSERT_EQ(f.Put({}, 1, 4096, std::byte{1}, &digest), BlockStatus::kOk);
  const ByteCount free = f.store().stats().pool_free;
  EXPECT_EQ(f.Put({}, 1, 4096, std::byte{2}), BlockStatus::kDuplicate);
  EXPECT_EQ(f.store().stats().pool_free, free);  // the second writer's extent was freed
  EXPECT_EQ(f.store().Bytes(AcquireOne(f, digest).blocks[0].extent)[0], std::byte{1});
}

TEST(BlockStore, ALeaseHoldsARepeatedlyNamedBlockOnce) {
  StoreFixture f;
  Digest digest, other;
  ASSERT_EQ(f.Put({}, 1, 10000, std::byte{1}, &digest), BlockStatus::kOk);
  ASSERT_EQ(f.Put({}, 2, 10000, std::byte{2}, &other), BlockStatus::kOk);
  std::vector<Digest> names(4096, digest);
  names[1] = other;
  auto got = f.store().Acquire(f.variant(), names, KiB(24));  // enough for both blocks, once
  EXPECT_EQ(got.lease.size(), 2u);
  EXPECT_EQ(got.lease.held_bytes(), KiB(24));
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_EQ(got.blocks[i].ref, got.blocks[i == 1 ? 1 : 0].ref) << i;
    ASSERT_EQ(got.blocks[i].repeated, i > 1) << i;
  }
  std::map<Digest, uint32_t> holds;
  f.store().index().ForEach([&](const BlockIndex::View& view) { holds[view.digest] = view.holds; });
  EXPECT_EQ(holds, (std::map<Digest, uint32_t>{{digest, 1}, {other, 1}}));
  got.lease.Reset();
  // If the limit leaves no bytes for a block, its repetitions get none either.
  got = f.store().Acquire(f.variant(), names, KiB(4));
  EXPECT_EQ(got.lease.size(), 0u);
  for (const BlockIndex::Held& held : got.blocks) EXPECT_TRUE(held.full);
  f.store().CheckInvariants();
}

TEST(BlockStore, ADroppedReservationIsFreed) {
  StoreFixture f;
  const ByteCount before = f.store().stats().pool_free;
  {
    const std::vector<ByteCount> sizes = {KiB(4), KiB(100), MiB(1)};
    auto r = f.store().Reserve(sizes, kAll);
    ASSERT_EQ(r.status, BlockStatus::kOk);
    EXPECT_EQ(f.store().stats().pool_reserved, KiB(4 + 100 + 1024));
    r.reservation.Return(1);
    EXPECT_TRUE(r.reservation.open(0) && !r.reservation.open(1) && r.reservation.open(2));
    EXPECT_EQ(f.store().stats().pool_reserved, KiB(4 + 1024));
  }
  EXPECT_EQ(f.store().stats().pool_free, before);
  EXPECT_EQ(f.store().stats().reservations, 0u);
}

TEST(BlockStore, ASplitReservationIsIndependent) {
  StoreFixture f;
  const ByteCount before = f.store().stats().pool_free;
  const std::vector<ByteCount> sizes = {KiB(4), KiB(100)};
  auto r = f.store().Reserve(sizes, kAll);
  ASSERT_EQ(r.status, BlockStatus::kOk);
  ExtentReservation one = r.reservation.Split(1);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one.held_bytes(), KiB(100));
  EXPECT_EQ(one.bytes(0), KiB(100));
  EXPECT_FALSE(r.reservation.open(1));
  EXPECT_EQ(r.reservation.held_bytes(), KiB(4));
  EXPECT_EQ(r.reservation.Split(1).size(), 0u) << "the slot was split off already";
  EXPECT_EQ(r.reservation.Split(7).size(), 0u);
  r.reservation.Reset();
  EXPECT_EQ(f.store().stats().pool_reserved, KiB(100));
  f.store().CheckInvariants();
  one.Reset();
  EXPECT_EQ(f.store().stats().pool_free, before);
  EXPECT_EQ(f.store().stats().reservations, 0u);
}

TEST(BlockStore, RefusesReservationsThatCannotFit) {
  StoreFixture f;
  const ByteCount over_slab = MiB(2) + ByteCount(1);
  EXPECT_EQ(f.store().Reserve({&over_slab, 1}, kAll).status, BlockStatus::kInvalid);
  const ByteCount none(0);
  EXPECT_EQ(f.store().Reserve({&none, 1}, kAll).status, BlockStatus::kInvalid);
  const ByteCount one = MiB(1);
  const auto full = f.store().Reserve({&one, 1}, KiB(512));  // more than the caller's budget
  EXPECT_EQ(full.status, BlockStatus::kFull);
  EXPECT_GT(full.retry_after.count(), 0);
}

TEST(BlockStore, ReserveIsAllOrNothing) {
  StoreFixture f;
  const std::vector<ByteCount> sizes(9, MiB(1));  // pool: 8 MiB
  EXPECT_EQ(f.store().Reserve(sizes, kAll).status, BlockStatus::kFull);
  EXPECT_EQ(f.store().stats().pool_free, MiB(8));
  f.store().CheckInvariants();
}

TEST(BlockStore, ReserveEvictsOnlyUnheldBlocks) {
  StoreFixture f;
  std::vector<Digest> digests(8);
  for (uint32_t i = 0; i < 8; ++i)
    ASSERT_EQ(f.Put({}, i, 1 << 20, std::byte(i), &digests[i]), BlockStatus::kOk);
  auto held = f.store().Acquire(f.variant(), digests, MiB(3));  // the first three
  EXPECT_EQ(held.lease.size(), 3u);
  EXPECT_TRUE(held.blocks[3].full);
  for (uint32_t i = 100; i < 105; ++i)
    EXPECT_EQ(f.Put({}, i, 1 << 20, std::byte{9}), BlockStatus::kOk);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f.store().Bytes(held.blocks[i].extent)[77], std::byte(i));
  const std::vector<ByteCount> six(6, MiB(1));
  EXPECT_EQ(f.store().Reserve(six, kAll).status, BlockStatus::kFull);  // five can be evicted
  f.store().CheckInvariants();
}

// Everything that a caller can see of each block, with its first byte.
using Seen = std::map<Digest, std::tuple<BlockState, Extent, uint64_t, uint16_t, std::byte>>;
Seen SeenOf(StoreFixture& f) {
  Seen seen;
  f.store().index().ForEach([&](const BlockIndex::View& view) {
    seen[view.digest] = {view.state, view.extent, view.disk_location, view.holds,
                         f.store().Bytes(view.extent)[0]};
  });
  return seen;
}

// The pool has enough free bytes in total, but not in one run: the blocks that were evicted for the
// attempt are back afterwards.
TEST(BlockStore, AFailedReserveEvictsNothing) {
  StoreFixture f;  // four slabs of 2 MiB
  std::vector<Digest> digests(128);
  for (uint32_t i = 0; i < digests.size(); ++i) {
    ASSERT_EQ(f.Put({}, i, 64 << 10, std::byte(i), &digests[i]), BlockStatus::kOk);
    if (i % 3 != 0) continue;  // some are also on disk
    const BlockIndex::Held held = f.store().HoldUntouched(f.variant(), digests[i]);
    ASSERT_EQ(f.store().SetOnDisk(held.ref, 1000 + i), 0u);
    f.store().Unhold({&held.ref, 1});
  }
  std::vector<Digest> read;  // one in each slab
  for (uint32_t i = 16; i < digests.size(); i += 32) read.push_back(digests[i]);
  const auto lease = f.store().Acquire(f.variant(), read, kAll);
  ASSERT_EQ(lease.lease.size(), 4u);
  const Seen before = SeenOf(f);
  const std::vector<std::vector<ByteCount>> wishes = {
      {MiB(2)}, {KiB(64), KiB(64), MiB(2)}, std::vector<ByteCount>(125, KiB(64))};
  for (const std::vector<ByteCount>& sizes : wishes) {
    EXPECT_EQ(f.store().Reserve(sizes, kAll).status, BlockStatus::kFull);
    EXPECT_EQ(SeenOf(f), before);
    f.store().CheckInvariants();
  }
  const BlockStore::Stats stats = f.store().stats();
  EXPECT_EQ(stats.evicted_demand + stats.evicted_unspilled, 0u);
  EXPECT_EQ(stats.pool_reserved + stats.pool_free, ByteCount(0));
  // The blocks can still be evicted as usual.
  EXPECT_EQ(f.store().Reserve(std::vector<ByteCount>(124, KiB(64)), kAll).status, BlockStatus::kOk);
  EXPECT_EQ(f.store().stats().evicted_demand, 124u);
  f.store().CheckInvariants();
}

TEST(BlockStore, AClearedBlockKeepsItsBytesWhileItIsHeld) {
  StoreFixture f;
  Digest digest;
  ASSERT_EQ(f.Put({}, 1, 4096, std::byte{5}, &digest), BlockStatus::kOk);
  auto held = AcquireOne(f, digest);
  const ByteCount free = f.store().stats().pool_free;
  EXPECT_TRUE(f.store().Drop(f.variant(), digest));
  EXPECT_FALSE(f.store().Drop(f.variant(), digest));
  EXPECT_EQ(AcquireOne(f, digest).lease.size(), 0u);
  EXPECT_EQ(f.store().stats().pool_free, free);
  EXPECT_EQ(f.store().Bytes(held.blocks[0].extent)[0], std::byte{5});
  held.lease.Reset();
  EXPECT_EQ(f.store().stats().pool_free, free + KiB(4));
  f.store().CheckInvariants();
}

TEST(BlockStore, DamageIsDetectedAndTheBlockDropped) {
  StoreFixture f;
  Digest digest;
  ASSERT_EQ(f.Put({}, 1, 4096, std::byte{5}, &digest), BlockStatus::kOk);
  auto held = AcquireOne(f, digest);
  const SegmentRange all{0, 1, 0, 4096};
  EXPECT_TRUE(f.store().Check(held.blocks[0], all));
  f.store().Bytes(held.blocks[0].extent)[100] = std::byte{6};
  EXPECT_FALSE(f.store().Check(held.blocks[0], all));
  f.store().DropDamaged(held.blocks[0].ref);
  EXPECT_EQ(f.store().stats().damaged, 1u);
  EXPECT_EQ(AcquireOne(f, digest).lease.size(), 0u);
}

TEST(BlockStore, AStagedBlockIsInvisibleUntilItIsFilled) {
  StoreFixture f;
  const ByteCount size = KiB(8);
  auto r = f.store().Reserve({&size, 1}, kAll);
  const auto tokens = TestTokens(3);
  const Digest digest = Chain({}, tokens).back();
  SegmentTable table = UniformTable(1, 8192);
  const BlockStore::NewBlock block{f.variant(), digest, {}, tokens, &table};
  EntryRef claim;
  ASSERT_EQ(f.store().Claim(r.reservation, 0, block, &claim), BlockStatus::kOk);
  EXPECT_EQ(AcquireOne(f, digest).lease.size(), 0u);
  EXPECT_EQ(f.Put({}, 3, 8192, std::byte{1}), BlockStatus::kDuplicate);
  f.store().Fill(r.reservation, 0, block, claim);
  EXPECT_EQ(AcquireOne(f, digest).lease.size(), 1u);

  const auto other = TestTokens(4);
  const Digest second = Chain({}, other).back();
  auto r2 = f.store().Reserve({&size, 1}, kAll);
  const BlockStore::NewBlock block2{f.variant(), second, {}, other, &table};
  ASSERT_EQ(f.store().Claim(r2.reservation, 0, block2, &claim), BlockStatus::kOk);
  f.store().Abandon(claim);
  EXPECT_EQ(f.Put({}, 4, 8192, std::byte{1}), BlockStatus::kOk);
  f.store().CheckInvariants();
}

TEST(BlockStore, ALargeBlockFitsAmongManySmallOnes) {
  StoreFixture f;
  for (uint32_t i = 0; i < 2048; ++i) ASSERT_EQ(f.Put({}, i, 4096, std::byte{1}), BlockStatus::kOk);
  ASSERT_EQ(f.store().stats().pool_free, ByteCount(0));
  // The block needs a whole slab in one run, but the pool must not be emptied for it.
  EXPECT_EQ(f.Put({}, 9999, 2 << 20, std::byte{2}), BlockStatus::kOk);
  EXPECT_GT(f.store().stats().blocks, 500u);
  f.store().CheckInvariants();
}

TEST(BlockStore, WatermarkEvictsInTheBackground) {
  BlockStore::Options options;
  options.free_watermark = 0.25;
  StoreFixture f(MiB(8), MiB(2), options);
  for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(f.Put({}, i, 1 << 20, std::byte{1}), BlockStatus::kOk);
  EXPECT_EQ(f.store().EvictToWatermark(1), 1u);
  EXPECT_EQ(f.store().EvictToWatermark(100), 1u);
  EXPECT_GE(f.store().stats().pool_free, MiB(2));
  EXPECT_EQ(f.store().EvictToWatermark(100), 0u);
}

TEST(Quarantine, HoldsUntilReleased) {
  StoreFixture f;
  Quarantine quarantine;
  Digest digest;
  ASSERT_EQ(f.Put({}, 1, 4096, std::byte{5}, &digest), BlockStatus::kOk);
  const ByteCount size = KiB(8);
  const ByteCount free = f.store().stats().pool_free;
  std::vector<BlockLease> leases;
  leases.push_back(AcquireOne(f, digest).lease);
  std::vector<ExtentReservation> reservations;
  reservations.push_back(f.store().Reserve({&size, 1}, kAll).reservation);
  EXPECT_FALSE(quarantine.Put(ProcessId{7}, SessionId{1}, {}, {}));
  EXPECT_TRUE(quarantine.Put(ProcessId{7}, SessionId{1}, std::move(leases), {}));
  EXPECT_TRUE(quarantine.Put(ProcessId{7}, SessionId{2}, {}, std::move(reservations)));
  EXPECT_EQ(quarantine.bytes(), KiB(12));
  EXPECT_EQ(f.store().stats().pool_free, free - KiB(8));
  EXPECT_EQ(quarantine.Release(ProcessId{8}), ByteCount(0));
  EXPECT_EQ(quarantine.Release(ProcessId{8}, SessionId{1}), std::nullopt);
  EXPECT_EQ(quarantine.Release(ProcessId{7}, SessionId{3}), std::nullopt);
  EXPECT_EQ(quarantine.Release(ProcessId{7}, SessionId{1}), KiB(4));  // only of this session
  EXPECT_EQ(quarantine.bytes(), KiB(8));
  EXPECT_EQ(quarantine.Release(ProcessId{7}), KiB(8));
  EXPECT_EQ(quarantine.bytes(), ByteCount(0));
  EXPECT_EQ(f.store().stats().pool_free, free);
  EXPECT_EQ(f.store().stats().leases, 0u);
}

}  // namespace
}  // namespace larder
