#include "server/sessions/session.h"

#include <unistd.h>

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "server/sessions/session_registrations.h"
#include "tests/server/sessions/session_driver.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

using testing::kBytes;
using testing::SessionTest;
using testing::TestTokens;
using testing::TestVariant;

TEST_F(SessionTest, MappedPutThenGet) {
  Start(wire::WriteMode::kMapped);
  EXPECT_EQ(attached_.write_mode, wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{9}), BlockStatus::kOk);
  const wire::Grant grant = Acquire({Name(1), Name(2)});
  ASSERT_EQ(grant.blocks.at(0).status, BlockStatus::kOk);
  EXPECT_EQ(grant.blocks.at(1).status, BlockStatus::kMissing);
  EXPECT_EQ(Place(grant.blocks[0].extent)[kBytes - 1], std::byte{9});
  EXPECT_EQ(Word(grant.word), grant.lease.value);
  Release(grant.lease);
  EXPECT_NE(Word(grant.word), grant.lease.value);
  EXPECT_EQ(f_.store().stats().leases, 0u);
}

// The content that Clear goes by if the chain of a block has holes.
class SessionContents : public SessionTest {
 protected:
  static Digest IdOf(const char* model) {
    ContentSpec content;
    content.tenant = "default";
    content.model = model;
    return content.Id();
  }
  void RegisterAnother() {
    wire::Up up;
    ContentSpec another;
    another.model = "another";
    up.registers.push_back({.id = 1, .contents = {Content(), another}, .variants = {}});
    ASSERT_TRUE(session_->OnUp(up).ok());
    ASSERT_EQ(sink_.Next().registered.at(0).content_ids,
              (std::vector<Digest>{IdOf("m"), IdOf("another")}));
  }
  // Puts block `seed` with this `parent`; its writer says that it belongs to `content`.
  wire::Published PutOf(uint32_t seed, const Digest& parent, const Digest& content) {
    const wire::Reserved reserved = Reserve({ByteCount(kBytes)});
    wire::PublishBlock block = Block(seed, UniformTable(1, kBytes));
    block.parent = parent;
    block.digest = digest_ = Chain(parent, TestTokens(seed)).back();
    block.content = content;
    const wire::Published answer = Publish(reserved.reservation, {block});
    wire::Up up;
    up.aborts.push_back({.reservation = reserved.reservation, .extents = {}});
    EXPECT_TRUE(session_->OnUp(up).ok());
    return answer;
  }
  // Returns the content that is stored with the block that was put last.
  Digest Kept() {
    const auto variant = f_.store().index().FindVariant(TestVariant().Id());
    const BlockIndex::Held held = f_.store().HoldUntouched(*variant, digest_);
    const Digest content = held.metadata == nullptr ? Name(0) : held.metadata->content();
    f_.store().Unhold({&held.ref, 1});
    return content;
  }
  Digest digest_;
};

TEST_F(SessionContents, TheContentIsStoredWithTheBlock) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(PutOf(1, Name(9), {}).status.at(0), BlockStatus::kOk);
  EXPECT_EQ(Kept(), IdOf("m")) << "the session has registered only one content";
  ASSERT_NO_FATAL_FAILURE(RegisterAnother());
  ASSERT_EQ(PutOf(2, Name(9), {}).status.at(0), BlockStatus::kOk);
  EXPECT_EQ(Kept(), Digest()) << "with two registered contents, the block's content is unknown";
  ASSERT_EQ(PutOf(3, Name(9), IdOf("another")).status.at(0), BlockStatus::kOk);
  EXPECT_EQ(Kept(), IdOf("another"));
  ASSERT_EQ(PutOf(4, IdOf("another"), {}).status.at(0), BlockStatus::kOk);
  EXPECT_EQ(Kept(), IdOf("another")) << "the block's parent is the content itself";
}

TEST_F(SessionContents, RefusesAContentThatIsNotTheBlocks) {
  Start(wire::WriteMode::kMapped);
  ASSERT_NO_FATAL_FAILURE(RegisterAnother());
  for (const auto& [parent, content] :
       {std::pair(Name(9), IdOf("unregistered")), std::pair(IdOf("m"), IdOf("another"))}) {
    const wire::Published answer = PutOf(1, parent, content);
    EXPECT_EQ(answer.status.at(0), BlockStatus::kInvalid);
    EXPECT_NE(answer.message.find("content_id"), std::string::npos) << answer.message;
  }
}

// An engine has as many contents as it has users, and may register all of them.
TEST_F(SessionContents, TheSessionForgetsTheContentsThatWereRegisteredLongestAgo) {
  Start(wire::WriteMode::kMapped);
  const auto of_user = [](size_t user) {
    ContentSpec content = Content();
    content.salt = std::to_string(user);
    return content;
  };
  const auto registered = [&](size_t begin, size_t end) {
    wire::Up up;
    wire::Register& add = up.registers.emplace_back();
    add.id = 1;
    for (size_t user = begin; user < end; ++user) add.contents.push_back(of_user(user));
    EXPECT_TRUE(session_->OnUp(up).ok());
    const wire::Registered answer = sink_.Next().registered.at(0);
    EXPECT_EQ(answer.status, BlockStatus::kOk) << answer.message;
    EXPECT_EQ(answer.content_ids.size(), end - begin);
    return answer.content_ids.front();
  };
  const Digest first = registered(0, 1), second = registered(1, 2);
  constexpr size_t kMax = SessionRegistrations::kContentsMax;
  for (size_t at = 2; at < kMax; at += 1'022) registered(at, std::min(at + 1'022, kMax));
  ASSERT_EQ(PutOf(1, Name(9), first).status.at(0), BlockStatus::kOk);
  EXPECT_EQ(registered(0, 1), first) << "registering it again keeps it longer";
  const Digest last = registered(kMax, kMax + 1);
  EXPECT_EQ(PutOf(2, Name(9), last).status.at(0), BlockStatus::kOk);
  EXPECT_EQ(PutOf(3, Name(9), first).status.at(0), BlockStatus::kOk);
  const wire::Published forgotten = PutOf(4, Name(9), second);
  EXPECT_EQ(forgotten.status.at(0), BlockStatus::kInvalid);
  EXPECT_NE(forgotten.message.find("register it again"), std::string::npos) << forgotten.message;
  EXPECT_EQ(registered(1, 2), second);
  EXPECT_EQ(PutOf(4, Name(9), second).status.at(0), BlockStatus::kOk);
}

// The writer need not copy what is stored already.
TEST_F(SessionTest, AReserveThatNamesItsBlocksLeavesOutThoseThatAreStored) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(2, std::byte{2}), BlockStatus::kOk);
  const auto reserve = [&](std::vector<Digest> names, uint32_t variant = 0) {
    wire::Up up;
    wire::Reserve& request = up.reserves.emplace_back();
    request.id = 5;
    request.variant = variant;
    request.bytes.assign(names.size(), ByteCount(kBytes));
    request.digests = std::move(names);
    EXPECT_TRUE(session_->OnUp(up).ok());
    return sink_.Next().reserved.at(0);
  };
  const wire::Reserved some = reserve({Name(1), Name(2), Name(3)});
  EXPECT_EQ(some.status, BlockStatus::kOk);
  EXPECT_EQ(some.taken, std::vector<uint32_t>{1});
  EXPECT_EQ(some.extents.size(), 2u);
  const wire::Reserved none = reserve({Name(2)});
  EXPECT_EQ(none.status, BlockStatus::kDuplicate);
  EXPECT_EQ(none.reservation, ReservationId{});
  EXPECT_EQ(none.taken, std::vector<uint32_t>{0});
  EXPECT_EQ(reserve({Name(1)}, 9).status, BlockStatus::kInvalid);
}

TEST_F(SessionTest, HelloMustComeFirstAndOnce) {
  session_ = f_.Open(std::nullopt, sink_);
  wire::Up up;
  EXPECT_TRUE(absl::IsInvalidArgument(session_->OnUp(up)));
  up.hello.emplace();
  up.hello->engine_id = "e";
  EXPECT_TRUE(session_->OnUp(up).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(session_->OnUp(up)));
}

TEST_F(SessionTest, UntrustedUidIsStagedWithAReason) {
  Start(wire::WriteMode::kMapped, /*writable=*/false);
  EXPECT_EQ(attached_.write_mode, wire::WriteMode::kStaged);
  EXPECT_NE(attached_.write_mode_reason.find("--trusted-uids"), std::string::npos);
}

TEST_F(SessionTest, WithoutASidebandOnlyPromisesAreGranted) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  End(true);
  StartAs(std::nullopt, wire::WriteMode::kMapped);
  EXPECT_EQ(attached_.write_mode, wire::WriteMode::kStream);
  EXPECT_EQ(Reserve({KiB(4)}).status, BlockStatus::kUnsupported);
  EXPECT_EQ(Acquire({Name(1)}).blocks.at(0).status, BlockStatus::kUnsupported);
  const wire::Grant promise = Acquire({Name(1)}, 1000, wire::AcquireWhat::kPromise);
  EXPECT_EQ(promise.blocks.at(0).status, BlockStatus::kOk);
  EXPECT_EQ(promise.blocks.at(0).extent.bytes, 0u);
  EXPECT_EQ(f_.store().stats().leases, 1u);
}

TEST_F(SessionTest, PromisesWithoutAProcessExpireToo) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  End(true);
  StartAs(std::nullopt, wire::WriteMode::kStream);
  const LeaseId lease = Acquire({Name(1)}, 1, wire::AcquireWhat::kPromise).lease;
  ASSERT_TRUE(lease);
  f_.clock().Advance(std::chrono::milliseconds(1));
  session_->Tick(f_.clock().Now());
  EXPECT_EQ(sink_.Next().revocations.at(0).leases, std::vector<LeaseId>{lease});
}

TEST_F(SessionTest, EncodedSegmentsAreNotStoredAsIdentity) {
  Start(wire::WriteMode::kMapped);
  const wire::Reserved r = Reserve({KiB(4)});
  SegmentTable table = UniformTable(1, 4096);
  table.segments[0].codec = Codec::kLossless;
  EXPECT_EQ(Publish(r.reservation, {Block(1, table)}).status.at(0), BlockStatus::kUnsupported);
}

TEST_F(SessionTest, AbortReleasesTheReservedShare) {
  Start(wire::WriteMode::kMapped);
  const wire::Reserved all = Reserve({MiB(2), MiB(2), MiB(2), MiB(2)});
  ASSERT_EQ(Reserve({KiB(4)}).status, BlockStatus::kFull);
  wire::Up up;
  up.aborts.push_back({all.reservation, {2}});
  ASSERT_TRUE(session_->OnUp(up).ok());
  EXPECT_EQ(Reserve({KiB(4)}).status, BlockStatus::kOk);
}

TEST_F(SessionTest, PublishIsCheckedBlockByBlock) {
  Start(wire::WriteMode::kMapped);
  const wire::Reserved r = Reserve({KiB(4), KiB(4), KiB(4), KiB(4)});
  std::vector<wire::PublishBlock> blocks(4, Block(1, UniformTable(1, 4096)));
  blocks[0].digest = Name(2);  // is not the digest of this chain
  blocks[1].extent = 1;
  blocks[1].tokens.resize(32);
  blocks[2].extent = 2;
  blocks[2].segments = UniformTable(1, 4000);  // not the reserved size
  blocks[3].extent = 99;
  const wire::Published p = Publish(r.reservation, blocks);
  EXPECT_EQ(p.status, (std::vector<BlockStatus>{BlockStatus::kInvalid, BlockStatus::kInvalid,
                                                BlockStatus::kInvalid, BlockStatus::kNotHeld}));
  EXPECT_FALSE(p.message.empty());
  EXPECT_EQ(Publish(ReservationId{777}, {blocks[0]}).status.at(0), BlockStatus::kNotHeld);
  EXPECT_EQ(f_.store().stats().blocks, 0u);
}

TEST_F(SessionTest, StagedPublishIsCopiedAndHashed) {
  Start(wire::WriteMode::kStaged, false);
  const auto made = f_.staging().Make(session_->process(), getuid(), MiB(1));
  ASSERT_TRUE(made.ok()) << made.status();
  std::vector<std::byte> bytes(kBytes, std::byte{3});
  ASSERT_EQ(pwrite(made->descriptor.get(), bytes.data(), bytes.size(), 4096), kBytes);
  const wire::Reserved r = Reserve({ByteCount(kBytes), ByteCount(kBytes)});
  EXPECT_EQ(r.extents.at(0).offset, 0u);  // a staged client does not learn places in the pool
  std::vector<wire::PublishBlock> blocks = {Block(1, UniformTable(1, kBytes)),
                                            Block(2, UniformTable(1, kBytes))};
  blocks[0].staging_id = blocks[1].staging_id = made->id;
  blocks[0].staging_offset = 4096;
  blocks[1].extent = 1;
  blocks[1].staging_offset = (1 << 20) - 100;  // extends beyond the end
  const wire::Published p = Publish(r.reservation, blocks);
  EXPECT_EQ(p.status, (std::vector<BlockStatus>{BlockStatus::kOk, BlockStatus::kInvalid}));
  const std::vector<Digest> name = {Name(1)};
  const VariantIndex variant = *f_.store().index().FindVariant(TestVariant().Id());
  const auto held = f_.store().Acquire(variant, name, MiB(1));
  ASSERT_NE(held.blocks.at(0).ref.value, 0u);
  EXPECT_EQ(f_.store().Bytes(held.blocks[0].extent)[0], std::byte{3});
}

TEST_F(SessionTest, DeadlinesRevokeAndKeepUntilAcknowledged) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const wire::Grant grant = Acquire({Name(1)}, 100);
  const wire::Reserved reserved = Reserve({KiB(4)}, 100);
  f_.clock().Advance(std::chrono::milliseconds(99));
  session_->Tick(f_.clock().Now());
  EXPECT_TRUE(sink_.empty());
  f_.clock().Advance(std::chrono::milliseconds(1));
  session_->Tick(f_.clock().Now());
  const wire::Revocation revoked = sink_.Next().revocations.at(0);
  EXPECT_EQ(revoked.leases, std::vector<LeaseId>{grant.lease});
  EXPECT_EQ(revoked.reservations, std::vector<ReservationId>{reserved.reservation});
  EXPECT_NE(Word(grant.word), grant.lease.value);
  EXPECT_EQ(f_.store().stats().leases, 1u);
  EXPECT_EQ(f_.store().stats().reservations, 1u);
  EXPECT_EQ(Publish(reserved.reservation, {Block(5, UniformTable(1, 4096))}).status.at(0),
            BlockStatus::kNotHeld);
  wire::Up ack;
  ack.revoke_ack = wire::RevokeAck{revoked.leases, revoked.reservations};
  ASSERT_TRUE(session_->OnUp(ack).ok());
  EXPECT_EQ(f_.store().stats().leases, 0u);
  EXPECT_EQ(f_.store().stats().reservations, 0u);
}

TEST_F(SessionTest, LostSessionOfALiveProcessIsQuarantined) {
  ASSERT_NO_FATAL_FAILURE(StartWithLeaseAndReservation());
  const ProcessId process = session_->process();
  const SessionId session = session_->id();
  End(/*bye=*/false);
  EXPECT_EQ(f_.quarantine().bytes(), KiB(12));
  EXPECT_EQ(f_.quarantine().Release(process, session), KiB(12));
  EXPECT_EQ(f_.store().stats().leases, 0u);
}

TEST_F(SessionTest, LostSessionOfADeadProcessIsFree) {
  ChildProcess child([](const Line& line) { (void)line.Hear(); });
  StartAs(f_.Process(child.pid(), true), wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  ASSERT_NE(Acquire({Name(1)}).lease.value, 0u);
  child.Kill();
  End(/*bye=*/false);
  while (f_.store().stats().leases != 0) std::this_thread::yield();  // the reaper releases them
  EXPECT_EQ(f_.quarantine().bytes(), ByteCount(0));
}

TEST_F(SessionTest, AnUnmappedReportEndsAnOpenSession) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  ASSERT_NE(Acquire({Name(1)}).lease.value, 0u);
  session_->OnUnmapped();
  EXPECT_EQ(f_.store().stats().leases, 0u);
  EXPECT_TRUE(sink_.finished());
  wire::Up late;
  late.reserves.push_back({.id = 9, .bytes = {KiB(4)}});
  EXPECT_TRUE(session_->OnUp(late).ok());
  EXPECT_EQ(f_.store().stats().reservations, 0u);
}

TEST_F(SessionTest, ByeReleasesEverythingAtOnce) {
  ASSERT_NO_FATAL_FAILURE(StartWithLeaseAndReservation());
  End(/*bye=*/true);
  EXPECT_EQ(f_.quarantine().bytes(), ByteCount(0));
  EXPECT_EQ(f_.store().stats().leases, 0u);
  EXPECT_EQ(f_.store().stats().reservations, 0u);
}

TEST_F(SessionTest, OneSessionHoldsAtMostItsShare) {
  Start(wire::WriteMode::kMapped);
  const uint64_t share = attached_.lease_bytes_max.value();
  EXPECT_EQ(share, MiB(8).value());  // a quarter of 32 MiB
  ASSERT_EQ(Reserve({MiB(2), MiB(2), MiB(2), MiB(2)}).status, BlockStatus::kOk);
  const wire::Reserved more = Reserve({KiB(4)});
  EXPECT_EQ(more.status, BlockStatus::kFull);
  EXPECT_GT(more.retry_after_ms, 0u);
}

// Holds the block kCrowdedHolds times, and adds the holds to `*holds`.
void Crowd(BlockStore& store, VariantIndex variant, const Digest& digest,
           std::vector<EntryRef>* holds) {
  const BlockIndex::Held held = store.HoldUntouched(variant, digest);
  holds->push_back(held.ref);
  while (holds->size() < kCrowdedHolds) {
    ASSERT_TRUE(store.HoldAgain({&held.ref, 1}));
    holds->push_back(held.ref);
  }
}

// A client that has lost count may do this, and the other engines of the node must not suffer.
TEST_F(SessionTest, NoSessionTakesAllHoldsOfABlock) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  for (int i = 0; i < 17; ++i) {  // more than 65,535 in all
    const wire::Grant grant = Acquire(std::vector<Digest>(wire::kKeysMax, Name(1)));
    for (const wire::BlockGrant& block : grant.blocks) ASSERT_EQ(block.status, BlockStatus::kOk);
  }
  uint32_t holds = 0;
  const auto look = [&](const BlockIndex::View& view) { holds = view.holds; };
  f_.store().index().ForEach(look);
  EXPECT_EQ(holds, 17u) << "one hold per lease";
  // Of a block with many holds, a session gets a limited number, and gets as many again after it
  // has released them.
  const VariantIndex variant = *f_.store().index().FindVariant(TestVariant().Id());
  std::vector<EntryRef> others;
  ASSERT_NO_FATAL_FAILURE(Crowd(f_.store(), variant, Name(1), &others));
  for (int round = 0; round < 2; ++round) {
    std::vector<LeaseId> mine;
    for (uint32_t i = 0; i < SessionLeases::kCrowdedMax; ++i) {
      const wire::Grant grant = Acquire({Name(1)});
      ASSERT_EQ(grant.blocks.at(0).status, BlockStatus::kOk);
      mine.push_back(grant.lease);
    }
    const wire::Grant over = Acquire({Name(1)});
    EXPECT_EQ(over.blocks.at(0).status, BlockStatus::kFull);
    EXPECT_GT(over.retry_after_ms, 0u);
    for (const LeaseId lease : mine) Release(lease);
  }
  // Another session can read the block, and the daemon can clear it.
  testing::RecordingSink sink;
  const auto neighbour = f_.Open(f_.Process(getpid(), true), sink);
  wire::Up up;
  up.hello.emplace();
  up.hello->engine_id = "neighbour";
  up.hello->write_mode = wire::WriteMode::kMapped;
  up.registers.push_back({.id = 1, .contents = {Content()}, .variants = {TestVariant()}});
  wire::Acquire& acquire = up.acquires.emplace_back();
  acquire.id = 2;
  acquire.digests = {Name(1)};
  acquire.deadline_ms = 1000;
  acquire.accepted_codecs = {Codec::kIdentity};
  ASSERT_TRUE(neighbour->OnUp(up).ok());
  std::vector<wire::Grant> grants;
  while (grants.empty()) grants = sink.Next().grants;
  EXPECT_EQ(grants[0].blocks.at(0).status, BlockStatus::kOk);
  EXPECT_EQ(
      f_.store()
          .Clear(variant, Name(1), TierBit(Tier::kHost) | TierBit(Tier::kDisk), ClearHow::kAll)
          .status,
      ClearedBlock::Status::kCleared);
  neighbour->OnClosed();
  f_.sessions().Remove(neighbour->id());
  f_.store().Unhold(others);
}

// Expired promises do not count toward the limit of holds.
TEST_F(SessionTest, ExpiredPromisesDoNotCountTowardTheLimitOfHolds) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const VariantIndex variant = *f_.store().index().FindVariant(TestVariant().Id());
  std::vector<EntryRef> others;
  ASSERT_NO_FATAL_FAILURE(Crowd(f_.store(), variant, Name(1), &others));
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < SessionLeases::kCrowdedMax; ++i) {
      const wire::Grant grant = Acquire({Name(1)}, 100, wire::AcquireWhat::kPromise);
      EXPECT_EQ(grant.blocks.at(0).status, BlockStatus::kOk) << round << " " << i;
    }
    f_.clock().Advance(std::chrono::milliseconds(100));
    session_->Tick(f_.clock().Now());
    EXPECT_EQ(sink_.Next().revocations.at(0).leases.size(), SessionLeases::kCrowdedMax);
    EXPECT_EQ(f_.store().stats().leases, 0u);
  }
  f_.store().Unhold(others);
}

// The releases of a message take effect before its acquires, as engine.proto says, even if the
// message lists them later.
TEST_F(SessionTest, AnAcquireMayUseWhatItsMessageReleases) {
  Start(wire::WriteMode::kMapped);
  std::vector<Digest> names;
  for (uint32_t i = 0; i < 8; ++i) {
    const wire::Reserved room = Reserve({MiB(2)});
    ASSERT_EQ(room.status, BlockStatus::kOk);
    const auto table = UniformTable(1, static_cast<uint32_t>(MiB(2).value()));
    ASSERT_EQ(Publish(room.reservation, {Block(i, table)}).status.at(0), BlockStatus::kOk);
    names.push_back(Name(i));
  }
  const wire::Grant all = Acquire({names.begin(), names.begin() + 4});  // the whole share
  ASSERT_EQ(all.blocks.at(3).status, BlockStatus::kOk);
  wire::Up up;
  up.releases = {all.lease};
  wire::Acquire& acquire = up.acquires.emplace_back();
  acquire.id = 5;
  acquire.digests = {names.begin() + 4, names.end()};
  acquire.deadline_ms = 1000;
  acquire.accepted_codecs = {Codec::kIdentity};
  ASSERT_TRUE(session_->OnUp(up).ok());
  const wire::Grant next = sink_.Next().grants.at(0);
  for (const wire::BlockGrant& block : next.blocks) EXPECT_EQ(block.status, BlockStatus::kOk);
  EXPECT_EQ(f_.store().stats().leases, 1u);
  EXPECT_EQ(f_.counters().unknown_releases.value(), 0u) << "the lease is released only once";
}

TEST_F(SessionTest, DrainEndsAfterTheLastRelease) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const wire::Grant grant = Acquire({Name(1)});
  session_->Drain();
  EXPECT_EQ(sink_.Next().directives.at(0).kind, wire::DirectiveKind::kDrain);
  // Requests that the client sent before it could know of the drain are still served.
  Release(Acquire({Name(1)}).lease);
  EXPECT_EQ(Put(2, std::byte{2}), BlockStatus::kOk);
  f_.clock().Advance(AttachedSession::kDrainGrace);
  session_->Tick(f_.clock().Now());
  EXPECT_FALSE(sink_.finished());
  EXPECT_EQ(Acquire({Name(1)}).blocks.at(0).status, BlockStatus::kCancelled);
  EXPECT_EQ(Reserve({KiB(4)}).status, BlockStatus::kCancelled);
  Release(grant.lease);
  ASSERT_TRUE(sink_.finished());
  EXPECT_TRUE(sink_.finished()->ok());
}

TEST_F(SessionTest, DrainEndsASessionThatHoldsNothing) {
  Start(wire::WriteMode::kMapped);
  session_->Drain();
  EXPECT_EQ(sink_.Next().directives.at(0).kind, wire::DirectiveKind::kDrain);
  session_->Tick(f_.clock().Now());
  EXPECT_FALSE(sink_.finished())
      << "a request may be under way, so the session waits for the grace period";
  f_.clock().Advance(AttachedSession::kDrainGrace);
  session_->Tick(f_.clock().Now());
  ASSERT_TRUE(sink_.finished());
  EXPECT_TRUE(sink_.finished()->ok());
}

TEST_F(SessionTest, SampledReadsCarryTheirTable) {
  Start(wire::WriteMode::kMapped);  // checks one read in two
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  ASSERT_EQ(Put(2, std::byte{2}), BlockStatus::kOk);
  constexpr int kWindows = 2000;
  std::array<int, 2> tables = {};  // by the key's place in its window
  for (int i = 0; i < kWindows; ++i) {
    const wire::Grant grant = Acquire({Name(1), Name(2), Name(1)});
    EXPECT_FALSE(grant.blocks[2].table)
        << "a repeated key is checked together with its first occurrence";
    for (size_t key = 0; key < tables.size(); ++key) tables[key] += grant.blocks[key].table ? 1 : 0;
    Release(grant.lease);
  }
  for (const int count : tables) EXPECT_NEAR(count, kWindows / 2, kWindows / 14);  // 6 sigma
}

TEST_F(SessionTest, DamageReportIsCheckedBeforeItIsBelieved) {
  Start(wire::WriteMode::kMapped);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  ASSERT_EQ(Put(2, std::byte{2}), BlockStatus::kOk);
  Place(Acquire({Name(2)}).blocks.at(0).extent)[5] = std::byte{77};
  wire::Up up;
  up.damaged.push_back({0, {Name(1), Name(2)}});
  ASSERT_TRUE(session_->OnUp(up).ok());
  ASSERT_TRUE(Eventually([&] { return f_.store().stats().damaged == 1; }));
  const wire::Grant grant = Acquire({Name(1), Name(2)});
  EXPECT_EQ(grant.blocks.at(0).status, BlockStatus::kOk);
  EXPECT_EQ(grant.blocks.at(1).status, BlockStatus::kMissing);
  EXPECT_EQ(f_.store().stats().damaged, 1u);
}

// The pool is full: eviction keeps up with the reservations, and no writer waits for an eviction.
TEST_F(SessionTest, EvictionKeepsUpWithReservations) {
  Start(wire::WriteMode::kMapped);
  uint32_t seed = 0;
  while (f_.store().stats().evicted_watermark == 0) {
    ASSERT_EQ(Put(++seed, std::byte{1}), BlockStatus::kOk);
    ASSERT_LT(seed, MiB(32).value() / kBytes) << "nothing was evicted ahead of demand";
  }
  const uint64_t before = f_.store().stats().evicted_watermark;
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Put(++seed, std::byte{1}), BlockStatus::kOk);
  EXPECT_EQ(f_.store().stats().evicted_watermark, before + 100);
  EXPECT_EQ(f_.store().stats().evicted_demand, 0u);
}

// Messages, housekeeping and copies run at the same time, for the thread sanitizer.
TEST_F(SessionTest, TicksAndMessagesRunTogether) {
  Start(wire::WriteMode::kMapped);
  std::atomic<bool> stop{false};
  std::thread housekeeper([&] {
    while (!stop) {
      f_.clock().Advance(std::chrono::milliseconds(1));
      session_->Tick(f_.clock().Now());
      f_.store().EvictToWatermark(8);
    }
  });
  for (uint32_t i = 0; i < 300; ++i) {
    wire::Up up;
    up.reserves.push_back({.id = 2, .bytes = {KiB(4)}, .deadline_ms = 1});
    wire::Acquire& acquire = up.acquires.emplace_back();
    acquire.id = 4;
    acquire.digests = {Name(i)};
    acquire.deadline_ms = 1;
    acquire.accepted_codecs = {Codec::kIdentity};
    ASSERT_TRUE(session_->OnUp(up).ok());
    while (!sink_.empty()) {
      const wire::Down down = sink_.Next();
      wire::Up ack;
      ack.revoke_ack.emplace();
      for (const auto& r : down.revocations) {
        for (const auto id : r.leases) ack.revoke_ack->leases.push_back(id);
        for (const auto id : r.reservations) ack.revoke_ack->reservations.push_back(id);
      }
      ASSERT_TRUE(session_->OnUp(ack).ok());
    }
  }
  stop = true;
  housekeeper.join();
}

TEST(ChargeAnswers, ChargesUnreadAnswersAndKeepsTheChargeWhenRefused) {
  Shares shares(Shares::LimitsOf({}));
  const Shares::Account who = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  Shares::Ticket charged;
  EXPECT_TRUE(ChargeAnswers(who, SessionSink::kFreeAnswerBytes, &charged).ok());
  EXPECT_EQ(shares.held(ShareKind::kUnreadBytes), 0u);
  for (const ByteCount waiting : {KiB(300), KiB(700), KiB(100)}) {
    EXPECT_TRUE(ChargeAnswers(who, waiting.value(), &charged).ok());
    EXPECT_EQ(shares.held(ShareKind::kUnreadBytes), waiting.value());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(ChargeAnswers(who, MiB(64).value(), &charged)));
  EXPECT_EQ(shares.held(ShareKind::kUnreadBytes), KiB(100).value());
  EXPECT_TRUE(ChargeAnswers(who, 1'000, &charged).ok());
  EXPECT_EQ(shares.held(ShareKind::kUnreadBytes), 0u);
}

TEST(ChargeAnswers, NoSessionIsRefusedForMessagesOrAnswersOfOthers) {
  Shares::Sizes sizes;
  sizes.memory_limit = MiB(32);
  Shares shares(Shares::LimitsOf(sizes));
  const Shares::Account other = shares.Of({.uid = 2000, .process = ProcessId{2}, .pid = 22});
  const Shares::Account who = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  const Shares::Answer messages = other.Take(ShareKind::kMessageBytes, MiB(32));
  ASSERT_TRUE(messages.admitted());
  std::vector<Shares::Answer> unread;
  do {
    unread.push_back(other.Take(ShareKind::kUnreadBytes, KiB(500)));
  } while (unread.back().admitted());
  Shares::Ticket charged;
  EXPECT_TRUE(ChargeAnswers(who, SessionSink::kQueuedMax, &charged).ok());
}

TEST(WriterOf, AUserWithoutATokenIsNotRecordedAsWriter) {
  Shares shares(Shares::LimitsOf({}));
  const ShareHolder process{.uid = 1000, .process = ProcessId{1}, .pid = 11};
  EXPECT_EQ(WriterOf(shares.Of(process), "e").uid, 1000u);
  EXPECT_EQ(WriterOf(shares.Of(UnattachedOf(1000)), "e").uid, BlockWriter::kUnknownUid);
  EXPECT_EQ(WriterOf(shares.Of({}), "e").uid, BlockWriter::kUnknownUid);
}

}  // namespace
}  // namespace larder
