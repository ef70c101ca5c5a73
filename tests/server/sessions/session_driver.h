// A fixture with one session of the test's own process: it sends what a client would send, and
// reads the answers.  For tests only.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstring>
#include <latch>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/verbs/block_recoder.h"
#include "tests/server/sessions/session_fixture.h"

namespace larder::testing {

inline constexpr uint32_t kBytes = 8192;

class SessionTest : public ::testing::Test {
 protected:
  void Start(wire::WriteMode mode, bool writable = true) {
    StartAs(f_.Process(getpid(), writable), mode);
  }
  void StartAs(std::optional<AttachedProcess> process, wire::WriteMode mode,
               uint64_t features = wire::kFeatureTiers | wire::kFeatureCopiedReads) {
    session_ = f_.Open(std::move(process), sink_);
    wire::Up up;
    up.hello.emplace();
    up.hello->engine_id = "engine";
    up.hello->write_mode = mode;
    up.hello->feature_bits = features;
    ASSERT_TRUE(session_->OnUp(up).ok());
    attached_ = *sink_.Next().attached;
    wire::Up reg;
    reg.registers.push_back({.id = 1, .contents = {Content()}, .variants = {TestVariant()}});
    ASSERT_TRUE(session_->OnUp(reg).ok());
    const wire::Down down = sink_.Next();
    ASSERT_EQ(down.registered.at(0).status, BlockStatus::kOk) << down.registered[0].message;
    ASSERT_EQ(down.registered[0].variant_ids.at(0), TestVariant().Id());
  }
  void TearDown() override {
    if (session_) End(true);
  }
  void End(bool bye) {
    wire::Up up;
    up.bye = bye;
    if (bye) {
      EXPECT_TRUE(session_->OnUp(up).ok());
    }
    session_->OnClosed();
    f_.sessions().Remove(session_->id());
    session_.reset();
  }

  static ContentSpec Content() {
    ContentSpec content;
    content.model = "m";
    return content;
  }
  static Digest Name(uint32_t seed) { return Chain({}, TestTokens(seed)).back(); }

  wire::Reserved Reserve(std::vector<ByteCount> sizes, uint32_t deadline_ms = 1000) {
    wire::Up up;
    up.reserves.push_back({.id = 2, .bytes = std::move(sizes), .deadline_ms = deadline_ms});
    EXPECT_TRUE(session_->OnUp(up).ok());
    return sink_.Next().reserved.at(0);
  }
  std::span<std::byte> Place(const wire::ExtentGrant& e) {
    return f_.store()
        .Bytes({SlabId(static_cast<uint16_t>(e.slab)), static_cast<uint32_t>(e.offset / kPageBytes),
                PagesFor(ByteCount(e.bytes))})
        .first(e.bytes);
  }
  wire::PublishBlock Block(uint32_t seed, SegmentTable table) {
    wire::PublishBlock block;
    block.digest = Name(seed);
    block.tokens = TestTokens(seed);
    block.segments = std::move(table);
    return block;
  }
  wire::Published Publish(ReservationId id, std::vector<wire::PublishBlock> blocks) {
    wire::Up up;
    up.publishes.push_back({.id = 3, .reservation = id, .variant = 0, .blocks = std::move(blocks)});
    EXPECT_TRUE(session_->OnUp(up).ok());
    return sink_.Next().published.at(0);
  }
  BlockStatus Put(uint32_t seed, std::byte fill) {
    const wire::Reserved reserved = Reserve({ByteCount(kBytes)});
    if (reserved.status != BlockStatus::kOk) return reserved.status;
    SegmentTable table = UniformTable(1, kBytes);
    const auto to = Place(reserved.extents.at(0));
    std::memset(to.data(), static_cast<int>(fill), to.size());
    HashPayload(to, &table);
    return Publish(reserved.reservation, {Block(seed, table)}).status.at(0);
  }
  // Puts block `seed`, all of whose bytes equal its number, and encodes it in HOST.
  void PutEncoded(uint32_t seed) {
    ASSERT_EQ(Put(seed, static_cast<std::byte>(seed)), BlockStatus::kOk);
    const BlockRecoder recoder(f_.store(), {});
    PayloadCodec codec;
    BlockRecoder::Copy copy;
    copy.variant = *f_.store().index().FindVariant(TestVariant().Id());
    copy.digest = Name(seed);
    recoder.Prepare(Codec::kLossless, codec, &copy);
    recoder.Write({&copy, 1}, codec);
    recoder.Release({&copy, 1});
    ASSERT_EQ(copy.outcome, BlockRecoder::Outcome::kChanged);
  }
  wire::Grant Acquire(std::vector<Digest> digests, uint32_t deadline_ms = 1000,
                      wire::AcquireWhat what = wire::AcquireWhat::kBytes) {
    wire::Up up;
    wire::Acquire& acquire = up.acquires.emplace_back();
    acquire.id = 4;
    acquire.digests = std::move(digests);
    acquire.deadline_ms = deadline_ms;
    acquire.accepted_codecs = {Codec::kIdentity};
    acquire.what = what;
    EXPECT_TRUE(session_->OnUp(up).ok());
    return sink_.Next().grants.at(0);
  }
  // Starts a mapped session that holds a lease on block 1, of 8 KiB, and a reservation of 4 KiB.
  void StartWithLeaseAndReservation() {
    Start(wire::WriteMode::kMapped);
    ASSERT_EQ(Put(1, std::byte{1}), BlockStatus::kOk);
    ASSERT_NE(Acquire({Name(1)}).lease.value, 0u);
    ASSERT_EQ(Reserve({KiB(4)}).status, BlockStatus::kOk);
  }
  static std::vector<BlockStatus> Statuses(const wire::Grant& grant) {
    std::vector<BlockStatus> statuses;
    for (const wire::BlockGrant& block : grant.blocks) statuses.push_back(block.status);
    return statuses;
  }
  void Release(LeaseId id) {
    wire::Up up;
    up.releases.push_back(id);
    ASSERT_TRUE(session_->OnUp(up).ok());
  }
  // Occupies both threads of the worker pool until the latch is counted down.
  std::shared_ptr<std::latch> Occupy() {
    const auto begun = std::make_shared<std::latch>(2), go = std::make_shared<std::latch>(1);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(f_.deps().workers.Submit(ShareHolder{}, 0, [begun, go] {
        begun->count_down();
        go->wait();
      }));
    }
    begun->wait();
    return go;
  }
  uint64_t Word(uint32_t index) {
    const int fd = *session_->OpenPage();
    uint64_t word = 0;
    EXPECT_EQ(pread(fd, &word, sizeof word, index * sizeof word),
              static_cast<ssize_t>(sizeof word));
    close(fd);
    return word;
  }

  SessionFixture f_;
  RecordingSink sink_;
  std::shared_ptr<AttachedSession> session_;
  wire::Attached attached_;
};

}  // namespace larder::testing
