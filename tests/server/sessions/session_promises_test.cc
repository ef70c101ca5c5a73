// Promises: what one session of an engine asks for and another one reads.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "server/sessions/promise_table.h"
#include "storage/disk/page_buffer.h"
#include "storage/tiering/tier_worker.h"
#include "tests/server/sessions/session_fixture.h"
#include "tests/storage/tiering/gated_tier.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder {
namespace {

using testing::GatedTier;
using testing::RecordingSink;
using testing::TestTokens;
using testing::TestVariant;

constexpr uint32_t kPage = 4096;
constexpr size_t kSteps = 12;

ContentSpec Content() {
  ContentSpec content;
  content.model = "m";
  return content;
}

// Two ranks, each with blocks of 16 tokens.
std::vector<VariantSpec> TwoRanks() {
  std::vector<VariantSpec> variants(2, TestVariant());
  for (uint32_t rank = 0; rank < 2; ++rank) {
    variants[rank].rank = rank;
    variants[rank].ranks = 2;
  }
  return variants;
}

class PromisesTest : public ::testing::Test {
 protected:
  // One session, and what it was answered.
  struct Attached {
    std::shared_ptr<AttachedSession> session;
    RecordingSink sink;
    wire::Promised Ask(wire::Promise request) {
      wire::Up up;
      up.promises.push_back(std::move(request));
      EXPECT_TRUE(session->OnUp(up).ok());
      return sink.Next().promised.at(0);
    }
    wire::Grant Read(uint32_t variant, std::vector<Digest> keys, LeaseId promise) {
      wire::Up up;
      wire::Acquire& acquire = up.acquires.emplace_back();
      acquire.id = 4;
      acquire.variant = variant;
      acquire.digests = std::move(keys);
      acquire.deadline_ms = 60'000;
      acquire.accepted_codecs = {Codec::kIdentity};
      acquire.promised_lease = promise;
      EXPECT_TRUE(session->OnUp(up).ok());
      return sink.Next().grants.at(0);
    }
    void Release(LeaseId lease) {
      wire::Up up;
      up.releases.push_back(lease);
      EXPECT_TRUE(session->OnUp(up).ok());
    }
  };

  void TearDown() override {
    for (Attached* const one : {&scheduler_, &worker_, &stranger_}) End(*one);
    if (gate_) gate_->Open();
    if (disk_) {
      EXPECT_TRUE(Eventually([&] { return disk_->promoter().stats().waiting == 0; }));
    }
    f_.deps().promises.Tick(f_.clock().Now());
    EXPECT_EQ(f_.deps().promises.stats().promises, 0u);
    EXPECT_EQ(f_.shares().held(ShareKind::kLeasedBytes), 0u);
    EXPECT_EQ(f_.shares().held(ShareKind::kLeases), 0u);
    EXPECT_EQ(f_.store().stats().leases, 0u);
  }

  void Attach(Attached& to, const std::vector<VariantSpec>& variants,
              const std::string& engine = "engine") {
    to.session =
        f_.Open(f_.Process(getpid(), true), to.sink);  // a process of its own for the daemon
    wire::Up up;
    up.hello.emplace();
    up.hello->engine_id = engine;
    up.hello->write_mode = wire::WriteMode::kMapped;
    up.hello->feature_bits = wire::kFeatureTiers;
    up.registers.push_back({.id = 1, .contents = {Content()}, .variants = variants});
    ASSERT_TRUE(to.session->OnUp(up).ok());
    EXPECT_NE(to.sink.Next().attached->feature_bits & wire::kFeaturePromises, 0u);
    ASSERT_EQ(to.sink.Next().registered.at(0).status, BlockStatus::kOk);
  }
  void AttachBoth(const std::vector<VariantSpec>& variants = TwoRanks()) {
    Attach(scheduler_, variants);
    Attach(worker_, variants);
    Attach(stranger_, variants, "another engine");
    variants_ = variants;
  }
  void End(Attached& one) {
    if (one.session == nullptr) return;
    wire::Up up;
    up.bye = true;
    EXPECT_TRUE(one.session->OnUp(up).ok());
    one.session->OnClosed();
    f_.sessions().Remove(one.session->id());
    one.session.reset();
  }

  [[nodiscard]] VariantIndex IndexOf(size_t variant) {
    return *f_.store().index().FindVariant(variants_[variant].Id());
  }
  // Stores the block of the variant that ends after step `step`.
  void Store(size_t variant, size_t step) {
    const ByteCount bytes(kPage);
    auto reserved = f_.store().Reserve({&bytes, 1}, GiB(1));
    ASSERT_EQ(reserved.status, BlockStatus::kOk);
    const SegmentTable table = UniformTable(1, kPage);
    ASSERT_EQ(f_.store().Publish(reserved.reservation, 0,
                                 {IndexOf(variant), chain_[step], {}, {}, &table}),
              BlockStatus::kOk);
  }
  void StoreSteps(size_t variant, size_t begin, size_t end) {
    for (size_t step = begin; step < end; ++step) Store(variant, step);
  }
  // Writes blocks of rank 0 to a disk, as an earlier daemon would have, and opens it.
  void OpenDisk(size_t begin, size_t end) {
    MemoryDiskTier former(GiB(1), medium_);
    ASSERT_TRUE(
        former.Recover([](const DiskTier::Entry&) { return 1u; }, [] { return false; }).ok());
    for (size_t step = begin; step < end; ++step) {
      const PageBuffer pages(1);
      RecordHeader header;
      header.key = {TwoRanks()[0].Id(), chain_[step]};
      header.block_tokens = 16;
      header.layout = TestVariant().layout;
      header.dtype = TestVariant().dtype;
      header.table = UniformTable(1, kPage);
      HashPayload(pages.bytes(), &header.table);
      const std::vector<uint32_t> tokens = TestTokens(static_cast<uint32_t>(step));
      const DiskTier::NewBlock block{
          .header = &header, .tokens = tokens, .payload = pages.bytes().first(kPage)};
      DiskTier::PutResult result;
      former.Put({&block, 1}, {&result, 1});
      ASSERT_EQ(result.status, DiskTier::PutStatus::kOk);
    }
    gate_.emplace(GiB(1), medium_);
    disk_.emplace(*gate_, f_.store(), f_.clock(), 2, ByteCount(0),
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
    f_.deps().disk = &*disk_;
    disk_->StartRecovery([](const absl::Status&, uint64_t, Duration) {});
    ASSERT_TRUE(Eventually([&] { return !disk_->recovering(); }));
  }
  wire::Promise Both(uint32_t deadline_ms = 60'000) const {
    wire::Promise request;
    request.id = 9;
    request.variants = {0, 1};
    request.digests = chain_;
    request.deadline_ms = deadline_ms;
    return request;
  }
  static wire::Promise Join(LeaseId promise, uint32_t deadline_ms = 1'000) {
    wire::Promise request;
    request.id = 9;
    request.promise = promise;
    request.deadline_ms = deadline_ms;
    return request;
  }
  [[nodiscard]] std::vector<Digest> Keys(size_t begin, size_t end) const {
    return {chain_.begin() + static_cast<ptrdiff_t>(begin),
            chain_.begin() + static_cast<ptrdiff_t>(end)};
  }
  [[nodiscard]] uint64_t Charged() { return f_.shares().held(ShareKind::kLeasedBytes); }
  // Reserves the whole pool, so that everything that may be evicted is.
  void Churn() {
    for (const uint64_t bytes : {MiB(1).value(), uint64_t{kPage}}) {
      const ByteCount size(bytes);
      std::vector<ExtentReservation> all;
      for (;;) {
        auto reserved = f_.store().Reserve({&size, 1}, GiB(1));
        if (reserved.status != BlockStatus::kOk) break;
        all.push_back(std::move(reserved.reservation));
      }
    }
  }

  testing::SessionFixture f_;
  const std::vector<Digest> chain_ = [] {
    ContentSpec content = Content();
    content.tenant = "default";
    return Chain(content.Id(), TestTokens(1, 16 * kSteps));
  }();
  std::vector<VariantSpec> variants_;
  MemoryDiskTier::Medium medium_;
  std::optional<GatedTier> gate_;
  std::optional<TierWorker> disk_;
  Attached scheduler_, worker_, stranger_;
};

TEST_F(PromisesTest, AnswersTheLongestPrefixOfAllVariantsAndHoldsItForEverySession) {
  AttachBoth();
  StoreSteps(0, 0, 8);
  StoreSteps(1, 0, 6);
  const wire::Promised promised = scheduler_.Ask(Both());
  ASSERT_EQ(promised.status, BlockStatus::kOk);
  EXPECT_EQ(promised.tokens, 96u);
  ASSERT_EQ(promised.blocks.size(), 2u);
  for (const wire::PromisedBlocks& of_rank : promised.blocks) {
    EXPECT_EQ(of_rank.first_block, 0u);
    EXPECT_EQ(of_rank.status, std::vector(6, BlockStatus::kOk));
    EXPECT_EQ(of_rank.tiers, std::vector(6, Tier::kHost));
  }
  EXPECT_EQ(Charged(), 12u * kPage);
  const wire::Promised joined = worker_.Ask(Join(promised.promise, 1'000));
  EXPECT_EQ(joined.status, BlockStatus::kOk);
  EXPECT_EQ(joined.tokens, 96u);
  EXPECT_EQ(joined.deadline_ms, 60'000u) << "a deadline does not become earlier";
  scheduler_.Release(promised.promise);
  Churn();
  for (const uint32_t rank : {0, 1}) {
    const wire::Grant grant = worker_.Read(rank, Keys(0, 6), promised.promise);
    for (const wire::BlockGrant& block : grant.blocks) EXPECT_EQ(block.status, BlockStatus::kOk);
    worker_.Release(grant.lease);
  }
  worker_.Release(promised.promise);
  EXPECT_EQ(Charged(), 0u);
  Churn();
  EXPECT_EQ(scheduler_.Ask(Both()).status, BlockStatus::kMissing);
}

TEST_F(PromisesTest, WhatAnEngineHoldsIsChargedOnce) {
  AttachBoth();
  for (const size_t rank : {0, 1}) StoreSteps(rank, 0, kSteps);
  const LeaseId first = scheduler_.Ask(Both()).promise, second = worker_.Ask(Both()).promise;
  EXPECT_EQ(Charged(), 2 * kSteps * kPage);
  const wire::Grant under = worker_.Read(0, Keys(0, kSteps), first);
  EXPECT_EQ(Charged(), 2 * kSteps * kPage) << "read under a promise";
  const wire::Grant beside = worker_.Read(0, Keys(0, 1), {});
  EXPECT_EQ(Charged(), (2 * kSteps + 1) * kPage) << "read without one";
  worker_.Release(beside.lease);
  scheduler_.Release(first);
  worker_.Release(second);
  EXPECT_EQ(Charged(), kSteps * kPage) << "what is still being read";
  worker_.Release(under.lease);
  EXPECT_EQ(Charged(), 0u);
}

TEST_F(PromisesTest, HoldsOnlyWhatTheEngineDoesNotHave) {
  AttachBoth();
  for (const size_t rank : {0, 1}) StoreSteps(rank, 0, 6);
  wire::Promise request = Both();
  request.first_token = 64;
  const wire::Promised promised = scheduler_.Ask(request);
  EXPECT_EQ(promised.tokens, 96u);
  EXPECT_EQ(promised.blocks.at(1).first_block, 4u);
  EXPECT_EQ(promised.blocks[1].status.size(), 2u);
  request.first_token = 96;
  EXPECT_EQ(scheduler_.Ask(request).status, BlockStatus::kMissing) << "nothing beyond that";
}

TEST_F(PromisesTest, GroupsNeedDifferentBlocks) {
  std::vector<VariantSpec> variants(3, TestVariant());
  variants[1].group = "window";
  variants[1].kind = GroupKind::kWindow;
  variants[1].window_tokens = 32;
  variants[2].group = "state";
  variants[2].kind = GroupKind::kState;
  AttachBoth(variants);
  StoreSteps(0, 0, kSteps);
  StoreSteps(1, 3, 9);
  for (const size_t step : {4, 7, 10}) Store(2, step);
  wire::Promise request = Both();
  request.variants = {0, 1, 2};
  const wire::Promised promised = scheduler_.Ask(request);
  EXPECT_EQ(promised.tokens, 8u * 16) << "no window before step 10";
  EXPECT_EQ(promised.blocks.at(0).status.size(), 8u);
  EXPECT_EQ(promised.blocks.at(1).first_block, 6u);
  EXPECT_EQ(promised.blocks.at(1).status.size(), 2u);
  EXPECT_EQ(promised.blocks.at(2).first_block, 7u);
  EXPECT_EQ(promised.blocks.at(2).status.size(), 1u);
}

TEST_F(PromisesTest, EndsAtItsDeadlineForAllAndCanBeExtended) {
  AttachBoth();
  for (const size_t rank : {0, 1}) StoreSteps(rank, 0, 2);
  const LeaseId promise = scheduler_.Ask(Both(/*deadline_ms=*/1'000)).promise;
  EXPECT_EQ(worker_.Ask(Join(promise, 3'000)).deadline_ms, 3'000u);
  f_.clock().Advance(std::chrono::seconds(2));
  f_.deps().promises.Tick(f_.clock().Now());
  EXPECT_GT(Charged(), 0u) << "extended";
  f_.clock().Advance(std::chrono::seconds(2));
  f_.deps().promises.Tick(f_.clock().Now());
  EXPECT_EQ(Charged(), 0u);
  for (Attached* const one : {&scheduler_, &worker_})
    EXPECT_EQ(one->sink.Next().revocations.at(0).leases, std::vector{promise});
  EXPECT_EQ(worker_.Ask(Join(promise)).status, BlockStatus::kMissing);
}

TEST_F(PromisesTest, ServesNoOtherEngine) {
  AttachBoth();
  for (const size_t rank : {0, 1}) StoreSteps(rank, 0, 2);
  const LeaseId promise = scheduler_.Ask(Both()).promise;
  const uint64_t before = Charged();
  EXPECT_EQ(stranger_.Ask(Join(promise)).status, BlockStatus::kMissing);
  const wire::Grant read = stranger_.Read(0, Keys(0, 1), promise);
  EXPECT_EQ(read.blocks.at(0).status, BlockStatus::kOk);
  EXPECT_EQ(Charged(), before + kPage) << "charged as without a promise";
  stranger_.Release(promise);
  EXPECT_EQ(f_.deps().promises.stats().promises, 1u);
  EXPECT_EQ(f_.counters().unknown_releases.value(), 1u);
}

TEST_F(PromisesTest, EndsWithItsLastSession) {
  AttachBoth();
  for (const size_t rank : {0, 1}) StoreSteps(rank, 0, 2);
  const LeaseId promise = scheduler_.Ask(Both()).promise;
  ASSERT_EQ(worker_.Ask(Join(promise)).status, BlockStatus::kOk);
  End(scheduler_);
  EXPECT_GT(Charged(), 0u);
  End(worker_);
  EXPECT_EQ(Charged(), 0u);
}

TEST_F(PromisesTest, BlocksOnDiskAreReadAndEverySessionIsTold) {
  AttachBoth();
  ASSERT_NO_FATAL_FAILURE(OpenDisk(2, kSteps));
  StoreSteps(0, 0, 2);
  StoreSteps(1, 0, kSteps);
  gate_->Shut();
  const wire::Promised promised = scheduler_.Ask(Both());
  ASSERT_EQ(promised.status, BlockStatus::kOk);
  EXPECT_EQ(promised.tokens, kSteps * 16);
  const wire::PromisedBlocks& rank0 = promised.blocks.at(0);
  EXPECT_EQ(std::ranges::count(rank0.status, BlockStatus::kPending),
            static_cast<ptrdiff_t>(kSteps - 2));
  EXPECT_EQ(rank0.tiers.at(1), Tier::kHost);
  EXPECT_EQ(rank0.tiers.at(2), Tier::kDisk);
  ASSERT_EQ(worker_.Ask(Join(promised.promise)).status, BlockStatus::kOk);
  gate_->Open();
  for (Attached* const one : {&scheduler_, &worker_}) {
    size_t ready = 0;
    while (ready < kSteps - 2) {
      const wire::Down news = one->sink.Next();
      for (const wire::PromiseReady::Block& block : news.promise_ready.at(0).blocks) {
        EXPECT_EQ(block.variant, 0u);
        EXPECT_GE(block.block, 2u);
        EXPECT_EQ(block.status, BlockStatus::kOk);
        ++ready;
      }
    }
  }
  Churn();
  const wire::Grant grant = worker_.Read(0, Keys(0, kSteps), promised.promise);
  for (const wire::BlockGrant& block : grant.blocks) EXPECT_EQ(block.status, BlockStatus::kOk);
}

TEST_F(PromisesTest, RefusesWhatItCannotHold) {
  AttachBoth();
  wire::Promise request = Both();
  EXPECT_EQ(scheduler_.Ask(request).status, BlockStatus::kMissing);
  request.variants = {0, 7};
  EXPECT_EQ(scheduler_.Ask(request).status, BlockStatus::kInvalid);
  request.variants.clear();
  EXPECT_EQ(scheduler_.Ask(request).status, BlockStatus::kInvalid);
  request.variants = {0, 0};
  EXPECT_EQ(scheduler_.Ask(request).status, BlockStatus::kInvalid) << "a variant twice";
  request.variants = {0};
  StoreSteps(0, 0, 2);
  request.digests = {chain_[0], chain_[0]};
  EXPECT_EQ(scheduler_.Ask(request).status, BlockStatus::kInvalid) << "a digest twice";
  request.digests = chain_;
  request.digests.resize(wire::kLookupDigestsMax, chain_[0]);
  EXPECT_EQ(scheduler_.Ask(request).tokens, 32u) << "however long the chain is";
  wire::Up up;
  up.promises = {request, request};
  EXPECT_TRUE(absl::IsInvalidArgument(scheduler_.session->OnUp(up)));
}

// As much is held as the share allows, of all ranks alike.
TEST_F(PromisesTest, ThePrefixIsAsLongAsTheShareAllows) {
  AttachBoth();
  for (const size_t rank : {0, 1}) StoreSteps(rank, 0, kSteps);
  const Shares::Account user = f_.shares().Of({.uid = geteuid(), .process = {}});
  const uint64_t room = user.Room(ShareKind::kLeasedBytes);
  Shares::Answer rest = user.Take(ShareKind::kLeasedBytes, room - 9 * kPage);
  ASSERT_TRUE(rest.admitted());
  const wire::Promised promised = scheduler_.Ask(Both());
  EXPECT_EQ(promised.status, BlockStatus::kOk);
  EXPECT_EQ(promised.tokens, 4u * 16) << "8 pages, 4 of each rank";
  EXPECT_EQ(scheduler_.Ask(Both()).tokens, 4u * 16) << "what the engine holds is free";
  rest.ticket.Reset();
  EXPECT_EQ(scheduler_.Ask(Both()).tokens, kSteps * 16);
}

// A session may hold a promise several times, and lets go of it as often.
TEST_F(PromisesTest, ASessionThatHoldsItTwiceReleasesItTwice) {
  AttachBoth();
  for (const size_t rank : {0, 1}) StoreSteps(rank, 0, 2);
  const LeaseId promise = scheduler_.Ask(Both()).promise;
  ASSERT_EQ(scheduler_.Ask(Join(promise)).status, BlockStatus::kOk);
  scheduler_.Release(promise);
  EXPECT_GT(Charged(), 0u);
  scheduler_.Release(promise);
  EXPECT_EQ(Charged(), 0u);
}

// Promises that their client does not release end at their deadlines, and leave nothing behind.
TEST_F(PromisesTest, ThousandsThatTimeOutLeaveNothing) {
  AttachBoth();
  for (const size_t rank : {0, 1}) StoreSteps(rank, 0, kSteps);
  const uint64_t rounds = testing::Scaled(10'000);
  for (uint64_t round = 0; round < rounds; ++round) {
    ASSERT_EQ(scheduler_.Ask(Both(/*deadline_ms=*/10)).status, BlockStatus::kOk) << round;
    f_.clock().Advance(std::chrono::milliseconds(1));
    f_.deps().promises.Tick(f_.clock().Now());
    while (!scheduler_.sink.empty()) (void)scheduler_.sink.Next();
  }
  EXPECT_LE(f_.deps().promises.stats().promises, 10u);
  f_.clock().Advance(std::chrono::seconds(1));
  f_.deps().promises.Tick(f_.clock().Now());
  EXPECT_EQ(f_.deps().promises.stats().promises, 0u);
  EXPECT_EQ(f_.deps().promises.stats().expired, rounds);
  EXPECT_EQ(Charged(), 0u);
}

}  // namespace
}  // namespace larder
