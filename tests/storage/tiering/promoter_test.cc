// Promotion from disk to HOST, and damage that is found on disk: a promoter and a verifier over the
// reference tier.
#include <thread>

#include "storage/codec/payload_codec.h"
#include "storage/disk/page_buffer.h"
#include "storage/tiering/disk_verifier.h"
#include "tests/storage/tiering/forwarding_tier.h"
#include "tests/storage/tiering/gated_tier.h"
#include "tests/storage/tiering/tiers_fixture.h"

namespace larder::testing {
namespace {

using Promotion = Tiers;

TEST_F(Promotion, EvictedBlocksArePromotedFromDisk) {
  Process process(medium_, MiB(64));
  std::vector<Digest> digests;
  std::vector<uint32_t> seeds;
  for (uint32_t seed = 1; seed <= 60; ++seed) {  // four times the pool
    digests.push_back(process.PutThrough(seed));
    seeds.push_back(seed);
  }
  EXPECT_EQ(process.Tiers(digests[0]), kDiskBit);
  EXPECT_EQ(process.store().index().blocks(), 60u);
  EXPECT_EQ(process.store().stats().evicted_unspilled, 0u);
  for (uint32_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i + 4 <= digests.size(); i += 4) {
      const auto statuses =
          process.Get(std::span(digests).subspan(i, 4), std::span(seeds).subspan(i, 4));
      for (const BlockStatus status : statuses) ASSERT_EQ(status, BlockStatus::kOk) << i;
    }
  }
  EXPECT_EQ(process.tier_.stats().puts, 60u)
      << "a block that came from disk must not be written again";
  EXPECT_EQ(process.promoter_->stats().damaged, 0u);
  process.store().CheckInvariants();
}

// Writes an encoded record of block `digest`, which lies at `place`, as Compress does.  Returns its
// new place.
uint64_t Encode(Process& process, const Digest& digest, uint64_t place) {
  const DiskAddress address{{process.store().index().VariantId(process.variant()), digest},
                            DiskLocation{place}};
  std::optional<DiskTier::Description> known;
  EXPECT_TRUE(process.tier_.Describe({&address, 1}, {&known, 1}).ok());
  const PageBuffer raw(PagesFor(ByteCount(kBlockBytes))), encoded(PagesFor(ByteCount(kBlockBytes)));
  EXPECT_EQ(process.tier_.Get({.block = address,
                               .header = &known->header,
                               .range = {0, 1, 0, kBlockBytes},
                               .to = raw.bytes()}),
            DiskTier::GetStatus::kOk);
  PayloadCodec codec;
  const auto table = codec.Encode(Codec::kLossless, raw.bytes().first(kBlockBytes),
                                  known->header.table, 2, encoded.bytes());
  EXPECT_TRUE(table.has_value());
  known->header.table = *table;
  const DiskTier::NewBlock block{.header = &known->header,
                                 .tokens = known->tokens,
                                 .payload = encoded.bytes().first(table->PayloadBytes().value())};
  DiskTier::PutResult result;
  process.tier_.Put({&block, 1}, {&result, 1});
  EXPECT_EQ(result.status, DiskTier::PutStatus::kOk);
  return static_cast<uint64_t>(result.location);
}

// A reader that waits meanwhile gets the block decoded, from its new place.
TEST_F(Promotion, AReaderWaitsForARecordThatIsBeingRewritten) {
  const std::vector<Digest> digests = LeftOnDisk(2);
  Process process(medium_, MiB(64));
  const BlockIndex::Held held = process.store().HoldUntouched(process.variant(), digests[0]);
  const uint64_t place = held.disk_location;
  EXPECT_FALSE(process.promoter_->Exclude(held.ref, place + 1))
      << "the record is not at that place";
  ASSERT_TRUE(process.promoter_->Exclude(held.ref, place));
  EXPECT_FALSE(process.promoter_->Exclude(held.ref, place)) << "the record is excluded already";
  BlockStatus got = BlockStatus::kPending;
  std::thread reader([&] { got = process.GetOne(digests[0], 1); });
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                        [&] { return process.promoter_->stats().joined == 1; }));
  PayloadCodec codec;
  EXPECT_TRUE(process.promoter_->Readmit(held.ref, Encode(process, digests[0], place), codec));
  reader.join();
  EXPECT_EQ(got, BlockStatus::kOk);
  const DiskAddress old{{process.store().index().VariantId(process.variant()), digests[0]},
                        DiskLocation{place}};
  EXPECT_TRUE(process.tier_.Erase({&old, 1}).ok());
  EXPECT_EQ(process.promoter_->stats().damaged, 0u);
  EXPECT_EQ(process.store().index().LookAt(held.ref).extent.bytes(), ByteCount(kBlockBytes));
  process.store().Unhold({&held.ref, 1});
  EXPECT_EQ(process.GetOne(digests[1], 2), BlockStatus::kOk);
  process.store().CheckInvariants();
}

TEST_F(Promotion, OnlyTheSoleHolderMayRewriteARecord) {
  const std::vector<Digest> digests = LeftOnDisk(1);
  Process process(medium_, MiB(64));
  const BlockIndex::Held held = process.store().HoldUntouched(process.variant(), digests[0]);
  ASSERT_TRUE(process.store().HoldAgain({&held.ref, 1}));
  EXPECT_FALSE(process.promoter_->Exclude(held.ref, held.disk_location))
      << "another holder may be reading the record";
  process.store().Unhold({&held.ref, 1});
  ASSERT_TRUE(process.promoter_->Exclude(held.ref, held.disk_location));
  EXPECT_TRUE(process.store().Drop(process.variant(), digests[0]));
  PayloadCodec codec;
  EXPECT_FALSE(process.promoter_->Readmit(held.ref, 77, codec))
      << "the block was dropped meanwhile";
  process.store().Unhold({&held.ref, 1});
  const std::vector<FreedExtent> on_disk = process.store().TakeFreedExtents(10);
  ASSERT_EQ(on_disk.size(), 1u);
  EXPECT_EQ(on_disk[0].location, held.disk_location);
  process.store().CheckInvariants();
}

TEST_F(Promotion, ADamagedEncodedRecordIsAMiss) {
  const std::vector<Digest> digests = LeftOnDisk(1);
  {
    Process process(medium_, MiB(64));
    const BlockIndex::Held held = process.store().HoldUntouched(process.variant(), digests[0]);
    (void)Encode(process, digests[0], held.disk_location);
    const DiskAddress old{{process.store().index().VariantId(process.variant()), digests[0]},
                          DiskLocation{held.disk_location}};
    EXPECT_TRUE(process.tier_.Erase({&old, 1}).ok());
    process.store().Unhold({&held.ref, 1});
  }
  {
    MutexLock lock(medium_.mu);
    ASSERT_EQ(medium_.records.size(), 1u);
    EXPECT_LT(medium_.records.begin()->second.payload.size(), kBlockBytes);
    medium_.records.begin()->second.payload[20] ^= std::byte{1};
  }
  Process process(medium_, MiB(64));
  EXPECT_EQ(process.GetOne(digests[0], 1), BlockStatus::kDamaged);
  EXPECT_EQ(process.Tiers(digests[0]), 0);
  process.store().CheckInvariants();
}

TEST_F(Promotion, DamageOnDiskIsAMissAndRemovesTheName) {
  Digest digest;
  {
    Process process(medium_, MiB(64));
    digest = process.PutThrough(1);
  }
  {
    MutexLock lock(medium_.mu);
    medium_.records.begin()->second.payload[1000] ^= std::byte{1};
  }
  Process process(medium_, MiB(64));
  EXPECT_EQ(process.GetOne(digest, 1), BlockStatus::kDamaged);
  EXPECT_EQ(process.Tiers(digest), 0);
  // The last hold of the block ends right after its answer.
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s, [&] {
    process.Settle();
    return process.tier_.stats().blocks == 0;
  })) << "its space must be freed";
  EXPECT_EQ(process.promoter_->stats().damaged, 1u);
  process.store().CheckInvariants();
}

// Damage of a block that no engine asks for.
TEST_F(Promotion, TheVerifierFindsDamageOfBlocksOnDiskAlone) {
  const std::vector<Digest> digests = LeftOnDisk(8);
  Process process(medium_, MiB(64));
  {
    MutexLock lock(medium_.mu);
    medium_.records.begin()->second.payload[1000] ^= std::byte{1};
    std::next(medium_.records.begin())->second.unreadable = true;
  }
  DiskVerifier verifier({.bytes_per_s = GiB(1), .pause = 1ms}, process.store(), process.tier_);
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                        [&] { return verifier.stats().walks >= 2; }));
  EXPECT_EQ(verifier.stats().damaged, 1u);
  EXPECT_GE(verifier.stats().failed, 2u) << "each walk must try the unreadable record";
  EXPECT_GE(verifier.stats().blocks, 2u * 6);
  EXPECT_EQ(process.Tiers(digests[0]), 0);
  for (size_t i = 1; i < digests.size(); ++i) EXPECT_EQ(process.Tiers(digests[i]), kDiskBit);
  process.store().CheckInvariants();
}

// One bad place of a disk that works otherwise must not open the breaker again and again.  But a
// single failure, or several while nothing else was read, may be the disk's.
TEST_F(Promotion, AnUnreadableBlockIsGivenUpWhileOthersCanBeRead) {
  Digest bad;
  std::vector<Digest> good;
  {
    Process process(medium_, MiB(64));
    bad = process.PutThrough(1);
    for (uint32_t seed = 2; seed <= 4; ++seed) good.push_back(process.PutThrough(seed));
  }
  {
    MutexLock lock(medium_.mu);
    medium_.records.begin()->second.unreadable = true;
  }
  Process process(medium_, MiB(64));
  const auto get_bad = [&] {
    EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                          [&] { return process.promoter_->worth_asking(); }));
    return process.GetOne(bad, 1);
  };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get_bad(), BlockStatus::kMissing);
  for (uint32_t i = 0; i < good.size(); ++i) {
    EXPECT_EQ(process.Tiers(bad), kDiskBit) << i;
    EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                          [&] { return process.promoter_->worth_asking(); }));
    EXPECT_EQ(process.GetOne(good[i], i + 2), BlockStatus::kOk);
    EXPECT_EQ(get_bad(), i + 1 < good.size() ? BlockStatus::kMissing : BlockStatus::kDamaged) << i;
  }
  EXPECT_EQ(process.Tiers(bad), 0);
  EXPECT_TRUE(process.promoter_->worth_asking());
  process.store().CheckInvariants();
}

TEST_F(Promotion, OneReadServesAllJobsForABlock) {
  std::vector<Digest> digests;
  std::vector<uint32_t> seeds;
  {
    Process process(medium_, MiB(64));
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      digests.push_back(process.PutThrough(seed));
      seeds.push_back(seed);
    }
  }
  Process process(medium_, MiB(64));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const BlockStatus status : process.Get(digests, seeds))
        wrong += status != BlockStatus::kOk;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(process.tier_.stats().gets, 8u);
  process.store().CheckInvariants();
}

TEST_F(Promotion, ACancelledJobIsAnsweredAndReadsNothing) {
  Digest digest;
  {
    Process process(medium_, MiB(64));
    digest = process.PutThrough(1);
  }
  Process process(medium_, MiB(64));
  auto got = process.store().Acquire(process.variant(), {&digest, 1}, MiB(2), HoldWhat::kAnyTier);
  std::atomic<int> answer{-1};
  Promoter::Job job;
  job.variant = process.variant();
  job.blocks.push_back({0, got.blocks[0].ref, digest, got.blocks[0].disk_location, KiB(128)});
  job.ready = [&](const Promoter::Wanted&, BlockStatus status, const BlockIndex::Held&) {
    answer = static_cast<int>(status);
  };
  Promoter::Prepared prepared = process.promoter_->Prepare(std::move(job));
  got = {};  // the lease ends before the job is submitted
  Promoter::Cancel(prepared);
  process.promoter_->Submit(std::move(prepared));
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s, [&] { return answer >= 0; }));
  EXPECT_EQ(answer, static_cast<int>(BlockStatus::kCancelled));
  EXPECT_EQ(process.tier_.stats().gets, 0u);
}

// A tier that cannot describe one of its blocks, as if the block lay in a part of the disk that
// cannot be read now.
class HalfKnowingTier final : public ForwardingTier {
 public:
  using ForwardingTier::ForwardingTier;
  absl::Status Describe(std::span<const DiskAddress> blocks,
                        std::span<std::optional<Description>> out) override {
    const absl::Status status = ForwardingTier::Describe(blocks, out);
    out.front().reset();
    return status.ok() ? absl::UnavailableError("a part") : status;
  }
};

TEST_F(Promotion, ReadableBlocksArePromotedThoughAnotherCannotBeRead) {
  const std::vector<Digest> digests = LeftOnDisk(4);
  Process process(medium_, MiB(64));
  HalfKnowingTier tier(process.tier_);
  process.promoter_.emplace(2, process.store(), tier, process.clock());
  const std::vector<BlockStatus> statuses = process.Get(digests, std::vector<uint32_t>{1, 2, 3, 4});
  EXPECT_EQ(statuses[0], BlockStatus::kMissing);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(statuses[i], BlockStatus::kOk) << i;
  EXPECT_EQ(process.Tiers(digests[0]), kDiskBit) << "the block must not count as damaged";
  EXPECT_TRUE(process.promoter_->worth_asking());
  // If no block of a job can be described, the disk is at fault.
  EXPECT_EQ(process.GetOne(digests[0], 1), BlockStatus::kMissing);
  EXPECT_EQ(process.promoter_->stats().breaker_opened, 1u);
}

// There are more blocks than are described at once, and one of them, in the middle, is not in the
// catalog.
TEST_F(Promotion, ALongJobIsDescribedInParts) {
  constexpr uint32_t kBlocks = 2 * Promoter::kDescribedAtOnce + 30, kBytes = 4096, kGone = 300;
  std::vector<Digest> digests;
  SteadyClock clock;
  {
    StoreFixture fixture(MiB(8), MiB(2));
    MemoryDiskTier tier(MiB(64), medium_);
    RecoverInto(fixture.store(), tier);
    Spiller spiller({}, fixture.store(), tier, clock,
                    [](SessionId, VariantIndex, std::span<const Digest>) {});
    for (uint32_t seed = 0; seed < kBlocks; ++seed) {
      ASSERT_EQ(fixture.Put(Digest{}, seed, kBytes, static_cast<std::byte>(seed),
                            &digests.emplace_back()),
                BlockStatus::kOk);
      spiller.Offer(kWho, fixture.variant(), digests.back());
    }
    ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  }
  StoreFixture fixture(MiB(8), MiB(2));
  MemoryDiskTier tier(MiB(64), medium_);
  RecoverInto(fixture.store(), tier);
  auto got = fixture.store().Acquire(fixture.variant(), digests, GiB(1), HoldWhat::kAnyTier);
  std::vector<std::atomic<int>> answers(kBlocks);
  std::atomic<uint32_t> left{kBlocks};
  Promoter promoter(2, fixture.store(), tier, clock);
  Promoter::Job job;
  job.variant = fixture.variant();
  for (uint32_t i = 0; i < kBlocks; ++i) {
    const BlockIndex::Held& held = got.blocks[i];
    job.blocks.push_back({i, held.ref, digests[i], held.disk_location, held.extent.bytes()});
    const DiskAddress address{{fixture.store().index().VariantId(fixture.variant()), digests[i]},
                              DiskLocation{held.disk_location}};
    if (i == kGone) {
      ASSERT_TRUE(tier.Erase({&address, 1}).ok());
    }
  }
  job.ready = [&](const Promoter::Wanted& wanted, BlockStatus status,
                  const BlockIndex::Held& held) {
    const bool right = status == BlockStatus::kOk &&
                       fixture.store().Bytes(held.extent)[0] == static_cast<std::byte>(wanted.key);
    answers[wanted.key] = right ? 1 : 100 + static_cast<int>(status);
    --left;
  };
  promoter.Submit(promoter.Prepare(std::move(job)));
  ASSERT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s, [&] { return left == 0; }));
  for (uint32_t i = 0; i < kBlocks; ++i)
    EXPECT_EQ(answers[i], i == kGone ? 100 + static_cast<int>(BlockStatus::kDamaged) : 1) << i;
}

// Jobs over eight blocks that are on disk alone.  Their reads wait until the test opens the tier.
class GatedPromotion : public Tiers {
 protected:
  static constexpr size_t kBlocks = 8;

  void Start(size_t threads, size_t waiting_max = Promoter::kWaitingMax) {
    {
      Process former(medium_, MiB(64));
      for (uint32_t seed = 1; seed <= kBlocks; ++seed) digests_.push_back(former.PutThrough(seed));
    }
    tier_.emplace(MiB(64), medium_);
    RecoverInto(f_.store(), *tier_);
    got_ = f_.store().Acquire(f_.variant(), digests_, MiB(2), HoldWhat::kAnyTier);
    promoter_.emplace(threads, f_.store(), *tier_, f_.clock(), waiting_max);
    tier_->Shut();
  }
  // Returns nullptr if the job was refused.
  Promoter::Prepared Submit(size_t first, size_t count, SessionId session = {}) {
    Promoter::Prepared prepared = Prepare(first, count, session);
    if (prepared) promoter_->Submit(prepared);
    return prepared;
  }
  Promoter::Prepared Prepare(size_t first, size_t count, SessionId session) {
    Promoter::Job job;
    job.session = session;
    job.variant = f_.variant();
    for (size_t i = first; i < first + count; ++i) {
      const BlockIndex::Held& held = got_.blocks[i];
      job.blocks.push_back({i, held.ref, digests_[i], held.disk_location, held.extent.bytes()});
    }
    job.ready = [this](const Promoter::Wanted&, BlockStatus status, const BlockIndex::Held&) {
      ++(status == BlockStatus::kOk          ? ok_
         : status == BlockStatus::kCancelled ? cancelled_
                                             : other_);
    };
    return promoter_->Prepare(std::move(job));
  }
  void TearDown() override {
    if (tier_) tier_->Open();  // even if the test has failed
  }
  void OpenAndSettle() {
    tier_->Open();
    ASSERT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                          [&] { return promoter_->stats().waiting == 0; }));
  }

  StoreFixture f_{MiB(2), MiB(2)};
  std::vector<Digest> digests_;
  std::optional<GatedTier> tier_;
  BlockStore::AcquireResult got_;
  std::atomic<size_t> ok_{0}, cancelled_{0}, other_{0};
  std::optional<Promoter> promoter_;
};

// A lease may last long after its answers, and does not need what the disk knows of its blocks.

TEST_F(GatedPromotion, AJobThatJoinedAReadKeepsNoDescription) {
  ASSERT_NO_FATAL_FAILURE(Start(/*threads=*/3));
  const Promoter::Prepared reads = Submit(0, 2);
  tier_->AwaitCalls(2);
  const Promoter::Prepared joins = Submit(0, 2);
  ASSERT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                        [&] { return promoter_->stats().joined == 2; }));
  ASSERT_NO_FATAL_FAILURE(OpenAndSettle());
  EXPECT_EQ(ok_, 4u);
  EXPECT_EQ(Promoter::Described(reads), 0u);
  EXPECT_EQ(Promoter::Described(joins), 0u);
}

TEST_F(GatedPromotion, BlocksPromotedByAnotherJobLeaveNoDescription) {
  ASSERT_NO_FATAL_FAILURE(Start(/*threads=*/1));
  const Promoter::Prepared all = Submit(0, kBlocks);  // described; its first block is being read
  tier_->AwaitCalls(1);
  const Promoter::Prepared some = Submit(1, 3);  // shorter, so it is read before the rest
  ASSERT_NO_FATAL_FAILURE(OpenAndSettle());
  EXPECT_EQ(ok_, kBlocks + 3);
  EXPECT_EQ(promoter_->stats().promoted, kBlocks);
  EXPECT_EQ(Promoter::Described(all), 0u);
  EXPECT_EQ(Promoter::Described(some), 0u);
}

TEST_F(GatedPromotion, ACancelledJobKeepsNoDescriptions) {
  ASSERT_NO_FATAL_FAILURE(Start(/*threads=*/1));
  const Promoter::Prepared job = Submit(0, kBlocks);
  tier_->AwaitCalls(1);
  Promoter::Cancel(job);
  ASSERT_NO_FATAL_FAILURE(OpenAndSettle());
  EXPECT_EQ(ok_, 1u);
  EXPECT_EQ(cancelled_, kBlocks - 1);
  EXPECT_EQ(Promoter::Described(job), 0u);
}

// Each session may have half of what the others leave, so that no session takes the whole queue.
TEST_F(GatedPromotion, OneSessionDoesNotTakeTheWholeQueue) {
  constexpr SessionId kGreedy{1}, kSecond{2}, kThird{3};
  ASSERT_NO_FATAL_FAILURE(Start(/*threads=*/1, /*waiting_max=*/16));
  EXPECT_TRUE(Submit(0, 6, kGreedy));
  EXPECT_FALSE(Submit(0, 3, kGreedy));
  EXPECT_TRUE(Submit(6, 2, kGreedy));
  EXPECT_FALSE(Submit(0, 1, kGreedy)) << "a session may have half of 16";
  EXPECT_FALSE(Submit(0, 5, kSecond));
  EXPECT_TRUE(Submit(0, 4, kSecond)) << "the second session may have half of 8";
  EXPECT_FALSE(Submit(0, 3, kThird));
  EXPECT_TRUE(Submit(0, 2, kThird)) << "the third session may have half of 4";
  EXPECT_EQ(promoter_->stats().refused, 3u + 1 + 5 + 3);
  EXPECT_EQ(promoter_->stats().waiting, 14u);
  ASSERT_NO_FATAL_FAILURE(OpenAndSettle());
  EXPECT_EQ(ok_, 14u);
  EXPECT_TRUE(Submit(0, kBlocks, kThird)) << "no other block waits";
  ASSERT_NO_FATAL_FAILURE(OpenAndSettle());
}

// However many jobs are prepared before the first is submitted.
TEST_F(GatedPromotion, AShareIsTakenWhenAJobIsPrepared) {
  constexpr SessionId kWhoAsks{1};
  ASSERT_NO_FATAL_FAILURE(Start(/*threads=*/1, /*waiting_max=*/16));
  Promoter::Prepared first = Prepare(0, 5, kWhoAsks);
  ASSERT_TRUE(first);
  EXPECT_FALSE(Prepare(0, 4, kWhoAsks)) << "a session may have half of 16";
  Promoter::Prepared second = Prepare(5, 3, kWhoAsks);
  ASSERT_TRUE(second);
  EXPECT_EQ(promoter_->stats().waiting, 8u);
  first.reset();
  EXPECT_EQ(promoter_->stats().waiting, 3u) << "a job that is never submitted frees its share";
  promoter_->Submit(std::move(second));
  ASSERT_NO_FATAL_FAILURE(OpenAndSettle());
  EXPECT_EQ(ok_, 3u);
  Promoter::Prepared late = Prepare(0, 5, kWhoAsks);
  promoter_.reset();
  late.reset();  // like a lease that is left when everything ends
}

TEST_F(Promotion, AnEmptyJobIsANoOp) {
  Process process(medium_, MiB(64));
  process.promoter_->Submit(process.promoter_->Prepare({}));
  EXPECT_EQ(process.promoter_->stats().waiting, 0u);
}

}  // namespace
}  // namespace larder::testing
