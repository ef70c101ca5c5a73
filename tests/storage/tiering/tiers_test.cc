// From HOST to disk and out of both: a store with a spiller over the reference tier.
#include <array>
#include <chrono>
#include <map>
#include <thread>

#include "storage/tiering/host_verifier.h"
#include "tests/storage/tiering/gated_tier.h"
#include "tests/storage/tiering/tiers_fixture.h"

namespace larder::testing {
namespace {

// While a caller rewrites a block's record, the spiller must not write a second record of that
// name.
TEST_F(Tiers, AClaimedBlockIsWrittenWhenItIsUnclaimed) {
  Process process(medium_, MiB(64));
  const Digest digest = process.Publish(1);
  const std::pair name(process.variant(), digest);
  ASSERT_TRUE(process.spiller_->Claim(name.first, name.second));
  EXPECT_FALSE(process.spiller_->Claim(name.first, name.second));
  process.spiller_->Offer(kWho, name.first, name.second);
  process.Settle();
  EXPECT_EQ(process.Tiers(digest), kHostBit);
  EXPECT_FALSE(process.spiller_->WaitWritten({&name, 1}, std::chrono::steady_clock::now()));
  process.spiller_->Unclaim({&name, 1});
  process.Settle();
  EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
  EXPECT_TRUE(process.spiller_->WaitWritten({&name, 1}, std::chrono::steady_clock::now()));
}

// The wait for the first name ends at the deadline, at about the moment at which that name is
// written; the second name is still being written.
TEST_F(Tiers, AWaitThatEndsAtItsDeadlineIsForAllNames) {
  Process process(medium_, MiB(64));
  const std::array names = {std::pair(process.variant(), process.Publish(1)),
                            std::pair(process.variant(), process.Publish(2))};
  constexpr int kTries = 300;
  for (int i = 0; i < kTries; ++i) {
    for (const auto& [variant, digest] : names)
      ASSERT_TRUE(process.spiller_->Claim(variant, digest));
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
    std::thread first([&] {
      std::this_thread::sleep_until(until);
      process.spiller_->Unclaim(std::span(names).first(1));
    });
    EXPECT_FALSE(process.spiller_->WaitWritten(names, until));
    first.join();
    process.spiller_->Unclaim(std::span(names).last(1));
  }
}

TEST_F(Tiers, BlocksAreSpilledAndReportedDurable) {
  Process process(medium_, MiB(64));
  const Digest digest = process.PutThrough(1);
  EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
  EXPECT_EQ(process.durable_, 1u);
  EXPECT_EQ(process.spiller_->stats().spilled, 1u);
  EXPECT_EQ(process.tier_.stats().blocks, 1u);
  process.Put(1);
  process.Settle();
  EXPECT_EQ(process.durable_, 2u) << "a block that is on disk already is reported durable as well";
  EXPECT_EQ(process.tier_.stats().puts, 1u);
  process.store().CheckInvariants();
}

TEST_F(Tiers, TheNextProcessFindsSpilledBlocks) {
  const std::vector<Digest> digests = LeftOnDisk(20);
  Process process(medium_, MiB(64));
  EXPECT_EQ(process.found_, 20u);
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(process.Tiers(digests[seed - 1]), kDiskBit);
    EXPECT_EQ(process.GetOne(digests[seed - 1], seed), BlockStatus::kOk);
    EXPECT_NE(process.Tiers(digests[seed - 1]) & kHostBit, 0);
  }
  process.store().CheckInvariants();
}

// What a caller hears of a block that it offered.
class OfferAnswer {
 public:
  [[nodiscard]] Spiller::Done Done() {
    return [this](bool on_disk) { ++(on_disk ? on_disk_ : dropped_); };
  }
  [[nodiscard]] int on_disk() const { return on_disk_; }
  [[nodiscard]] int dropped() const { return dropped_; }
  [[nodiscard]] int all() const { return on_disk_ + dropped_; }

 private:
  std::atomic<int> on_disk_{0}, dropped_{0};
};

TEST_F(Tiers, ACallerHearsOnceWhatBecameOfItsOffer) {
  OfferAnswer written, again, twice, gone, left;
  {
    Process process(medium_, MiB(64));
    const auto offer = [&](const Digest& digest, OfferAnswer& answer) {
      process.spiller_->Offer(process.variant(), digest, answer.Done());
    };
    const Digest digest = process.Publish(1);
    offer(digest, written);
    process.Settle();
    EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
    EXPECT_TRUE(written.on_disk() == 1 && written.all() == 1);
    offer(digest, again);
    process.Settle();
    EXPECT_TRUE(again.on_disk() == 1 && again.all() == 1) << "the block is on disk already";
    const Digest two = process.Publish(2);
    offer(two, twice);
    offer(two, twice);
    process.Settle();
    EXPECT_TRUE(twice.on_disk() == 2 && twice.all() == 2) << "each offer is answered";
    const Digest evicted = process.Publish(3);
    EXPECT_TRUE(process.store().Drop(process.variant(), evicted));
    offer(evicted, gone);
    process.Settle();
    EXPECT_TRUE(gone.dropped() == 1 && gone.all() == 1) << "the block has left the pool";
    const Digest claimed = process.Publish(4);
    ASSERT_TRUE(process.spiller_->Claim(process.variant(), claimed));
    offer(claimed, left);
    process.Settle();
    EXPECT_EQ(left.all(), 0) << "it waits for the end of the claim";
  }
  EXPECT_TRUE(left.dropped() == 1 && left.all() == 1) << "the spiller has ended";
}

// No space can be freed then, however many blocks are evicted from the index.  What waits is
// written afterwards.
TEST_F(Tiers, ADiskThatCannotEraseKeepsItsBlocks) {
  Process process(medium_, MiB(8));  // 64 blocks
  Digest dropped;
  for (uint32_t seed = 1; seed <= 100; ++seed) dropped = process.PutThrough(seed);
  {
    MutexLock lock(medium_.mu);
    medium_.keeps_all = true;
  }
  EXPECT_TRUE(process.store().Drop(process.variant(), dropped));
  const uint64_t evicted = process.store().stats().evicted_disk;
  const Digest waits = process.Put(101);
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                        [&] { return process.spiller_->stats().breaker_opened >= 4; }));
  EXPECT_LE(process.store().stats().evicted_disk, evicted + 10)
      << "only one batch's worth may be evicted";
  EXPECT_EQ(process.spiller_->stats().queued, 1u);
  {
    MutexLock lock(medium_.mu);
    medium_.keeps_all = false;
  }
  process.PutThrough(102);
  EXPECT_EQ(process.Tiers(waits), kHostBit | kDiskBit);
  EXPECT_EQ(process.spiller_->stats().spilled, 102u);
  EXPECT_EQ(process.spiller_->stats().dropped_failed, 0u);
  EXPECT_EQ(process.spiller_->stats().dropped_room, 0u);
  process.Settle();
  const uint64_t there = 102 - 1 - process.store().stats().evicted_disk;
  EXPECT_EQ(process.tier_.stats().blocks, there);
  EXPECT_EQ(process.tier_.stats().used.value(), there * kBlockBytes)
      << "all other space must be freed";
  process.store().CheckInvariants();
}

// A tier that fails on some blocks and on no others.
class PickyTier final : public MemoryDiskTier {
 public:
  using MemoryDiskTier::MemoryDiskTier;
  void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) override {
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (std::ranges::find(bad, blocks[i].header->key.digest) != bad.end()) {
        results[i] = {.status = as};
        ++failures;
      } else {
        MemoryDiskTier::Put(blocks.subspan(i, 1), results.subspan(i, 1));
      }
    }
  }
  std::vector<Digest> bad;
  PutStatus as = PutStatus::kFailed;
  std::atomic<size_t> failures{0};
};

class BadBlock : public Tiers, public ::testing::WithParamInterface<ByteCount> {};

TEST_P(BadBlock, IsGivenUpIfOthersCanBeWritten) {
  PickyTier tier(MiB(64), medium_);
  StoreFixture fixture(GetParam(), MiB(2));
  RecoverInto(fixture.store(), tier);
  SteadyClock clock;
  Spiller spiller({.threads = 1, .paused = true}, fixture.store(), tier, clock,
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
  uint32_t seed = 0;
  const auto put = [&] {
    Digest digest;
    EXPECT_EQ(fixture.Put(Digest{}, ++seed, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
    spiller.Offer(kWho, fixture.variant(), digest);
    return digest;
  };
  tier.bad = {put()};
  for (int i = 0; i < 4; ++i) put();
  spiller.Resume();
  for (size_t seen = 0; spiller.stats().dropped_failed == 0;) {
    ASSERT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s, [&] {
      return tier.failures > seen || spiller.stats().dropped_failed > 0;
    }));
    seen = tier.failures;
    put();  // the bad block fails again beside this one
    ASSERT_LT(seen, 40u);
  }
  ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  EXPECT_EQ(spiller.stats().spilled, seed - 1);
}

// Either a batch holds several blocks, or it cannot hold one, so that each is written alone.
INSTANTIATE_TEST_SUITE_P(Each, BadBlock, ::testing::Values(MiB(32), MiB(4)));

// Each put has both bad blocks, so no other block is written along with them.
TEST_F(Tiers, TwoBadBlocksThatAreWrittenTogetherAreGivenUp) {
  PickyTier tier(MiB(64), medium_);
  StoreFixture fixture(MiB(8), MiB(2));  // two blocks in a batch
  RecoverInto(fixture.store(), tier);
  SteadyClock clock;
  Spiller spiller({.threads = 1, .paused = true}, fixture.store(), tier, clock,
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
  uint32_t seed = 0;
  const auto put_two = [&] {
    std::vector<Digest> digests(2);
    for (Digest& digest : digests)
      EXPECT_EQ(fixture.Put(Digest{}, ++seed, kBlockBytes, std::byte{1}, &digest),
                BlockStatus::kOk);
    for (const Digest& digest : digests) spiller.Offer(kWho, fixture.variant(), digest);
    return digests;
  };
  tier.bad = put_two();
  spiller.Resume();
  for (size_t seen = 0; spiller.stats().dropped_failed < 2;) {
    ASSERT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s, [&] {
      return tier.failures > seen || spiller.stats().dropped_failed == 2;
    }));
    seen = tier.failures;
    (void)put_two();  // while the breaker is open, so before the next try
    ASSERT_LT(seen, 40u);
  }
  ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  EXPECT_EQ(spiller.stats().spilled, seed - 2);
}

// A name that the disk cannot take now is not a fault of the disk: all other blocks are written at
// once, and that one is given up after several tries.
TEST_F(Tiers, ANameThatMustWaitDelaysNoOtherBlock) {
  PickyTier tier(MiB(64), medium_);
  tier.as = DiskTier::PutStatus::kNotNow;
  StoreFixture fixture(MiB(32), MiB(2));
  RecoverInto(fixture.store(), tier);
  ManualClock clock;  // stands still, so a block held back by a breaker would wait forever
  Spiller spiller({.threads = 1, .paused = true}, fixture.store(), tier, clock,
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Digest digest;
    ASSERT_EQ(fixture.Put(Digest{}, seed, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
    if (seed == 1) tier.bad = {digest};
    spiller.Offer(kWho, fixture.variant(), digest);
  }
  spiller.Resume();
  ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  const Spiller::Stats stats = spiller.stats();
  EXPECT_EQ(stats.spilled, 7u);
  EXPECT_EQ(stats.dropped_room, 1u);
  EXPECT_EQ(stats.breaker_opened, 0u);
  EXPECT_GT(tier.failures, 1u) << "the block must be tried again";
}

// The block is kept however often it fails, because other blocks could not be written either.
TEST_F(Tiers, ABlockThatFailsWithTheDiskIsKept) {
  PickyTier tier(MiB(64), medium_);
  StoreFixture fixture(MiB(4), MiB(2));
  RecoverInto(fixture.store(), tier);
  ManualClock clock;
  Spiller spiller({.threads = 1, .paused = true}, fixture.store(), tier, clock,
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}, &tier.bad.emplace_back()),
            BlockStatus::kOk);
  spiller.Offer(kWho, fixture.variant(), tier.bad[0]);
  spiller.Resume();
  for (uint64_t opened = 1; opened <= 20; ++opened) {
    ASSERT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s, [&] {
      return spiller.stats().breaker_opened >= opened || spiller.stats().dropped_failed > 0;
    }));
    clock.Advance(DiskBreaker::kLongest);
  }
  EXPECT_EQ(spiller.stats().dropped_failed, 0u);
}

// The block was published during recovery, found on disk, and evicted from the pool before its
// turn.
TEST_F(Tiers, ABlockOnDiskAloneAtItsTurnIsReportedDurable) {
  Digest digest;
  {
    Process process(medium_, MiB(64));
    digest = process.PutThrough(1);
  }
  Process process(medium_, MiB(64));
  EXPECT_EQ(process.Tiers(digest), kDiskBit);
  process.spiller_->Offer(kWho, process.variant(), digest);
  process.Settle();
  EXPECT_EQ(process.durable_, 1u);
  EXPECT_EQ(process.spiller_->stats().dropped_evicted, 0u);
}

// The block is found on disk while another copy of it is written.  It is durable all the same, and
// the newer copy, which may have taken the name on disk, stays.
TEST_F(Tiers, ABlockFoundOnDiskWhileItIsWrittenKeepsTheNewerCopy) {
  Digest digest;
  {
    Process process(medium_, MiB(64));
    digest = process.PutThrough(1);
  }
  GatedTier tier(MiB(64), medium_);
  StoreFixture fixture(MiB(2), MiB(2));
  std::optional<DiskTier::Entry> found;
  const auto find = [&](const DiskTier::Entry& entry) {
    found = entry;
    return 1u;
  };
  ASSERT_TRUE(tier.Recover(find, [] { return false; }).ok());
  ASSERT_TRUE(found);
  std::atomic<size_t> durable{0};
  SteadyClock clock;
  Spiller spiller(
      {}, fixture.store(), tier, clock,
      [&](SessionId, VariantIndex, std::span<const Digest> digests) { durable += digests.size(); });
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}), BlockStatus::kOk);
  tier.Shut();
  spiller.Offer(kWho, fixture.variant(), digest);
  tier.AwaitCalls(1);
  const BlockIndex::Held same = fixture.store().HoldUntouched(fixture.variant(), digest);
  EXPECT_EQ(fixture.store().EnterFromDisk(found->key.variant, digest, found->parent,
                                          static_cast<uint64_t>(found->location), found->raw_pages,
                                          same.ref),
            same.ref);
  fixture.store().Unhold({&same.ref, 1});
  tier.Open();
  ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  EXPECT_EQ(durable, 1u);
  EXPECT_EQ(spiller.stats().spilled, 1u);
  EXPECT_EQ(tier.stats().puts, 1u);
  EXPECT_EQ(tier.stats().blocks, 1u) << "the older copy must be erased";
  const BlockIndex::Held held = fixture.store().HoldUntouched(fixture.variant(), digest);
  const DiskAddress now{found->key, DiskLocation{held.disk_location}};
  EXPECT_NE(now.location, found->location);
  std::optional<DiskTier::Description> known;
  EXPECT_TRUE(tier.Describe({&now, 1}, {&known, 1}).ok());
  EXPECT_TRUE(known);
  fixture.store().Unhold({&held.ref, 1});
  fixture.store().CheckInvariants();
}

TEST_F(Tiers, TheDiskEvictsTheColdestForNewBlocks) {
  Process process(medium_, MiB(8));  // 64 blocks
  std::vector<Digest> digests;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    digests.push_back(process.PutThrough(seed));
    ASSERT_LE(process.tier_.stats().used, MiB(8));
  }
  EXPECT_EQ(process.spiller_->stats().spilled, 200u);
  EXPECT_EQ(process.spiller_->stats().dropped_room, 0u);
  EXPECT_NE(process.Tiers(digests.back()) & kDiskBit, 0);
  EXPECT_EQ(process.Tiers(digests.front()), 0) << "the coldest block must have left";
  EXPECT_GT(process.store().stats().evicted_disk, 100u);
  process.store().CheckInvariants();
}

// The disk is smaller than the pool: copies of blocks that are in HOST are erased to make space.
TEST_F(Tiers, ADiskSmallerThanThePoolErasesCopies) {
  Process process(medium_, ByteCount(6 * kBlockBytes + (1 << 20) + 6 * kBlockBytes / 8));
  for (uint32_t seed = 1; seed <= 14; ++seed) process.PutThrough(seed);
  EXPECT_EQ(process.spiller_->stats().spilled, 14u);
  EXPECT_EQ(process.spiller_->stats().dropped_room, 0u);
  EXPECT_EQ(process.store().stats().evicted_demand, 0u);
  EXPECT_EQ(process.store().index().blocks(), 14u) << "no block may leave HOST";
  process.store().CheckInvariants();
}

TEST_F(Tiers, AClearedBlockLeavesTheDiskToo) {
  Process process(medium_, MiB(64));
  const Digest digest = process.PutThrough(1);
  EXPECT_TRUE(process.store().Drop(process.variant(), digest));
  EXPECT_EQ(process.Tiers(digest), 0);
  process.Settle();
  EXPECT_EQ(process.tier_.stats().blocks, 0u);
  const Digest again = process.PutThrough(1);
  EXPECT_EQ(process.Tiers(again), kHostBit | kDiskBit);
}

TEST_F(Tiers, WritersHashesAreCheckedBeforeTheSpill) {
  Process process(medium_, MiB(64));
  const ByteCount size(kBlockBytes);
  BlockStore::ReserveResult reserved = process.store().Reserve({&size, 1}, MiB(1));
  ASSERT_EQ(reserved.status, BlockStatus::kOk);
  SegmentTable table = UniformTable(1, kBlockBytes);
  table.segments[0].xxh3 = 12345;  // not the hash of its bytes
  table.hashed = true;
  const std::vector<uint32_t> tokens = TestTokens(1);
  const Digest name = Chain(Digest{}, tokens).back();
  ASSERT_EQ(process.store().Publish(reserved.reservation, 0,
                                    {process.variant(), name, Digest{}, tokens, &table}),
            BlockStatus::kOk);
  process.spiller_->Offer(kWho, process.variant(), name);
  process.Settle();
  EXPECT_EQ(process.spiller_->stats().damaged, 1u);
  EXPECT_EQ(process.Tiers(name), 0);
  EXPECT_EQ(process.durable_, 0u);
}

// The recovery finds a block that an engine has published again in the meantime.
TEST_F(Tiers, ABlockPublishedAgainBeforeItIsFoundKeepsItsCopy) {
  Digest digest;
  {
    Process process(medium_, MiB(64));
    digest = process.PutThrough(1);
  }
  StoreFixture fixture(MiB(2), MiB(2));
  MemoryDiskTier tier(MiB(64), medium_);
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}), BlockStatus::kOk);
  RecoverInto(fixture.store(), tier);
  EXPECT_EQ(tier.stats().blocks, 1u) << "its durable copy must stay";
  BlockIndex::Presence presence;
  fixture.store().index().Lookup(fixture.variant(), {&digest, 1}, {&presence, 1});
  EXPECT_EQ(presence.tiers, kHostBit | kDiskBit);
  fixture.store().CheckInvariants();
}

// The name is taken, whatever bytes come: the first writer's are read from the disk.
TEST_F(Tiers, PublishingABlockThatIsOnDiskAloneIsADuplicate) {
  const Digest digest = LeftOnDisk(1)[0];
  Process process(medium_, MiB(64));
  EXPECT_EQ(process.Tiers(digest), kDiskBit);
  for (const std::byte fill : {std::byte{1}, std::byte{99}}) {
    EXPECT_EQ(process.PublishBytes(1, fill), BlockStatus::kDuplicate);
    EXPECT_EQ(process.Tiers(digest), kDiskBit);
  }
  EXPECT_EQ(process.GetOne(digest, 1), BlockStatus::kOk);
  EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
  process.Settle();
  EXPECT_EQ(process.tier_.stats().puts, 0u);
  process.store().CheckInvariants();
}

// The block left the pool before its turn, and its name waits twice.
TEST_F(Tiers, ABlockOfferedTwiceIsReportedDurableTwice) {
  Process process(medium_, MiB(64));
  std::atomic<size_t> durable{0};
  Digest digest;
  {
    Spiller spiller({.paused = true}, process.store(), process.tier_, process.clock(),
                    [&](SessionId, VariantIndex, std::span<const Digest> digests) {
                      durable += digests.size();
                    });
    digest = process.Publish(1);
    for (int i = 0; i < 2; ++i) spiller.Offer(kWho, process.variant(), digest);
    spiller.Resume();
    EXPECT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
    EXPECT_EQ(spiller.stats().spilled, 1u);
  }
  EXPECT_EQ(durable, 2u) << "each offer must be reported durable";
  EXPECT_EQ(process.tier_.stats().puts, 1u);
  EXPECT_EQ(process.tier_.stats().blocks, 1u);
  EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
}

// Engines read blocks in the pool while others publish.  A block that was just read is worth more,
// but a block that is not on disk yet would be lost.
TEST_F(Tiers, BlocksThatWaitForTheDiskAreEvictedLast) {
  Process process(medium_, MiB(64));
  std::vector<Digest> read;
  for (uint32_t seed = 1; seed <= 8; ++seed) read.push_back(process.PutThrough(seed));
  const std::vector<uint32_t> seeds = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int round = 0; round < 3; ++round) (void)process.Get(read, seeds);
  std::vector<Digest> waiting;
  for (uint32_t seed = 100; seed < 112; ++seed) waiting.push_back(process.Publish(seed));
  for (const Digest& digest : waiting) EXPECT_EQ(process.Tiers(digest), kHostBit);
  EXPECT_EQ(process.store().stats().evicted_unspilled, 0u);
}

// However many queued blocks are on disk already, the queue keeps few of them from leaving.
TEST_F(Tiers, QueuedBlocksThatAreOnDiskCanBeEvicted) {
  GatedTier tier(MiB(64), medium_);
  StoreFixture fixture(MiB(2), MiB(2));  // 16 blocks
  RecoverInto(fixture.store(), tier);
  SteadyClock clock;
  Spiller spiller({}, fixture.store(), tier, clock,
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
  std::vector<Digest> digests(16);
  const auto put = [&](uint32_t seed) {
    return fixture.Put(Digest{}, seed, kBlockBytes, std::byte{1}, &digests[seed % 16]);
  };
  for (uint32_t seed = 0; seed < 15; ++seed) {
    ASSERT_EQ(put(seed), BlockStatus::kOk);
    spiller.Offer(kWho, fixture.variant(), digests[seed]);
  }
  ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  ASSERT_EQ(tier.stats().puts, 15u);
  tier.Shut();
  const size_t calls = tier.calls();
  ASSERT_EQ(put(15), BlockStatus::kOk);
  for (const Digest& digest : digests) spiller.Offer(kWho, fixture.variant(), digest);
  tier.AwaitCalls(calls + 1);
  for (uint32_t seed = 16; seed < 30; ++seed) EXPECT_EQ(put(seed), BlockStatus::kOk) << seed;
  tier.Open();
}

// One thread writes the block when another finds it in the queue: no second record of the same name
// is written.
TEST_F(Tiers, ABlockOfferedWhileItIsWrittenGetsOneRecord) {
  GatedTier tier(MiB(64), medium_);
  StoreFixture fixture(MiB(2), MiB(2));
  RecoverInto(fixture.store(), tier);
  std::atomic<size_t> durable{0};
  SteadyClock clock;
  Spiller spiller(
      {}, fixture.store(), tier, clock,
      [&](SessionId, VariantIndex, std::span<const Digest> digests) { durable += digests.size(); });
  tier.Shut();
  Digest first, second;
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}, &first), BlockStatus::kOk);
  ASSERT_EQ(fixture.Put(Digest{}, 2, kBlockBytes, std::byte{2}, &second), BlockStatus::kOk);
  spiller.Offer(kWho, fixture.variant(), first);
  tier.AwaitCalls(1);
  // The block is dropped and published again, so it is another block of the same name.
  ASSERT_TRUE(fixture.store().Drop(fixture.variant(), first));
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}), BlockStatus::kOk);
  spiller.Offer(kWho, fixture.variant(), first);
  spiller.Offer(kWho, fixture.variant(), second);
  tier.AwaitCalls(2);  // of the other thread, which had skipped the name
  tier.Open();
  ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  EXPECT_EQ(durable, 2u);
  EXPECT_EQ(tier.stats().puts, 3u);
  EXPECT_EQ(tier.stats().blocks, 2u);
  EXPECT_EQ(spiller.stats().spilled, 2u);
  for (const Digest& digest : {first, second}) {
    BlockIndex::Presence presence;
    fixture.store().index().Lookup(fixture.variant(), {&digest, 1}, {&presence, 1});
    EXPECT_EQ(presence.tiers, kHostBit | kDiskBit);
  }
  fixture.store().CheckInvariants();
}

// A name that waits for the end of a batch is written by a sleeping thread, not by the thread that
// ends the batch, which still has other work.
TEST_F(Tiers, TheEndOfABatchWakesASleepingThread) {
  GatedTier tier(MiB(64), medium_);
  StoreFixture fixture(MiB(2), MiB(2));
  RecoverInto(fixture.store(), tier);
  SteadyClock clock;
  std::atomic<size_t> told{0};
  std::atomic<bool> both{false};
  Spiller spiller({.threads = 2}, fixture.store(), tier, clock,
                  [&](SessionId, VariantIndex, std::span<const Digest>) {
                    if (++told > 1) return;
                    both =
                        SpinUntil(std::chrono::steady_clock::now() + 5s, [&] { return told > 1; });
                  });
  tier.Shut();
  Digest digest;
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
  spiller.Offer(kWho, fixture.variant(), digest);
  tier.AwaitCalls(1);
  spiller.Offer(kWho, fixture.variant(), digest);
  // The other thread has taken the name, and has nothing to write.
  std::this_thread::sleep_for(100ms);
  tier.Open();
  ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  EXPECT_TRUE(both);
}

// However often a name is offered while it is written.
TEST_F(Tiers, TheQueueKeepsItsLimit) {
  GatedTier tier(MiB(64), medium_);
  StoreFixture fixture(MiB(2), MiB(2));
  RecoverInto(fixture.store(), tier);
  SteadyClock clock;
  Spiller spiller({.queue_max = 2, .threads = 2}, fixture.store(), tier, clock,
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
  tier.Shut();
  Digest digest;
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
  spiller.Offer(kWho, fixture.variant(), digest);
  tier.AwaitCalls(1);
  for (int i = 0; i < 10; ++i) {
    spiller.Offer(kWho, fixture.variant(), digest);
    // The other thread takes the name.
    EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                          [&] { return spiller.stats().queued == 1; }));
  }
  tier.Open();
  ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  EXPECT_EQ(spiller.stats().dropped_queue, 8u);
}

// Flips one bit of the block in the pool.
void Flip(Process& process, const Digest& digest) {
  const BlockIndex::Held held = process.store().HoldUntouched(process.variant(), digest);
  LARDER_CHECK(InHost(held.state));
  process.store().Bytes(held.extent)[kBlockBytes / 2] ^= std::byte{4};
  process.store().Unhold({&held.ref, 1});
}

// A process that writes where it should not cannot destroy a durable block, even if others are
// reading it.
TEST_F(Tiers, ABlockDamagedInThePoolIsReadFromDisk) {
  for (const bool leased : {false, true}) {
    SCOPED_TRACE(leased);
    MemoryDiskTier::Medium medium;
    Process process(medium, MiB(64));
    const Digest digest = process.PutThrough(1);
    const ByteCount free = process.store().stats().pool_free;
    BlockLease reader;
    if (leased) reader = process.store().Acquire(process.variant(), {&digest, 1}, MiB(1)).lease;
    Flip(process, digest);
    {
      const HostVerifier verifier({.bytes_per_s = GiB(1), .pause = 1ms}, process.store());
      EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                            [&] { return verifier.stats().damaged > 0; }));
    }
    EXPECT_EQ(process.store().stats().damaged, 1u);
    EXPECT_EQ(process.Tiers(digest), kDiskBit);
    EXPECT_EQ(process.GetOne(digest, 1), BlockStatus::kOk)
        << "the block must come back with its right bytes";
    EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
    EXPECT_EQ(process.tier_.stats().blocks, 1u);
    process.store().CheckInvariants();
    reader.Reset();
    EXPECT_EQ(process.store().stats().pool_free, free) << "the damaged copy must be freed";
    EXPECT_EQ(process.tier_.stats().blocks, 1u);
    process.store().CheckInvariants();
  }
}

// Records which entry it was told to ask for each record.
class OwnersTier final : public MemoryDiskTier {
 public:
  using MemoryDiskTier::MemoryDiskTier;
  void SetOwner(DiskLocation location, uint32_t owner) override {
    MutexLock lock(mu_);
    owners_[location] = owner;
  }
  [[nodiscard]] uint32_t OwnerOf(DiskLocation location) {
    MutexLock lock(mu_);
    return owners_[location];
  }

 private:
  Mutex mu_;
  std::map<DiskLocation, uint32_t> owners_ LARDER_GUARDED_BY(mu_);
};

// When the disk needs the space, it asks for the block by the entry that it has by then.
TEST_F(Tiers, AfterDamageTheDiskAsksForTheNewEntry) {
  OwnersTier tier(MiB(64), medium_);
  StoreFixture fixture(MiB(2), MiB(2));
  ASSERT_EQ(RecoverInto(fixture.store(), tier), 0u);
  SteadyClock clock;
  Digest digest;
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
  {
    Spiller spiller({}, fixture.store(), tier, clock,
                    [](SessionId, VariantIndex, std::span<const Digest>) {});
    spiller.Offer(kWho, fixture.variant(), digest);
    ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
  }
  const BlockIndex::Held damaged = fixture.store().HoldUntouched(fixture.variant(), digest);
  const DiskLocation place{damaged.disk_location};
  EXPECT_EQ(tier.OwnerOf(place), damaged.ref.value);
  fixture.store().DropDamaged(damaged.ref);
  const BlockIndex::Held now = fixture.store().HoldUntouched(fixture.variant(), digest);
  ASSERT_EQ(now.state, BlockState::kDisk);
  EXPECT_NE(now.ref, damaged.ref);
  EXPECT_EQ(now.disk_location, damaged.disk_location);
  std::atomic<bool> there{false};
  {
    Promoter promoter(1, fixture.store(), tier, clock);
    Promoter::Job job;
    job.variant = fixture.variant();
    job.blocks.push_back({0, now.ref, digest, now.disk_location, now.extent.bytes()});
    job.ready = [&](const Promoter::Wanted&, BlockStatus status, const BlockIndex::Held&) {
      there = status == BlockStatus::kOk;
    };
    promoter.Submit(promoter.Prepare(std::move(job)));
    EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s, [&] { return there.load(); }));
  }
  EXPECT_EQ(tier.OwnerOf(place), now.ref.value);
  const std::array held = {damaged.ref, now.ref};
  fixture.store().Unhold(held);
  fixture.store().CheckInvariants();
}

}  // namespace
}  // namespace larder::testing
