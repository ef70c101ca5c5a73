// A session that acquires blocks which are on disk alone, while the disk does not answer: what
// happens when it releases, cancels or loses a lease before the blocks are read, and what it may
// acquire meanwhile.
#include <cstring>

#include <gtest/gtest.h>

#include "storage/disk/page_buffer.h"
#include "storage/tiering/tier_worker.h"
#include "tests/server/sessions/session_driver.h"
#include "tests/storage/tiering/gated_tier.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

using testing::GatedTier;
using testing::kBytes;
using testing::SessionTest;
using testing::TestTokens;
using testing::TestVariant;

constexpr uint64_t kMuch = MiB(2).value();  // a quarter of what one session may hold

class SessionDiskTest : public SessionTest {
 protected:
  // Blocks kSmall, kLarge and kOther are on disk.  Blocks kHost to kHost + 4, of kMuch bytes each,
  // are in the pool.
  static constexpr uint32_t kSmall = 1, kLarge = 2, kOther = 3, kHost = 10;
  static constexpr size_t kReaders = 2;

  void SetUp() override {
    LeaveOnDisk();
    disk_.emplace(tier_, f_.store(), f_.clock(), kReaders, ByteCount(0),
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
    f_.deps().disk = &*disk_;
    disk_->StartRecovery([](const absl::Status&, uint64_t, Duration) {});
    ASSERT_TRUE(Eventually([&] { return !disk_->recovering(); }));
    Start(wire::WriteMode::kMapped);
    for (uint32_t seed = kHost; seed < kHost + 5; ++seed) PutMuch(seed);
    tier_.Shut();
  }
  void TearDown() override {
    tier_.Open();
    SessionTest::TearDown();
    if (disk_) ExpectNothingHeld();
  }

  // Writes the blocks as an earlier daemon would have.
  void LeaveOnDisk() {
    MemoryDiskTier former(GiB(1), medium_);
    ASSERT_TRUE(
        former.Recover([](const DiskTier::Entry&) { return 1u; }, [] { return false; }).ok());
    for (const auto& [seed, bytes] :
         {std::pair{kSmall, uint64_t{kBytes}}, {kLarge, kMuch}, {kOther, uint64_t{kBytes}}}) {
      const PageBuffer pages(PagesFor(ByteCount(bytes)));
      std::memset(pages.bytes().data(), static_cast<int>(seed), bytes);
      RecordHeader header;
      header.key = {TestVariant().Id(), Name(seed)};
      header.block_tokens = 16;
      header.layout = TestVariant().layout;
      header.dtype = TestVariant().dtype;
      header.table = UniformTable(1, static_cast<uint32_t>(bytes));
      HashPayload(pages.bytes(), &header.table);
      const std::vector<uint32_t> tokens = TestTokens(seed);
      const DiskTier::NewBlock block{
          .header = &header, .tokens = tokens, .payload = pages.bytes().first(bytes)};
      DiskTier::PutResult result;
      former.Put({&block, 1}, {&result, 1});
      ASSERT_EQ(result.status, DiskTier::PutStatus::kOk);
    }
  }
  void PutMuch(uint32_t seed) {
    const wire::Reserved room = Reserve({ByteCount(kMuch)});
    ASSERT_EQ(room.status, BlockStatus::kOk);
    const auto table = UniformTable(1, static_cast<uint32_t>(kMuch));
    ASSERT_EQ(Publish(room.reservation, {Block(seed, table)}).status.at(0), BlockStatus::kOk);
  }
  static std::vector<Digest> Names(std::initializer_list<uint32_t> seeds) {
    std::vector<Digest> names;
    for (const uint32_t seed : seeds) names.push_back(Name(seed));
    return names;
  }
  static void AddAcquire(uint64_t id, std::vector<Digest> digests, wire::Up* up) {
    wire::Acquire& acquire = up->acquires.emplace_back();
    acquire.id = id;
    acquire.digests = std::move(digests);
    acquire.deadline_ms = 60'000;
    acquire.accepted_codecs = {Codec::kIdentity};
  }
  std::vector<wire::Grant> Grants(wire::Up& up) {
    EXPECT_TRUE(session_->OnUp(up).ok());
    return sink_.Next().grants;
  }
  // Acquires a lease on a block that is on disk alone, which then is being read.
  wire::Grant AcquireReading(uint32_t seed) {
    wire::Up up;
    AddAcquire(7, Names({seed}), &up);
    std::vector<wire::Grant> grants = Grants(up);
    EXPECT_EQ(Statuses(grants.at(0)), std::vector{BlockStatus::kPending});
    EXPECT_EQ(grants[0].blocks[0].tier, Tier::kDisk);
    tier_.AwaitCalls(1);
    return grants.at(0);
  }
  // Lets the tier answer, and waits until all jobs have been answered and their messages are in the
  // sink.
  void OpenAndSettle() {
    tier_.Open();
    ASSERT_TRUE(Eventually([&] { return disk_->promoter().stats().waiting == 0; }));
  }
  // Takes all holds that a block can have except one, so that the hold of an acquire succeeds and
  // the hold of its read fails.
  std::vector<EntryRef> HoldToTheLast(uint32_t seed) {
    const VariantIndex variant = *f_.store().index().FindVariant(TestVariant().Id());
    const BlockIndex::Held held = f_.store().HoldUntouched(variant, Name(seed));
    EXPECT_NE(held.ref.value, 0u);
    std::vector<EntryRef> holds = {held.ref};
    while (f_.store().HoldAgain({&held.ref, 1})) holds.push_back(held.ref);
    f_.store().Unhold({&held.ref, 1});
    holds.pop_back();
    return holds;
  }
  // Expects that the next message says that a request's only block is ready, and that all of its
  // bytes are right.
  void ExpectReady(uint64_t id, uint32_t seed, uint64_t bytes) {
    const wire::Down down = sink_.Next();
    ASSERT_EQ(down.ready.size(), 1u);
    EXPECT_EQ(down.ready[0].id, id);
    EXPECT_EQ(down.ready[0].key, 0u);
    const wire::BlockGrant& block = down.ready[0].block;
    ASSERT_EQ(block.status, BlockStatus::kOk);
    EXPECT_EQ(block.tier, Tier::kDisk);
    ASSERT_EQ(block.extent.bytes, bytes);
    EXPECT_TRUE(std::ranges::all_of(
        Place(block.extent), [seed](std::byte b) { return b == static_cast<std::byte>(seed); }));
  }
  // Expects that a further acquire gets the block, from whichever tier.
  void ExpectReadable(uint32_t seed, uint64_t bytes) {
    wire::Up up;
    AddAcquire(99, Names({seed}), &up);
    const wire::Grant grant = Grants(up).at(0);
    if (grant.blocks.at(0).status == BlockStatus::kPending) {
      ExpectReady(99, seed, bytes);
    } else {
      ASSERT_EQ(grant.blocks[0].status, BlockStatus::kOk);
      EXPECT_EQ(Place(grant.blocks[0].extent)[bytes - 1], static_cast<std::byte>(seed));
    }
    Release(grant.lease);
  }
  [[nodiscard]] size_t Held() {
    size_t held = 0;
    f_.store().index().ForEach([&](const BlockIndex::View& view) { held += view.holds; });
    return held;
  }
  // Expects that nothing holds a block once the disk's threads are done.
  void ExpectNothingHeld() {
    EXPECT_TRUE(
        disk_->spiller().WaitIdle(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
    EXPECT_TRUE(Eventually([&] { return Held() == 0 && f_.store().stats().reservations == 0; }));
    const BlockStore::Stats stats = f_.store().stats();
    EXPECT_EQ(stats.leases, 0u);
    EXPECT_EQ(stats.pool_leased, ByteCount(0));
    EXPECT_EQ(stats.pool_reserved, ByteCount(0));
    EXPECT_EQ(f_.store().index().doomed(), 0u);
    EXPECT_EQ(disk_->promoter().stats().waiting, 0u);
    f_.store().CheckInvariants();
  }

  MemoryDiskTier::Medium medium_;
  GatedTier tier_{GiB(1), medium_};
  std::optional<TierWorker> disk_;
};

TEST_F(SessionDiskTest, ReleaseBeforeTheReadWithAnotherAcquireThatIsFull) {
  wire::Up up;
  AddAcquire(1, Names({kSmall}), &up);
  AddAcquire(2, Names({kHost, kHost + 1, kHost + 2, kHost + 3}), &up);
  const std::vector<wire::Grant> grants = Grants(up);
  ASSERT_EQ(grants.size(), 2u);
  EXPECT_EQ(Statuses(grants[0]), std::vector{BlockStatus::kPending});
  EXPECT_EQ(Statuses(grants[1]), (std::vector{BlockStatus::kOk, BlockStatus::kOk, BlockStatus::kOk,
                                              BlockStatus::kFull}));
  EXPECT_GT(grants[1].retry_after_ms, 0u);
  tier_.AwaitCalls(1);
  EXPECT_EQ(f_.store().stats().leases, 2u);
  Release(grants[0].lease);
  EXPECT_EQ(f_.store().stats().leases, 1u);
  EXPECT_EQ(f_.store().stats().pool_leased, ByteCount(3 * kMuch));
  OpenAndSettle();
  EXPECT_TRUE(sink_.empty()) << "no request waits for the block, so no message is sent";
  Release(grants[1].lease);
  ExpectReadable(kSmall, kBytes);
  EXPECT_EQ(f_.counters().unknown_releases.value(), 0u);
}

// The bytes of the released lease are available to an acquire in the same message, although its
// read has not ended.
TEST_F(SessionDiskTest, AReleaseFreesBytesForAnAcquireInTheSameMessage) {
  const wire::Grant reading = AcquireReading(kLarge);
  wire::Up up;
  up.releases = {reading.lease};
  AddAcquire(8, Names({kHost, kHost + 1, kHost + 2, kHost + 3}), &up);
  const wire::Grant grant = Grants(up).at(0);
  EXPECT_EQ(Statuses(grant), std::vector(4, BlockStatus::kOk));
  EXPECT_EQ(f_.store().stats().leases, 1u);
  EXPECT_EQ(f_.store().stats().pool_leased, ByteCount(4 * kMuch));
  OpenAndSettle();
  EXPECT_TRUE(sink_.empty()) << "no request waits for the block, so no message is sent";
  Release(grant.lease);
  ExpectReadable(kLarge, kMuch);
  EXPECT_EQ(f_.counters().unknown_releases.value(), 0u) << "the lease is released only once";
}

// After the release in the same message, the acquire is granted a second time.  Its block is read
// once, for the lease that the client is told about.
TEST_F(SessionDiskTest, ABlockFromDiskIsReadOnceForAnAcquireThatIsGrantedAgain) {
  const wire::Grant first = Acquire(Names({kHost}));
  wire::Up up;
  up.releases = {first.lease};
  AddAcquire(8, Names({kLarge, kHost + 1, kHost + 2, kHost + 3}), &up);
  const wire::Grant grant = Grants(up).at(0);
  EXPECT_EQ(Statuses(grant), (std::vector{BlockStatus::kPending, BlockStatus::kOk, BlockStatus::kOk,
                                          BlockStatus::kOk}));
  EXPECT_EQ(Word(grant.word), grant.lease.value);
  OpenAndSettle();
  ExpectReady(8, kLarge, kMuch);
  EXPECT_TRUE(sink_.empty()) << "the block is reported ready once";
  EXPECT_EQ(f_.counters().blocks_hit.value(), 4u)
      << "one hit of the first acquire and three of this one";
  EXPECT_EQ(f_.counters().blocks_from_disk.value(), 1u);
  EXPECT_EQ(f_.counters().blocks_missing.value(), 0u);
  EXPECT_EQ(f_.store().stats().leases, 1u);
  Release(grant.lease);
}

// A client may name any lease in a release, here the one that its own message is about to be
// granted.
TEST_F(SessionDiskTest, ALeaseCanBeReleasedByTheMessageThatAcquiresIt) {
  const wire::Grant before = Acquire(Names({kHost}));
  Release(before.lease);
  wire::Up up;
  up.releases = {LeaseId{before.lease.value + 1}};
  AddAcquire(1, Names({kLarge}), &up);
  AddAcquire(2, Names({kHost, kHost + 1, kHost + 2, kHost + 3}), &up);
  const std::vector<wire::Grant> grants = Grants(up);
  ASSERT_EQ(grants.size(), 2u);
  ASSERT_EQ(grants[0].lease, LeaseId{before.lease.value + 1});
  EXPECT_EQ(Statuses(grants[1]), std::vector(4, BlockStatus::kOk));
  EXPECT_NE(Word(grants[0].word), grants[0].lease.value);
  EXPECT_EQ(f_.store().stats().leases, 1u);
  OpenAndSettle();
  EXPECT_TRUE(sink_.empty()) << "no request waits for the block, so no message is sent";
  Release(grants[1].lease);
  ExpectReadable(kLarge, kMuch);
}

// All readers are busy when the lease is released, so no read is spent on it.
TEST_F(SessionDiskTest, ALeaseReleasedBeforeItsTurnIsNotRead) {
  const wire::Grant large = AcquireReading(kLarge);
  const wire::Grant small = AcquireReading(kSmall);
  tier_.AwaitCalls(kReaders);
  wire::Up up;
  AddAcquire(9, Names({kOther}), &up);
  const wire::Grant other = Grants(up).at(0);
  Release(other.lease);
  OpenAndSettle();
  EXPECT_EQ(tier_.stats().gets, kReaders);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(sink_.Next().ready.size(), 1u);
  EXPECT_TRUE(sink_.empty());
  Release(large.lease);
  Release(small.lease);
  ExpectReadable(kOther, kBytes);
}

// The client gets an answer for each block, and a cancelled block does not count as a miss.
TEST_F(SessionDiskTest, AnAcquireCancelledBeforeItsTurnIsNotRead) {
  const wire::Grant large = AcquireReading(kLarge);
  const wire::Grant small = AcquireReading(kSmall);
  tier_.AwaitCalls(kReaders);
  wire::Up up;
  AddAcquire(9, Names({kOther}), &up);
  const wire::Grant other = Grants(up).at(0);
  wire::Up cancel;
  cancel.cancels = {9};
  ASSERT_TRUE(session_->OnUp(cancel).ok());
  OpenAndSettle();
  EXPECT_EQ(tier_.stats().gets, kReaders);
  size_t ready = 0;
  std::vector<wire::BlockFailed> failed;
  for (int i = 0; i < 3; ++i) {
    const wire::Down down = sink_.Next();
    ready += down.ready.size();
    failed.insert(failed.end(), down.failed.begin(), down.failed.end());
  }
  EXPECT_EQ(ready, 2u);
  EXPECT_EQ(failed, (std::vector<wire::BlockFailed>{{9, 0, BlockStatus::kCancelled}}));
  EXPECT_EQ(f_.counters().blocks_missing.value(), 0u);
  EXPECT_EQ(f_.counters().blocks_from_disk.value(), 2u);
  for (const LeaseId lease : {large.lease, small.lease, other.lease}) Release(lease);
}

// The holds of a revoked lease wait for the client's acknowledgement, but no read is spent on it.
TEST_F(SessionDiskTest, ALeaseRevokedBeforeItsTurnIsNotRead) {
  const wire::Grant large = AcquireReading(kLarge);
  const wire::Grant small = AcquireReading(kSmall);
  tier_.AwaitCalls(kReaders);
  const wire::Grant other = Acquire(Names({kOther}), /*deadline_ms=*/1000);
  EXPECT_EQ(Statuses(other), std::vector{BlockStatus::kPending});
  f_.clock().Advance(std::chrono::seconds(2));
  session_->Tick(f_.clock().Now());
  EXPECT_EQ(sink_.Next().revocations.at(0).leases, std::vector{other.lease});
  EXPECT_EQ(f_.store().stats().leases, 3u);
  OpenAndSettle();
  EXPECT_EQ(tier_.stats().gets, kReaders);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(sink_.Next().ready.size(), 1u);
  EXPECT_TRUE(sink_.empty()) << "a revoked lease gets no further answer";
  for (const LeaseId lease : {large.lease, small.lease, other.lease}) Release(lease);
  ExpectReadable(kOther, kBytes);
}

// The process may still write to its reserved memory, so the charge for it moves to the quarantine,
// and is released once.
TEST_F(SessionDiskTest, ASessionLostDuringAPublishReleasesItsCharge) {
  tier_.Open();  // publishing calls the tier
  const uint64_t before = f_.shares().held(ShareKind::kReservedBytes);
  const AttachedProcess process = f_.Process(getpid(), true);
  for (uint32_t round = 0; round < 500; ++round) {
    testing::RecordingSink sink;
    const std::shared_ptr<AttachedSession> session = f_.Open(process, sink);
    wire::Up up;
    up.hello.emplace();
    up.hello->engine_id = "lost";
    up.hello->write_mode = wire::WriteMode::kMapped;
    up.registers.push_back({.id = 1, .contents = {Content()}, .variants = {TestVariant()}});
    up.reserves.push_back(
        {.id = 2, .bytes = std::vector(3, ByteCount(kBytes)), .deadline_ms = 60'000});
    ASSERT_TRUE(session->OnUp(up).ok());
    ReservationId reserved;
    while (!reserved) {
      const wire::Down down = sink.Next();
      if (!down.reserved.empty()) reserved = down.reserved[0].reservation;
    }
    wire::Up publish;
    publish.publishes.push_back({.id = 3, .reservation = reserved, .variant = 0, .blocks = {}});
    for (uint32_t i = 0; i < 2; ++i) {
      publish.publishes[0].blocks.push_back(Block(100 + 2 * round + i, UniformTable(1, kBytes)));
      publish.publishes[0].blocks[i].extent = i;
    }
    ASSERT_TRUE(session->OnUp(publish).ok());
    session->OnClosed();
    f_.sessions().Remove(session->id());
  }
  (void)f_.quarantine().Release(process.id);
  EXPECT_TRUE(Eventually([&] { return f_.shares().held(ShareKind::kReservedBytes) == before; }))
      << f_.shares().held(ShareKind::kReservedBytes);
}

TEST_F(SessionDiskTest, GrantsNameTheTierOfEachBlock) {
  for (const auto what : {wire::AcquireWhat::kBytes, wire::AcquireWhat::kPromise}) {
    const wire::Grant grant = Acquire(Names({kSmall, kHost}), 1000, what);
    EXPECT_EQ(grant.blocks.at(0).tier, Tier::kDisk);
    EXPECT_EQ(grant.blocks.at(1).tier, Tier::kHost);
    Release(grant.lease);
  }
  OpenAndSettle();
}

TEST_F(SessionDiskTest, OnlySessionsWithTheTiersFeatureHearOfTheDisk) {
  const VariantIndex variant = *f_.store().index().FindVariant(TestVariant().Id());
  EXPECT_EQ(attached_.feature_bits & wire::kFeatureTiers, wire::kFeatureTiers);
  session_->OnDurable(variant, Names({kHost}));
  EXPECT_EQ(sink_.Next().durable.at(0).digests, Names({kHost}));
  End(/*bye=*/true);
  StartAs(f_.Process(getpid(), true), wire::WriteMode::kMapped, /*features=*/0);
  for (const auto what : {wire::AcquireWhat::kBytes, wire::AcquireWhat::kPromise}) {
    const wire::Grant grant = Acquire(Names({kSmall, kHost}), 1000, what);
    EXPECT_EQ(Statuses(grant), (std::vector{BlockStatus::kMissing, BlockStatus::kOk}));
    Release(grant.lease);
  }
  session_->OnDurable(variant, Names({kHost}));
  OpenAndSettle();
  EXPECT_TRUE(sink_.empty());
}

// The disk may sync more small blocks at once than one message can name.
TEST_F(SessionDiskTest, DurableBlocksAreReportedInMessagesOfTheMaximumSize) {
  const VariantIndex variant = *f_.store().index().FindVariant(TestVariant().Id());
  const std::vector<Digest> many(wire::kKeysMax + 10, Name(kHost));
  session_->OnDurable(variant, many);
  EXPECT_EQ(sink_.Next().durable.at(0).digests.size(), wire::kKeysMax);
  EXPECT_EQ(sink_.Next().durable.at(0).digests.size(), 10u);
}

// A block that cannot be read for the lease is missing, and nothing of it is held or charged.
TEST_F(SessionDiskTest, ABlockThatCannotBeReadIsMissing) {
  const std::vector<EntryRef> holds = HoldToTheLast(kSmall);
  for (const auto what : {wire::AcquireWhat::kBytes, wire::AcquireWhat::kPromise}) {
    const wire::Grant alone = Acquire(Names({kSmall}), 1000, what);
    EXPECT_EQ(Statuses(alone), std::vector{BlockStatus::kMissing});
    EXPECT_EQ(alone.lease, LeaseId{});
    EXPECT_EQ(f_.store().stats().leases, 0u);
    const wire::Grant beside = Acquire(Names({kSmall, kHost}), 1000, what);
    EXPECT_EQ(Statuses(beside), (std::vector{BlockStatus::kMissing, BlockStatus::kOk}));
    EXPECT_EQ(f_.store().stats().pool_leased, ByteCount(kMuch));
    Release(beside.lease);
  }
  EXPECT_EQ(f_.counters().blocks_missing.value(), 4u);
  f_.store().Unhold(holds);
  OpenAndSettle();
  EXPECT_TRUE(sink_.empty()) << "no request waits for the block, so no message is sent";
  ExpectReadable(kSmall, kBytes);
}

// Two leases of one block: the second gets the block, whatever happens to the first.
TEST_F(SessionDiskTest, AReleaseDoesNotAffectAnotherLeaseOfTheBlock) {
  const wire::Grant reading = AcquireReading(kSmall);
  wire::Up up;
  AddAcquire(8, Names({kSmall}), &up);
  const wire::Grant second = Grants(up).at(0);
  EXPECT_EQ(Statuses(second), std::vector{BlockStatus::kPending});
  Release(reading.lease);
  OpenAndSettle();
  ExpectReady(8, kSmall, kBytes);
  EXPECT_TRUE(sink_.empty());
  Release(second.lease);
}

TEST_F(SessionDiskTest, ASessionCanEndWhileItsBlockIsRead) {
  (void)AcquireReading(kLarge);
  End(/*bye=*/true);
  EXPECT_EQ(f_.store().stats().leases, 0u);
  OpenAndSettle();
  EXPECT_TRUE(sink_.empty());
}

// The process of the lost session is alive: its lease waits in quarantine, and the read ends
// without a message.
TEST_F(SessionDiskTest, ASessionLostWhileItsBlockIsReadIsQuarantined) {
  (void)AcquireReading(kLarge);
  const ProcessId process = session_->process();
  const SessionId session = session_->id();
  End(/*bye=*/false);
  EXPECT_EQ(f_.store().stats().leases, 1u);
  OpenAndSettle();
  EXPECT_TRUE(sink_.empty());
  EXPECT_EQ(f_.quarantine().Release(process, session), ByteCount(kMuch));
}

}  // namespace
}  // namespace larder
