// Leases on blocks that are encoded in HOST, for sessions that accept the codec and for sessions
// that do not.
#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/sessions/session_driver.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using testing::kBytes;
using testing::SessionTest;

class SessionDecodeTest : public SessionTest {
 protected:
  void SetUp() override { Start(wire::WriteMode::kMapped); }
  void TearDown() override {
    SessionTest::TearDown();
    f_.store().CheckInvariants();
    const BlockStore::Stats stats = f_.store().stats();
    EXPECT_EQ(stats.leases, 0u);
    EXPECT_EQ(stats.pool_reserved, ByteCount(0));
  }
  wire::Grant AcquireAs(std::vector<Codec> accepted, std::vector<Digest> digests) {
    wire::Up up;
    wire::Acquire& acquire = up.acquires.emplace_back();
    acquire.id = 4;
    acquire.digests = std::move(digests);
    acquire.deadline_ms = 1000;
    acquire.accepted_codecs = std::move(accepted);
    acquire.what = wire::AcquireWhat::kBytes;
    EXPECT_TRUE(session_->OnUp(up).ok());
    return sink_.Next().grants.at(0);
  }
  void ExpectReady(uint32_t key, uint32_t seed) {
    const wire::Down down = sink_.Next();
    ASSERT_EQ(down.ready.size(), 1u);
    EXPECT_EQ(down.ready[0].key, key);
    const wire::BlockGrant& block = down.ready[0].block;
    ASSERT_EQ(block.status, BlockStatus::kOk);
    EXPECT_EQ(block.tier, Tier::kHost);
    ASSERT_EQ(block.extent.bytes, kBytes);
    EXPECT_TRUE(std::ranges::all_of(
        Place(block.extent), [&](std::byte b) { return b == static_cast<std::byte>(seed); }));
  }
  BlockStatus Failed() { return sink_.Next().failed.at(0).status; }
};

TEST_F(SessionDecodeTest, EncodedBlocksAreDecodedIntoMemoryOfTheLease) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  ASSERT_EQ(Put(2, std::byte{2}), BlockStatus::kOk);
  const ByteCount stored = f_.store().stats().pool_stored;
  const wire::Grant grant = Acquire({Name(1), Name(2), Name(3)});
  EXPECT_THAT(Statuses(grant),
              ElementsAre(BlockStatus::kPending, BlockStatus::kOk, BlockStatus::kMissing));
  ASSERT_NO_FATAL_FAILURE(ExpectReady(0, 1));
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(kBytes));
  EXPECT_EQ(f_.store().stats().pool_stored, stored) << "the stored block stays encoded";
  EXPECT_EQ(f_.counters().blocks_decoded_for_lease.value(), 1u);
  Release(grant.lease);
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(0));
}

TEST_F(SessionDecodeTest, EncodedBlocksAreGrantedAsTheyAreIfTheCodecIsAccepted) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  const wire::Grant grant = AcquireAs({Codec::kIdentity, Codec::kLossless}, {Name(1)});
  ASSERT_EQ(Statuses(grant), std::vector{BlockStatus::kOk});
  ASSERT_TRUE(grant.blocks[0].table.has_value());
  const SegmentTable& table = *grant.blocks[0].table;
  EXPECT_EQ(table.segments.at(0).codec, Codec::kLossless);
  EXPECT_EQ(table.segments.at(0).raw_bytes, kBytes);
  EXPECT_EQ(grant.blocks[0].extent.bytes, table.PayloadBytes().value());
  std::vector<std::byte> raw(kBytes);
  SegmentTable decoded;
  EXPECT_TRUE(PayloadCodec().Decode(Place(grant.blocks[0].extent), table, raw, &decoded).ok());
  EXPECT_EQ(raw, std::vector<std::byte>(kBytes, std::byte{1}));
  EXPECT_EQ(f_.counters().blocks_decoded_for_lease.value(), 0u);
  Release(grant.lease);
}

TEST_F(SessionDecodeTest, APromiseHoldsAnEncodedBlockWithoutDecodingIt) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  const wire::Grant grant = Acquire({Name(1)}, 1000, wire::AcquireWhat::kPromise);
  EXPECT_EQ(Statuses(grant), std::vector{BlockStatus::kOk});
  Release(grant.lease);
  EXPECT_EQ(f_.counters().blocks_decoded_for_lease.value(), 0u);
}

TEST_F(SessionDecodeTest, EncodedBlocksAreUnsupportedForSessionsWithoutPending) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  End(/*bye=*/true);
  StartAs(f_.Process(getpid(), true), wire::WriteMode::kMapped, /*features=*/0);
  const wire::Grant grant = Acquire({Name(1)});
  EXPECT_EQ(Statuses(grant), std::vector{BlockStatus::kUnsupported});
  EXPECT_FALSE(grant.lease);
}

// A quarter of the pool is 8 MiB.  Each encoded block takes one page, half of its raw size.
TEST_F(SessionDecodeTest, TheLeaseIsChargedForEncodedAndDecodedBytes) {
  const uint32_t fits = static_cast<uint32_t>(MiB(8).value() / (kBytes + kPageBytes));
  std::vector<Digest> names;
  const uint32_t asked = fits + 500;
  for (uint32_t seed = 1; seed <= asked; ++seed) {
    ASSERT_NO_FATAL_FAILURE(PutEncoded(seed));
    names.push_back(Name(seed));
  }
  const wire::Grant grant = Acquire(names);
  const std::vector<BlockStatus> statuses = Statuses(grant);
  const auto pending = std::ranges::count(statuses, BlockStatus::kPending);
  EXPECT_EQ(pending + std::ranges::count(statuses, BlockStatus::kFull), asked);
  EXPECT_GE(pending, 400);
  EXPECT_LE(pending * kBytes + asked * kPageBytes, MiB(8).value())
      << "blocks that are answered FULL are held as well";
  for (int64_t i = 0; i < pending; ++i) EXPECT_EQ(sink_.Next().ready.size(), 1u);
  Release(grant.lease);
  const wire::Grant again = Acquire({Name(1)});
  EXPECT_EQ(Statuses(again), std::vector{BlockStatus::kPending})
      << "the release must have returned the whole charge";
  ASSERT_NO_FATAL_FAILURE(ExpectReady(0, 1));
  Release(again.lease);
}

TEST_F(SessionDecodeTest, ReleasedOrCancelledBlocksAreNotDecoded) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  const std::shared_ptr<std::latch> go = Occupy();
  Release(Acquire({Name(1)}).lease);
  const wire::Grant cancelled = Acquire({Name(1)});
  wire::Up up;
  up.cancels.push_back(4);
  ASSERT_TRUE(session_->OnUp(up).ok());
  go->count_down();
  EXPECT_EQ(Failed(), BlockStatus::kCancelled) << "the released lease gets no answer";
  Release(cancelled.lease);
  EXPECT_EQ(f_.counters().blocks_decoded_for_lease.value(), 0u);
}

TEST_F(SessionDecodeTest, DecodingIsFullWhenTheQueueOfItsProcessIsFull) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  const std::shared_ptr<std::latch> go = Occupy();
  while (
      f_.deps().workers.Submit(ShareHolder{.uid = {}, .process = session_->process()}, 0, [] {})) {
  }
  const wire::Grant grant = Acquire({Name(1)});
  EXPECT_EQ(Statuses(grant), std::vector{BlockStatus::kPending});
  EXPECT_EQ(Failed(), BlockStatus::kFull);
  go->count_down();
  Release(grant.lease);
}

TEST_F(SessionDecodeTest, BlocksAreDecodedThoughAnotherProcessHasFilledItsQueue) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  const std::shared_ptr<std::latch> go = Occupy();
  const ShareHolder other{.uid = {}, .process = ProcessId{session_->process().value + 1}};
  std::atomic<size_t> done = 0;
  size_t queued = 0;
  while (f_.deps().workers.Submit(other, 0, [&done] { ++done; })) ++queued;
  const wire::Grant grant = Acquire({Name(1)});
  EXPECT_EQ(Statuses(grant), std::vector{BlockStatus::kPending});
  go->count_down();
  ASSERT_NO_FATAL_FAILURE(ExpectReady(0, 1));
  Release(grant.lease);
  while (done < queued) std::this_thread::yield();
}

TEST_F(SessionDecodeTest, DamageOfAnEncodedBlockRemovesItsName) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  const auto variant = *f_.store().index().FindVariant(testing::TestVariant().Id());
  const BlockIndex::Held held = f_.store().HoldUntouched(variant, Name(1));
  f_.store().Bytes(held.extent)[20] ^= std::byte{1};
  f_.store().Unhold({&held.ref, 1});
  const wire::Grant grant = Acquire({Name(1)});
  EXPECT_EQ(Failed(), BlockStatus::kDamaged);
  Release(grant.lease);
  EXPECT_EQ(Statuses(Acquire({Name(1)})), std::vector{BlockStatus::kMissing});
  EXPECT_EQ(f_.store().stats().damaged, 1u);
}

// The process may still read the memory, so memory that was decoded for it is not reused before the
// process is done with it.
TEST_F(SessionDecodeTest, DecodedMemoryOfALostSessionIsQuarantined) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  const wire::Grant grant = Acquire({Name(1)});
  ASSERT_NO_FATAL_FAILURE(ExpectReady(0, 1));
  const SessionId id = session_->id();
  const ProcessId process = session_->process();
  End(/*bye=*/false);
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(kBytes));
  EXPECT_EQ(f_.quarantine().Release(process, id), ByteCount(kBytes + kPageBytes));
}

TEST_F(SessionDecodeTest, DecodedMemoryOfARevokedLeaseIsKeptUntilAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  const wire::Grant grant = Acquire({Name(1)});
  ASSERT_NO_FATAL_FAILURE(ExpectReady(0, 1));
  f_.clock().Advance(std::chrono::seconds(2));
  session_->Tick(f_.clock().Now());
  ASSERT_EQ(sink_.Next().revocations.size(), 1u);
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(kBytes));
  wire::Up up;
  up.revoke_ack.emplace().leases.push_back(grant.lease);
  ASSERT_TRUE(session_->OnUp(up).ok());
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(0));
}

}  // namespace
}  // namespace larder
