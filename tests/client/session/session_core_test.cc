#include "client/session/session_core.h"

#include <sys/wait.h>
#include <unistd.h>

#include <numeric>

#include "client/client.h"
#include "client/transport/copy_pool.h"
#include "client/transport/shm_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/session/fake_daemon.h"

namespace larder {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr size_t kLayerBytes = 3000;

TimePoint Soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(10); }

// A session with one variant of two layers, and the blocks of one chain.
class SessionCoreTest : public ::testing::Test {
 protected:
  void Start(const FakeDaemon::Options& options = {}, ByteCount staging_bytes = MiB(1)) {
    daemon_ = std::make_shared<FakeDaemon>(options);
    core_ = std::make_unique<SessionCore>(daemon_, DirectiveRunner::Handler(), beside_);
    pool_ = std::make_unique<CopyPool>(1);
    transport_ = std::make_unique<ShmTransport>(*core_, AllKernels().back(), *pool_);
    ASSERT_TRUE(daemon_->Attach(*core_, staging_bytes).ok());
    OpenCall call = core_->Open();
    wire::Up up;
    up.registers.push_back({call.id(), {}, {variant_.spec}});
    ASSERT_TRUE(core_->Send(std::move(up)).ok());
    ASSERT_TRUE(call.Wait<wire::Registered>(Soon()).ok());
    variant_.id = variant_.spec.Id();
    std::vector<uint32_t> tokens(16 * 128);
    std::iota(tokens.begin(), tokens.end(), 1);
    chain_ = Chain(Digest{}, tokens);
    tokens_ = std::move(tokens);
  }
  void TearDown() override {
    if (core_ == nullptr) return;
    (void)core_->Close();
    daemon_->Stop();
  }

  // Puts blocks [first, first + count) of the chain; each has different bytes.
  absl::StatusOr<std::vector<BlockStatus>> Put(size_t first, size_t count,
                                               const CallOptions& options = {}) {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<std::vector<std::span<const std::byte>>> segments(count);
    std::vector<PutBlock> blocks;
    for (size_t i = 0; i < count; ++i) {
      for (size_t layer = 0; layer < 2; ++layer) bytes.push_back(Bytes(first + i, layer));
    }
    for (size_t i = 0; i < count; ++i) {
      segments[i] = {bytes[2 * i], bytes[2 * i + 1]};
      const size_t at = first + i;
      blocks.push_back({.digest = chain_[at],
                        .parent = at == 0 ? Digest{} : chain_[at - 1],
                        .tokens = std::span(tokens_).subspan(16 * at, 16),
                        .segments = segments[i]});
    }
    return transport_->Put(variant_, blocks, options);
  }
  // Acquires a lease on one block without reading it.
  absl::StatusOr<wire::Grant> Acquire(const Digest& digest) {
    OpenCall call = core_->Open();
    wire::Up up;
    wire::Acquire& acquire = up.acquires.emplace_back();
    acquire.id = call.id();
    acquire.digests = {digest};
    if (absl::Status status = core_->Send(std::move(up)); !status.ok()) return status;
    return call.Wait<wire::Grant>(Soon());
  }
  // Reads blocks, and compares those that are kOk with what Put wrote.
  absl::StatusOr<std::vector<BlockStatus>> Get(size_t first, size_t count,
                                               const CallOptions& options = {}) {
    std::vector<std::vector<std::byte>> bytes(2 * count, std::vector<std::byte>(kLayerBytes));
    std::vector<std::vector<std::span<std::byte>>> segments(count);
    std::vector<GetBlock> blocks;
    for (size_t i = 0; i < count; ++i) {
      segments[i] = {bytes[2 * i], bytes[2 * i + 1]};
      blocks.push_back({.digest = chain_[first + i], .segments = segments[i]});
    }
    auto status = transport_->Get(variant_, blocks, options);
    for (size_t i = 0; status.ok() && i < count; ++i) {
      if ((*status)[i] != BlockStatus::kOk) continue;
      EXPECT_EQ(bytes[2 * i], Bytes(first + i, 0));
      EXPECT_EQ(bytes[2 * i + 1], Bytes(first + i, 1));
    }
    return status;
  }
  static std::vector<std::byte> Bytes(size_t block, size_t layer) {
    std::vector<std::byte> out(kLayerBytes);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::byte>(i * 31 + block * 7 + layer * 3);
    return out;
  }
  void ExpectAll(const absl::StatusOr<std::vector<BlockStatus>>& got, BlockStatus status) {
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_THAT(*got, Each(status));
  }
  static bool Released(const std::vector<wire::Up>& ups) {
    return std::any_of(ups.begin(), ups.end(),
                       [](const wire::Up& up) { return !up.releases.empty(); });
  }

  std::shared_ptr<std::atomic<size_t>> beside_;
  std::shared_ptr<FakeDaemon> daemon_;
  std::unique_ptr<SessionCore> core_;
  std::unique_ptr<CopyPool> pool_;
  std::unique_ptr<ShmTransport> transport_;
  VariantHandle variant_{
      .index = 0,
      .id = {},
      .spec = {.dtype = "f16", .layout = "test/1", .group = {}, .block_tokens = 16, .layers = 2}};
  std::vector<uint32_t> tokens_;
  std::vector<Digest> chain_;
};

// ---- Messages.

TEST_F(SessionCoreTest, ReleasesTravelWithTheNextRequest) {
  Start();
  ExpectAll(Put(0, 4), BlockStatus::kOk);
  // Get and Put follow each other so closely that the flusher has no time.  A slow machine may need
  // several tries.
  const auto rode = [](const std::vector<wire::Up>& ups) {
    return std::any_of(ups.begin(), ups.end(), [](const wire::Up& up) {
      return !up.releases.empty() && !up.acquires.empty();
    });
  };
  bool seen = false;
  for (int i = 0; i < 1000 && !seen; ++i) {
    ExpectAll(Get(0, 4), BlockStatus::kOk);
    seen = rode(daemon_->WaitUps([](const auto&) { return true; }));
  }
  EXPECT_TRUE(seen);
}

TEST_F(SessionCoreTest, IdleSessionsHoldNoLease) {
  Start();
  ExpectAll(Put(0, 4), BlockStatus::kOk);
  ExpectAll(Get(0, 4), BlockStatus::kOk);
  daemon_->WaitUps([this](const auto& ups) { return Released(ups); });
  EXPECT_EQ(daemon_->leases(), 0u);
}

TEST_F(SessionCoreTest, ASecondPutPublishesWithoutAReserve) {
  Start();
  ExpectAll(Put(0, 8), BlockStatus::kOk);
  const auto stocked = [](const std::vector<wire::Up>& ups) {
    return !ups.empty() && !ups.back().publishes.empty() && !ups.back().reserves.empty();
  };
  daemon_->WaitUps(stocked);
  while (daemon_->open_extents() != 16) std::this_thread::yield();
  const size_t before = daemon_->WaitUps(stocked).size();
  ExpectAll(Put(8, 8), BlockStatus::kOk);
  const std::vector<wire::Up> ups = daemon_->WaitUps([](const auto&) { return true; });
  ASSERT_GT(ups.size(), before);
  // The first message of the second Put must publish.
  EXPECT_FALSE(ups[before].publishes.empty());
}

// A process has one share, which its sessions divide.
TEST_F(SessionCoreTest, SessionsOfAProcessDivideTheirReservedStock) {
  beside_ = std::make_shared<std::atomic<size_t>>(3);
  const ByteCount block(RoundUp(kLayerBytes, kSegmentAlign) + kLayerBytes);
  Start({.lease_bytes_max = ByteCount(64 * block.value())});
  EXPECT_EQ(beside_->load(), 4u);
  ExpectAll(Put(0, 4), BlockStatus::kOk);
  while (daemon_->open_extents() != 2) std::this_thread::yield();
  *beside_ = 1;  // the others have ended
  ExpectAll(Put(4, 4), BlockStatus::kOk);
  while (daemon_->open_extents() != 8) std::this_thread::yield();
  (void)core_->Close();
  EXPECT_EQ(beside_->load(), 0u);
}

TEST_F(SessionCoreTest, CloseReleasesTheReservedStockAndSendsByeLast) {
  Start();
  ExpectAll(Put(0, 8), BlockStatus::kOk);
  ExpectAll(Get(0, 8), BlockStatus::kOk);
  EXPECT_TRUE(core_->Close());
  daemon_->Stop();
  EXPECT_EQ(daemon_->open_extents(), 0u);
  EXPECT_EQ(daemon_->leases(), 0u);
  const std::vector<wire::Up> ups = daemon_->WaitUps([](const auto&) { return true; });
  wire::Up bye;
  bye.bye = true;
  EXPECT_EQ(ups.back(), bye);
}

TEST_F(SessionCoreTest, PendingBlocksAreCopiedWhenTheyAreReady) {
  Start();  // only to get the chain
  (void)core_->Close();
  daemon_->Stop();
  Start({.pending = {chain_[1], chain_[3]}});
  ExpectAll(Put(0, 5), BlockStatus::kOk);
  ExpectAll(Get(0, 5), BlockStatus::kOk);
}

// The daemon serves the request that is done soonest, and needs to know what follows.
TEST_F(SessionCoreTest, EachRequestNamesTheBytesThatFollow) {
  Start();
  ExpectAll(Get(0, 40, {.remaining = ByteCount(1000)}), BlockStatus::kMissing);
  std::vector<uint64_t> remaining;
  for (const wire::Up& up : daemon_->WaitUps([](const auto&) { return true; }))
    for (const wire::Acquire& acquire : up.acquires) remaining.push_back(acquire.remaining_bytes);
  const uint64_t block = RoundUp(kLayerBytes, kSegmentAlign) + kLayerBytes;
  EXPECT_THAT(remaining, ElementsAre(1000 + 24 * block, 1000 + 8 * block, 1000));
}

TEST_F(SessionCoreTest, PendingBlocksThatNeverComeAreCancelled) {
  Start();
  (void)core_->Close();
  daemon_->Stop();
  Start({.pending = {chain_[1]}});
  ExpectAll(Put(0, 3), BlockStatus::kOk);
  daemon_->SetTamper([](wire::Down& down) { down.ready.clear(); });
  const auto got = Get(0, 3, {.deadline = std::chrono::seconds(1)});
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(*got, ElementsAre(BlockStatus::kOk, BlockStatus::kCancelled, BlockStatus::kOk));
  daemon_->WaitUps([](const auto& ups) {
    return std::any_of(ups.begin(), ups.end(),
                       [](const wire::Up& up) { return !up.cancels.empty(); });
  });
}

TEST_F(SessionCoreTest, FailedBlocksKeepTheirStatus) {
  Start();
  (void)core_->Close();
  daemon_->Stop();
  Start({.pending = {chain_[1]}});
  ExpectAll(Put(0, 2), BlockStatus::kOk);
  daemon_->SetTamper([](wire::Down& down) {
    for (const wire::BlockReady& ready : down.ready) {
      down.failed.push_back({ready.id, ready.key, BlockStatus::kMissing});
    }
    down.ready.clear();
  });
  const auto got = Get(0, 2);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(*got, ElementsAre(BlockStatus::kOk, BlockStatus::kMissing));
}

TEST_F(SessionCoreTest, ADrainDirectiveIsNoticed) {
  Start();
  EXPECT_FALSE(core_->draining());
  wire::Down down;
  down.directives.emplace_back().kind = wire::DirectiveKind::kDrain;
  core_->OnDown(std::move(down));
  EXPECT_TRUE(core_->draining());
}

// ---- Bytes.

TEST_F(SessionCoreTest, DamagedBytesAreNeverReturned) {
  Start({.tables = true});
  ExpectAll(Put(0, 3), BlockStatus::kOk);
  ExpectAll(Get(0, 3), BlockStatus::kOk);
  EXPECT_EQ(core_->counters().checked.load(), 3u);
  daemon_->DamageAll();
  ExpectAll(Get(0, 3), BlockStatus::kDamaged);
  EXPECT_EQ(core_->counters().damaged.load(), 3u);
  daemon_->WaitUps([this](const auto& ups) {
    return std::any_of(ups.begin(), ups.end(), [this](const wire::Up& up) {
      return up.damaged.size() == 1 &&
             up.damaged[0].digests == std::vector<Digest>(chain_.begin(), chain_.begin() + 3);
    });
  });
}

TEST_F(SessionCoreTest, BytesOfARevokedLeaseAreDiscarded) {
  Start();
  ExpectAll(Put(0, 3), BlockStatus::kOk);
  LeaseId lease;
  daemon_->SetTamper([&](wire::Down& down) {  // revoked between the grant and the end of the copy
    if (down.grants.empty()) return;
    lease = down.grants[0].lease;
    daemon_->ClearWord(down.grants[0].word);
    down.revocations.push_back({{lease}, {}, wire::RevocationCause::kDeadline});
  });
  ExpectAll(Get(0, 3), BlockStatus::kCancelled);
  EXPECT_EQ(core_->counters().blocks_got.load(), 0u);
  // The daemon is told that the lease is not used, whether the copy ended before or after the
  // revocation was read.
  daemon_->WaitUps([&](const auto& ups) {
    return std::any_of(ups.begin(), ups.end(), [&](const wire::Up& up) {
      const std::vector<LeaseId>& acks = up.revoke_ack ? up.revoke_ack->leases : up.releases;
      return std::find(acks.begin(), acks.end(), lease) != acks.end();
    });
  });
}

TEST_F(SessionCoreTest, ARevokedLeaseIsAcknowledgedWhenItsReaderEndsIt) {
  Start();
  ExpectAll(Put(0, 1), BlockStatus::kOk);
  const auto grant = Acquire(chain_[0]);
  ASSERT_TRUE(grant.ok());
  EXPECT_TRUE(core_->Holds(grant->lease, grant->word));
  daemon_->RevokeAll();
  while (core_->counters().revoked.load() == 0) std::this_thread::yield();
  EXPECT_FALSE(core_->Holds(grant->lease, grant->word));
  const auto acknowledged = [&](const std::vector<wire::Up>& ups) {
    return std::any_of(ups.begin(), ups.end(), [&](const wire::Up& one) {
      return one.revoke_ack && one.revoke_ack->leases == std::vector<LeaseId>{grant->lease};
    });
  };
  ExpectAll(Put(1, 1), BlockStatus::kOk);  // an acknowledgement could travel with this
  EXPECT_FALSE(
      acknowledged(daemon_->WaitUps([](const auto&) { return true; })));  // it is still read
  core_->EndLease(grant->lease);
  daemon_->WaitUps(acknowledged);
}

TEST_F(SessionCoreTest, RevokedReservationsAreAcknowledgedAndNotUsed) {
  Start();
  ExpectAll(Put(0, 4), BlockStatus::kOk);
  while (daemon_->open_extents() != 8) std::this_thread::yield();
  daemon_->RevokeAll();
  daemon_->WaitUps([](const auto& ups) {
    return std::any_of(ups.begin(), ups.end(), [](const wire::Up& up) {
      return up.revoke_ack && !up.revoke_ack->reservations.empty();
    });
  });
  ExpectAll(Put(4, 4), BlockStatus::kOk);
  ExpectAll(Get(0, 8), BlockStatus::kOk);
}

TEST_F(SessionCoreTest, BatchesLargerThanTheStagingSegmentAreSplit) {
  Start({.write_mode = WriteMode::kStaged}, KiB(24));  // three blocks
  ExpectAll(Put(0, 100), BlockStatus::kOk);
  ExpectAll(Get(0, 100), BlockStatus::kOk);
}

TEST_F(SessionCoreTest, ASmallerStagingSegmentIsUsedIfALargerOneIsRefused) {
  Start({.write_mode = WriteMode::kStaged, .staging_bytes_max = MiB(5)}, MiB(64));
  EXPECT_EQ(core_->staging()->size(), MiB(4));
  ExpectAll(Put(0, 2), BlockStatus::kOk);
  ExpectAll(Get(0, 2), BlockStatus::kOk);
  const auto room = core_->staging()->Allocate(MiB(6), Soon());
  EXPECT_THAT(std::string(room.status().message()), ::testing::HasSubstr("too large"))
      << "a larger request would not succeed, so the error must be the daemon's";
}

TEST_F(SessionCoreTest, ALateAnswerFreesTheStagingMemoryOfATimedOutPut) {
  Start({.write_mode = WriteMode::kStaged}, KiB(24));  // three blocks
  std::atomic<bool> answer{false};
  daemon_->SetTamper([&](wire::Down& down) {
    while (!down.published.empty() && !answer.load()) std::this_thread::yield();
  });
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(Put(0, 3, {.deadline = std::chrono::milliseconds(20)}).status()));
  answer = true;
  ExpectAll(Put(3, 3), BlockStatus::kOk);
  ExpectAll(Get(0, 6), BlockStatus::kOk);
}

TEST_F(SessionCoreTest, BlocksLargerThanTheStagingSegmentAreRefusedWithAdvice) {
  Start({.write_mode = WriteMode::kStaged}, KiB(4));
  const auto put = Put(0, 1);
  EXPECT_EQ(put.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(put.status().message()), ::testing::HasSubstr("staging_bytes"));
}

TEST_F(SessionCoreTest, AFullPoolIsAStatusPerBlock) {
  Start({.pool = KiB(64), .lease_bytes_max = KiB(64)});  // eight blocks
  ExpectAll(Put(0, 8), BlockStatus::kOk);
  ExpectAll(Put(8, 2), BlockStatus::kFull);
  ExpectAll(Get(0, 8), BlockStatus::kOk);
}

// ---- A daemon that sends invalid messages.

TEST_F(SessionCoreTest, ExtentsOutsideTheSlabAreNotRead) {
  Start();
  ExpectAll(Put(0, 1), BlockStatus::kOk);
  for (const wire::ExtentGrant& extent : std::vector<wire::ExtentGrant>{{0, MiB(16).value(), 0},
                                                                        {0, UINT64_MAX - 63, 0},
                                                                        {7, 0, 0},
                                                                        {1u << 31, 0, 0},
                                                                        {0, 1, 0}}) {
    daemon_->SetTamper([&](wire::Down& down) {
      for (wire::Grant& grant : down.grants) {
        const uint64_t bytes = grant.blocks[0].extent.bytes;
        grant.blocks[0].extent = extent;
        grant.blocks[0].extent.bytes = bytes;
      }
    });
    // A slab that cannot be mapped is not damage.  Neither case is reported as damage.
    ExpectAll(Get(0, 1), extent.slab == 7 ? BlockStatus::kCancelled : BlockStatus::kDamaged);
  }
  EXPECT_TRUE(core_->status().ok());
  (void)core_->Close();
  daemon_->Stop();
  for (const wire::Up& up : daemon_->WaitUps([](const auto&) { return true; })) {
    EXPECT_TRUE(up.damaged.empty());
  }
}

TEST_F(SessionCoreTest, AFailedSidebandEndsTheSession) {
  Start();
  ExpectAll(Put(0, 2), BlockStatus::kOk);
  daemon_->FailMapping(absl::DeadlineExceededError("no answer"));
  ExpectAll(Get(0, 2), BlockStatus::kCancelled);
  EXPECT_TRUE(absl::IsUnavailable(core_->status())) << core_->status();
  EXPECT_TRUE(daemon_->cancelled());
  (void)core_->Close();
  EXPECT_FALSE(core_->bye_flag()->load());
}

TEST_F(SessionCoreTest, ExtentsOutsideTheSlabAreNotWritten) {
  Start();
  daemon_->SetTamper([](wire::Down& down) {
    for (wire::Reserved& reserved : down.reserved) {
      for (wire::ExtentGrant& extent : reserved.extents) extent.offset = MiB(16).value();
    }
  });
  ExpectAll(Put(0, 2), BlockStatus::kNotHeld);
}

TEST_F(SessionCoreTest, WrongCountsFailTheCallAndReleaseTheLease) {
  Start();
  ExpectAll(Put(0, 3), BlockStatus::kOk);
  daemon_->SetTamper([](wire::Down& down) {
    for (wire::Grant& grant : down.grants) grant.blocks.pop_back();
    for (wire::Published& published : down.published) published.status.push_back(BlockStatus::kOk);
    for (wire::Reserved& reserved : down.reserved) reserved.extents.emplace_back();
  });
  EXPECT_EQ(Get(0, 3).status().code(), absl::StatusCode::kInternal);
  daemon_->WaitUps([this](const auto& ups) { return Released(ups); });
  EXPECT_EQ(daemon_->leases(), 0u);
  EXPECT_EQ(Put(3, 3).status().code(), absl::StatusCode::kInternal);
}

TEST_F(SessionCoreTest, GrantsAndReservationsWithUnknownIdsAreReleased) {
  Start();
  wire::Down down;
  down.grants.push_back({.id = 999'999, .lease = LeaseId{77}, .blocks = {}});
  down.published.push_back({.id = 999'999, .status = {BlockStatus::kOk}, .message = {}});
  down.ready.push_back({.id = 999'999, .key = 5, .block = {}});
  wire::Reserved& reserved = down.reserved.emplace_back();
  reserved.id = 999'999;
  reserved.reservation = ReservationId{78};
  reserved.extents.resize(2);
  daemon_->Push(std::move(down));
  daemon_->WaitUps([](const auto& ups) {
    bool released = false;
    size_t aborted = 0;
    for (const wire::Up& up : ups) {
      released = released || (up.releases.size() == 1 && up.releases[0] == LeaseId{77});
      for (const wire::Abort& abort : up.aborts)
        aborted += abort.reservation == ReservationId{78} ? 1 : 0;
    }
    return released && aborted == 2;
  });
}

TEST_F(SessionCoreTest, AnswersOfAnotherKindFailTheCall) {
  Start();
  ExpectAll(Put(0, 1), BlockStatus::kOk);
  daemon_->SetTamper([](wire::Down& down) {
    if (down.grants.empty()) return;
    down.published.push_back(
        {.id = down.grants[0].id, .status = {BlockStatus::kOk}, .message = {}});
  });
  EXPECT_EQ(Get(0, 1).status().code(), absl::StatusCode::kInternal);
  daemon_->WaitUps(
      [this](const auto& ups) { return Released(ups); });  // the grant that came too late
}

TEST_F(SessionCoreTest, TablesThatDoNotFitAreInvalid) {
  Start({.tables = true});
  ExpectAll(Put(0, 1), BlockStatus::kOk);
  daemon_->SetTamper([](wire::Down& down) {
    for (wire::Grant& grant : down.grants) grant.blocks[0].table->segments.pop_back();
  });
  ExpectAll(Get(0, 1), BlockStatus::kInvalid);
}

// ---- The end.

TEST_F(SessionCoreTest, CloseDropsTheStagingSegment) {
  for (const bool lost : {false, true}) {
    Start({.write_mode = WriteMode::kStaged});
    ExpectAll(Put(0, 2), BlockStatus::kOk);
    if (lost) core_->OnBroken(absl::UnavailableError("the daemon went away"));
    EXPECT_EQ(daemon_->staging_dropped(), 0u);
    (void)core_->Close();
    (void)core_->Close();
    EXPECT_EQ(daemon_->staging_dropped(), 1u);
    daemon_->Stop();
  }
}

TEST_F(SessionCoreTest, AForkedChildHoldsNothingAndSendsNothing) {
  Start();
  ExpectAll(Put(0, 1), BlockStatus::kOk);
  const auto grant = Acquire(chain_[0]);
  ASSERT_TRUE(grant.ok());
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    if (!absl::IsFailedPrecondition(core_->status())) wrong |= 1;
    if (!absl::IsFailedPrecondition(core_->Send({}))) wrong |= 2;
    if (core_->Holds(grant->lease, grant->word)) wrong |= 4;
    core_->EndLease(grant->lease);
    (void)core_->Close();  // would wait for a thread that does not exist here
    if (core_->bye_flag()->load()) wrong |= 8;
    _exit(wrong);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_TRUE(core_->Holds(grant->lease, grant->word));
  core_->EndLease(grant->lease);
}

TEST_F(SessionCoreTest, ABrokenStreamFailsWaitersAndUnmapsTheSlabs) {
  Start();
  ExpectAll(Put(0, 2), BlockStatus::kOk);
  ExpectAll(Get(0, 2), BlockStatus::kOk);
  daemon_->SetTamper([](wire::Down& down) { down = {}; });  // no answers from here on
  absl::Status waiter;
  std::thread waiting([&] { waiter = Get(0, 2).status(); });
  daemon_->WaitUps([](const auto& ups) { return !ups.back().acquires.empty() && ups.size() > 3; });
  daemon_->Stop();
  const std::weak_ptr<std::vector<std::byte>> slab = daemon_->slab();
  daemon_->ForgetSlab();
  EXPECT_FALSE(slab.expired());  // the session still maps it
  core_->OnBroken(absl::UnavailableError("the daemon went away"));
  waiting.join();
  EXPECT_TRUE(absl::IsUnavailable(waiter)) << waiter;
  EXPECT_TRUE(slab.expired());
  EXPECT_TRUE(absl::IsUnavailable(core_->status()));
  EXPECT_TRUE(absl::IsUnavailable(Get(0, 2).status()));
  EXPECT_TRUE(absl::IsUnavailable(Put(0, 2).status()));
}

TEST_F(SessionCoreTest, WithoutAnAnswerACallTimesOutAndALateLeaseIsReleased) {
  Start();
  ExpectAll(Put(0, 1), BlockStatus::kOk);
  wire::Down late;
  daemon_->SetTamper([&](wire::Down& down) {
    if (!down.grants.empty()) std::swap(late, down);
  });
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(Get(0, 1, {.deadline = std::chrono::milliseconds(20)}).status()));
  daemon_->WaitUps([](const auto& ups) { return !ups.empty(); });
  while (daemon_->leases() == 0) std::this_thread::yield();
  EXPECT_EQ(daemon_->leases(), 1u);
  daemon_->Stop();  // its thread no longer uses `late`
  EXPECT_FALSE(late.grants.empty());
  core_->OnDown(std::move(late));
  EXPECT_FALSE(core_->Holds(LeaseId{}, 0));
}

TEST_F(SessionCoreTest, ManyThreadsShareASession) {
  Start({.tables = true});
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int round = 0; round < 20; ++round) {
        const auto put = Put(t * 24, 24);
        EXPECT_TRUE(put.ok()) << put.status();
        ExpectAll(Get(t * 24, 24), BlockStatus::kOk);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(core_->counters().blocks_put.load(), 96u);
  EXPECT_EQ(core_->counters().blocks_got.load(), 4u * 20 * 24);
}

}  // namespace
}  // namespace larder
