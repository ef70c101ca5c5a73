// Reads of a session whose process may not map slabs: the daemon copies the blocks into the
// process's staging segment.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/sessions/session_driver.h"
#include "tests/support/eventually.h"

namespace larder {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kBytes;
using testing::RecordingSink;
using testing::SessionTest;

constexpr uint64_t kSegmentBytes = 1 << 20;
constexpr uint64_t kFeatures = wire::kFeatureTiers | wire::kFeatureCopiedReads;

// The driver's session maps the pool; `reader_` is the session of an untrusted process.
class SessionCopiesTest : public SessionTest {
 protected:
  void SetUp() override {
    Start(wire::WriteMode::kMapped);
    process_ = f_.Process(child_.pid(), /*writable=*/false);
    Attach(kFeatures);
    auto made = f_.staging().Make(process_.id, 65534, ByteCount(kSegmentBytes));
    ASSERT_TRUE(made.ok()) << made.status();
    segment_ = made->id;
    void* base =
        mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, made->descriptor.get(), 0);
    ASSERT_NE(base, MAP_FAILED);
    memory_ = {static_cast<std::byte*>(base), kSegmentBytes};
  }
  void TearDown() override {
    if (reader_ != nullptr) EndReader(/*bye=*/true);
    SessionTest::TearDown();
    if (!memory_.empty()) munmap(memory_.data(), memory_.size());
    f_.store().CheckInvariants();
    EXPECT_EQ(f_.store().stats().leases, 0u);
  }
  void Attach(uint64_t features) {
    reader_ = f_.Open(process_, read_sink_);
    wire::Up up;
    up.hello.emplace();
    up.hello->engine_id = "reader";
    up.hello->write_mode = wire::WriteMode::kMapped;
    up.hello->feature_bits = features;
    up.registers.push_back(
        {.id = 1, .contents = {Content()}, .variants = {testing::TestVariant()}});
    ASSERT_TRUE(reader_->OnUp(up).ok());
    reads_ = *read_sink_.Next().attached;
    ASSERT_EQ(read_sink_.Next().registered.at(0).status, BlockStatus::kOk);
  }
  void EndReader(bool bye) {
    wire::Up up;
    up.bye = true;
    if (bye) {
      EXPECT_TRUE(reader_->OnUp(up).ok());
    }
    reader_->OnClosed();
    f_.sessions().Remove(reader_->id());
    reader_.reset();
  }

  struct Room {
    uint64_t offset = 4096, bytes = 64 << 10;
    std::vector<Codec> accepted = {Codec::kIdentity};
    uint32_t deadline_ms = 1000;
  };
  wire::Grant Read(std::vector<Digest> digests, const Room& room) {
    wire::Up up;
    wire::Acquire& acquire = up.acquires.emplace_back();
    acquire.id = 4;
    acquire.digests = std::move(digests);
    acquire.deadline_ms = room.deadline_ms;
    acquire.accepted_codecs = room.accepted;
    acquire.what = wire::AcquireWhat::kBytes;
    acquire.staging_id = segment_;
    acquire.staging_offset = room.offset;
    acquire.staging_bytes = room.bytes;
    EXPECT_TRUE(reader_->OnUp(up).ok());
    return read_sink_.Next().grants.at(0);
  }
  wire::Grant Read(std::vector<Digest> digests) { return Read(std::move(digests), Room()); }
  // Returns the answers to `count` pending keys, sorted by key.  Each key is answered once.
  std::vector<std::pair<uint32_t, wire::BlockGrant>> Answers(size_t count) {
    std::vector<std::pair<uint32_t, wire::BlockGrant>> all;
    while (all.size() < count) {
      const wire::Down down = read_sink_.Next();
      EXPECT_TRUE(down.revocations.empty());
      for (const wire::BlockReady& one : down.ready) all.emplace_back(one.key, one.block);
      for (const wire::BlockFailed& one : down.failed) {
        wire::BlockGrant block;
        block.status = one.status;
        block.extent.bytes = one.bytes;
        all.emplace_back(one.key, block);
      }
    }
    EXPECT_EQ(all.size(), count);
    std::ranges::sort(all, {}, [](const auto& one) { return one.first; });
    return all;
  }
  void ExpectBytes(const wire::BlockGrant& block, std::byte fill) {
    ASSERT_EQ(block.status, BlockStatus::kOk);
    EXPECT_EQ(block.extent.slab, 0u) << "the grant must not name a place in the pool";
    EXPECT_EQ(block.extent.offset % kSegmentAlign, 0u);
    ASSERT_EQ(block.extent.bytes, kBytes);
    EXPECT_THAT(memory_.subspan(block.extent.offset, kBytes), Each(fill));
  }
  uint32_t Holds() {
    uint32_t holds = 0;
    f_.store().index().ForEach([&](const BlockIndex::View& view) { holds += view.holds; });
    return holds;
  }
  void WaitForNoHolds() {
    for (int i = 0; i < 30'000 && f_.store().stats().leases > 0; ++i) usleep(1000);
    EXPECT_EQ(f_.store().stats().leases, 0u);
  }

  ChildProcess child_{[](const Line& line) { static_cast<void>(line.Hear()); }};
  AttachedProcess process_;
  RecordingSink read_sink_;
  std::shared_ptr<AttachedSession> reader_;
  wire::Attached reads_;
  uint32_t segment_ = 0;
  std::span<std::byte> memory_;  // as the client maps it
};

TEST_F(SessionCopiesTest, BlocksAreCopiedAndPlacesInThePoolAreNotRevealed) {
  EXPECT_EQ(attached_.read_mode, wire::ReadMode::kMapped);
  EXPECT_EQ(reads_.read_mode, wire::ReadMode::kCopied);
  EXPECT_EQ(reads_.write_mode, wire::WriteMode::kStaged);
  EXPECT_THAT(reads_.read_mode_reason, HasSubstr("--trusted-uids"));
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  ASSERT_EQ(Put(2, std::byte{2}), BlockStatus::kOk);
  const wire::Grant grant = Read({Name(1), Name(9), Name(2)});
  EXPECT_THAT(Statuses(grant),
              ElementsAre(BlockStatus::kPending, BlockStatus::kMissing, BlockStatus::kPending));
  for (const wire::BlockGrant& block : grant.blocks) EXPECT_EQ(block.extent, wire::ExtentGrant{});
  const auto answers = Answers(2);
  EXPECT_EQ(answers[0].first, 0u);
  EXPECT_EQ(answers[1].first, 2u);
  ExpectBytes(answers[0].second, std::byte{1});
  ExpectBytes(answers[1].second, std::byte{2});
  for (const auto& [key, block] : answers) {
    EXPECT_GE(block.extent.offset, 4096u);
    EXPECT_LE(block.extent.offset + kBytes, 4096u + (64 << 10));
  }
  WaitForNoHolds();  // although the lease was not released
  EXPECT_EQ(f_.counters().copied_bytes.value(), 2u * kBytes);
  EXPECT_EQ(f_.counters().blocks_hit.value(), 2u);
  EXPECT_EQ(f_.counters().blocks_missing.value(), 1u);
}

TEST_F(SessionCopiesTest, ATooSmallRangeIsFullAndNamesTheMissingBytes) {
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  ASSERT_EQ(Put(2, std::byte{2}), BlockStatus::kOk);
  std::ranges::fill(memory_, std::byte{0xEE});
  const wire::Grant grant = Read({Name(1), Name(2)}, {.offset = 64, .bytes = kBytes + 100});
  EXPECT_THAT(Statuses(grant), Each(BlockStatus::kPending));
  const auto answers = Answers(2);
  ExpectBytes(answers[0].second, std::byte{1});
  EXPECT_EQ(answers[1].second.status, BlockStatus::kFull);
  EXPECT_EQ(answers[1].second.extent.bytes, kBytes);
  EXPECT_THAT(memory_.first(64), Each(std::byte{0xEE}));
  EXPECT_THAT(memory_.subspan(64 + kBytes), Each(std::byte{0xEE}))
      << "nothing is written outside the range that the client offered";
}

TEST_F(SessionCopiesTest, RefusesARangeOutsideOfTheClientsSegments) {
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const uint32_t mine = segment_;
  const auto invalid = [&](const Room& room) {
    const wire::Grant grant = Read({Name(1), Name(2)}, room);
    EXPECT_THAT(Statuses(grant), Each(BlockStatus::kInvalid));
    EXPECT_FALSE(grant.lease);
  };
  invalid({.offset = 32});
  invalid({.offset = kSegmentBytes, .bytes = 1});
  invalid({.offset = 0, .bytes = kSegmentBytes + 1});
  invalid({.offset = ~uint64_t{63}, .bytes = 128});
  segment_ = mine + 1;
  invalid({});
  segment_ = f_.staging().Make(session_->process(), getuid(), MiB(1))->id;  // of another process
  invalid({});
  segment_ = 0;
  invalid({});
  segment_ = mine;
  EXPECT_EQ(f_.store().stats().leases, 0u);
  EXPECT_TRUE(read_sink_.empty());
}

TEST_F(SessionCopiesTest, EncodedBlocksAreDecodedOrCopiedAsTheyAre) {
  ASSERT_NO_FATAL_FAILURE(PutEncoded(1));
  (void)Read({Name(1)});
  ExpectBytes(Answers(1)[0].second, std::byte{1});
  EXPECT_EQ(f_.counters().blocks_decoded_for_lease.value(), 1u);
  EXPECT_EQ(f_.store().stats().pool_reserved, ByteCount(0))
      << "decoding must not reserve memory of the pool";
  (void)Read({Name(1)}, {.accepted = {Codec::kIdentity, Codec::kLossless}});
  const wire::BlockGrant as_it_is = Answers(1)[0].second;
  ASSERT_EQ(as_it_is.status, BlockStatus::kOk);
  ASSERT_TRUE(as_it_is.table && as_it_is.table->encoded());
  EXPECT_LT(as_it_is.extent.bytes, kBytes);
  std::vector<std::byte> raw(kBytes);
  const auto stored = memory_.subspan(as_it_is.extent.offset, as_it_is.extent.bytes);
  EXPECT_TRUE(PayloadCodec().DecodeSegment(as_it_is.table->segments.at(0), stored, raw).ok());
  EXPECT_THAT(raw, Each(std::byte{1}));
}

TEST_F(SessionCopiesTest, SampledReadsFindDamageAndDropTheBlock) {
  f_.deps().check_one_in = 1;  // applies to sessions made from here on
  EndReader(/*bye=*/true);
  ASSERT_NO_FATAL_FAILURE(Attach(kFeatures));
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const wire::Grant in_place = Acquire({Name(1)});
  Place(in_place.blocks.at(0).extent)[kBytes - 1] ^= std::byte{1};
  Release(in_place.lease);
  (void)Read({Name(1)});
  EXPECT_EQ(Answers(1)[0].second.status, BlockStatus::kDamaged);
  EXPECT_THAT(Statuses(Read({Name(1)})), ElementsAre(BlockStatus::kMissing));
  EXPECT_EQ(f_.store().stats().damaged, 1u);
  f_.deps().check_one_in = 0;
}

TEST_F(SessionCopiesTest, AtItsDeadlineTheLeaseIsReleasedAndPendingKeysAreCancelled) {
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  ASSERT_EQ(Put(2, std::byte{2}), BlockStatus::kOk);
  const std::shared_ptr<std::latch> go = Occupy();
  (void)Read({Name(1), Name(2)});
  f_.clock().Advance(std::chrono::milliseconds(1000));
  reader_->Tick(f_.clock().Now());
  EXPECT_TRUE(read_sink_.empty()) << "neither a revocation nor an answer may have been sent yet";
  go->count_down();
  for (const auto& [key, block] : Answers(2)) EXPECT_EQ(block.status, BlockStatus::kCancelled);
  WaitForNoHolds();
  EXPECT_THAT(Statuses(Read({Name(1)})), ElementsAre(BlockStatus::kPending))
      << "the session must go on";
  ExpectBytes(Answers(1)[0].second, std::byte{1});
}

// The segment is the daemon's memory, besides the block in the pool.  It is freed even if another
// process keeps its descriptor.
TEST_F(SessionCopiesTest, ADroppedSegmentIsFreedEvenIfTheLeaseIsKept) {
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  for (const bool in_time : {true, false}) {
    auto made = f_.staging().Make(process_.id, 65534, ByteCount(kSegmentBytes));
    ASSERT_TRUE(made.ok()) << made.status();
    segment_ = made->id;
    const std::shared_ptr<std::latch> go = in_time ? nullptr : Occupy();
    ASSERT_TRUE(Read({Name(1)}).lease);
    if (in_time) {
      EXPECT_EQ(Answers(1)[0].second.status, BlockStatus::kOk);
    }
    EXPECT_TRUE(f_.staging().Drop(process_.id, segment_));
    if (!in_time) {
      f_.clock().Advance(std::chrono::milliseconds(1000));
      reader_->Tick(f_.clock().Now());
      EXPECT_EQ(f_.store().stats().leases, 0u);
      EXPECT_EQ(reader_->account().held(ShareKind::kLeasedBytes), 0u);
      go->count_down();
      EXPECT_EQ(Answers(1)[0].second.status, BlockStatus::kCancelled);
    }
    const auto bytes = [&] {
      struct stat file {};
      EXPECT_EQ(fstat(made->descriptor.get(), &file), 0);
      return file.st_blocks;
    };
    EXPECT_TRUE(Eventually([&] { return bytes() == 0; })) << in_time;
    EXPECT_TRUE(Eventually([&] { return f_.staging().counts().bytes.value() == kSegmentBytes; }));
  }
}

TEST_F(SessionCopiesTest, ABlockThatIsNamedOftenIsHeldOnceAndCopiedEachTime) {
  constexpr size_t kTimes = 100;
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const std::shared_ptr<std::latch> go = Occupy();
  const Room all{.offset = 0, .bytes = kSegmentBytes};
  EXPECT_THAT(Statuses(Read(std::vector<Digest>(kTimes, Name(1)), all)),
              Each(BlockStatus::kPending));
  EXPECT_EQ(Holds(), 2u) << "one hold by the lease, one for the copies";
  go->count_down();
  const auto answers = Answers(kTimes);
  for (size_t i = 0; i < kTimes; ++i) {
    EXPECT_EQ(answers[i].first, i);
    ExpectBytes(answers[i].second, std::byte{1});
  }
  EXPECT_TRUE(Eventually([&] { return Holds() == 0; }));
}

TEST_F(SessionCopiesTest, CopiesBeyondTheLimitPerMessageAreFull) {
  constexpr size_t kTimes = 1'000, kGiven = 1 + 128;
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const Room all{.offset = 0, .bytes = kSegmentBytes};
  const std::vector<BlockStatus> statuses =
      Statuses(Read(std::vector<Digest>(kTimes, Name(1)), all));
  EXPECT_EQ(std::ranges::count(statuses, BlockStatus::kPending), kGiven);
  EXPECT_EQ(std::ranges::count(statuses, BlockStatus::kFull), kTimes - kGiven);
  EXPECT_EQ(Answers(kGiven).size(), kGiven);
  EXPECT_TRUE(Eventually([&] { return Holds() == 0; }));
}

// A message with a wrong report of device memory may have acquires, too.
TEST_F(SessionCopiesTest, AWrongReportIsRefusedAndNothingElseOfItsMessage) {
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  ASSERT_NO_FATAL_FAILURE(PutEncoded(2));
  for (AttachedSession* const session : {reader_.get(), session_.get()}) {
    wire::Up up;
    wire::Acquire& acquire = up.acquires.emplace_back();
    acquire.id = 4;
    acquire.digests = {Name(1), Name(2)};
    acquire.deadline_ms = 1000;
    acquire.accepted_codecs = {Codec::kIdentity};
    acquire.staging_id = segment_;
    acquire.staging_bytes = kSegmentBytes;
    up.device_blocks.emplace_back().variant = 99;
    EXPECT_TRUE(session->OnUp(up).ok());
  }
  EXPECT_EQ(f_.counters().device_reports_refused.value(), 2u);
  const ProcessId writer = session_->process();
  EndReader(/*bye=*/false);
  End(/*bye=*/false);
  (void)f_.quarantine().Release(writer);
  EXPECT_TRUE(Eventually([&] { return Holds() == 0; })) << Holds();
}

TEST_F(SessionCopiesTest, ACancelledAcquireAnswersEveryKeyOnce) {
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const std::shared_ptr<std::latch> go = Occupy();
  const wire::Grant grant = Read({Name(1)});
  wire::Up up;
  up.cancels.push_back(4);
  ASSERT_TRUE(reader_->OnUp(up).ok());
  go->count_down();
  EXPECT_EQ(Answers(1)[0].second.status, BlockStatus::kCancelled);
  wire::Up release;
  release.releases.push_back(grant.lease);
  ASSERT_TRUE(reader_->OnUp(release).ok());
  WaitForNoHolds();
  EXPECT_TRUE(read_sink_.empty());
}

TEST_F(SessionCopiesTest, ALostReaderKeepsNothing) {
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  const std::shared_ptr<std::latch> go = Occupy();
  (void)Read({Name(1)});
  f_.staging().DropProcess(process_.id);
  EndReader(/*bye=*/false);
  EXPECT_EQ(f_.quarantine().bytes(), ByteCount(0))
      << "a process that never mapped the pool needs no quarantine";
  go->count_down();
  WaitForNoHolds();
}

TEST_F(SessionCopiesTest, AnOlderLibraryIsToldToUseByteStreams) {
  EndReader(/*bye=*/true);
  Attach(wire::kFeatureTiers);
  EXPECT_EQ(reads_.read_mode, wire::ReadMode::kStream);
  EXPECT_EQ(reads_.write_mode, wire::WriteMode::kStream);
  EXPECT_THAT(reads_.read_mode_reason, HasSubstr("older"));
  EXPECT_EQ(reads_.write_mode_reason, reads_.read_mode_reason);
  ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
  EXPECT_THAT(Statuses(Read({Name(1)})), ElementsAre(BlockStatus::kUnsupported));
}

}  // namespace
}  // namespace larder
