// Blocks between HOST and disk: a store with a spiller and a promoter over the reference tier.
#include <atomic>
#include <map>

#include <gtest/gtest.h>

#include "storage/disk/memory_disk_tier.h"
#include "storage/disk_verifier.h"
#include "storage/look.h"
#include "storage/promoter.h"
#include "storage/spiller.h"
#include "tests/storage/gated_tier.h"
#include "tests/storage/store_fixture.h"

namespace larder::testing {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kBlockBytes = 128 << 10;
constexpr SessionId kWho{7};

// A process: pool of 2 MiB (16 blocks), its store, spiller and promoter.
class Process {
 public:
  Process(MemoryDiskTier::Medium& medium, ByteCount disk_limit)
      : tier_(disk_limit, medium), fixture_(MiB(2), MiB(2)) {
    found_ = RecoverInto(store(), tier_);
    spiller_.emplace(Spiller::Options{}, store(), tier_, clock_,
                     [this](SessionId who, VariantIndex, std::span<const Digest> digests) {
                       if (who == kWho) durable_ += digests.size();
                     });
    promoter_.emplace(2, store(), tier_, clock_);
  }
  ~Process() {  // before the store
    promoter_.reset();
    spiller_.reset();
  }

  // Block `seed`, whose bytes are its number.
  Digest Publish(uint32_t seed) {
    Digest digest;
    const BlockStatus status =
        fixture_.Put(Digest{}, seed, kBlockBytes, static_cast<std::byte>(seed), &digest);
    EXPECT_TRUE(status == BlockStatus::kOk || status == BlockStatus::kDuplicate);
    return digest;
  }
  Digest Put(uint32_t seed) {
    const Digest digest = Publish(seed);
    spiller_->Offer(kWho, fixture_.variant(), digest);
    return digest;
  }
  void Settle() {
    spiller_->Nudge();
    EXPECT_TRUE(spiller_->WaitIdle(std::chrono::steady_clock::now() + 20s));
  }
  // Puts a block and waits until it is on disk.
  Digest PutThrough(uint32_t seed) {
    const Digest digest = Put(seed);
    Settle();
    return digest;
  }

  // Acquires from any tier, promoting what is on disk; how each came out.
  std::vector<BlockStatus> Get(std::span<const Digest> digests, std::span<const uint32_t> seeds) {
    BlockStore::AcquireResult got = store().Acquire(
        fixture_.variant(), digests, store().pool().total_bytes(), HoldWhat::kAnyTier);
    std::vector<BlockStatus> statuses(digests.size(), BlockStatus::kMissing);
    Promoter::Job job;
    job.variant = fixture_.variant();
    for (size_t i = 0; i < got.blocks.size(); ++i) {
      const BlockIndex::Held& held = got.blocks[i];
      if (held.full) statuses[i] = BlockStatus::kFull;
      if (held.ref.value == 0) continue;
      if (InHost(held.state)) {
        statuses[i] = Right(held, seeds[i]) ? BlockStatus::kOk : BlockStatus::kInvalid;
      } else {
        job.blocks.push_back({i, held.ref, digests[i], held.disk_location, held.extent.bytes()});
      }
    }
    std::atomic<size_t> left{job.blocks.size()};
    job.ready = [&](const Promoter::Wanted& wanted, BlockStatus status,
                    const BlockIndex::Held& held) {
      statuses[wanted.key] = status != BlockStatus::kOk       ? status
                             : Right(held, seeds[wanted.key]) ? BlockStatus::kOk
                                                              : BlockStatus::kInvalid;
      --left;
    };
    Promoter::Prepared prepared = promoter_->Prepare(std::move(job));
    LARDER_CHECK(prepared != nullptr);
    promoter_->Submit(std::move(prepared));
    while (left > 0) std::this_thread::yield();
    return statuses;
  }
  BlockStatus GetOne(const Digest& digest, uint32_t seed) {
    return Get({&digest, 1}, {&seed, 1})[0];
  }

  [[nodiscard]] BlockStore& store() { return fixture_.store(); }
  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] VariantIndex variant() const { return fixture_.variant(); }
  [[nodiscard]] uint8_t Tiers(const Digest& digest) {
    BlockIndex::Presence presence;
    store().index().Lookup(variant(), {&digest, 1}, {&presence, 1});
    return presence.tiers;
  }

  MemoryDiskTier tier_;
  size_t found_ = 0;
  std::atomic<size_t> durable_{0};
  std::optional<Spiller> spiller_;
  std::optional<Promoter> promoter_;

 private:
  bool Right(const BlockIndex::Held& held, uint32_t seed) {
    const std::span<const std::byte> bytes = store().Bytes(held.extent).first(kBlockBytes);
    return std::all_of(bytes.begin(), bytes.end(),
                       [seed](std::byte b) { return b == static_cast<std::byte>(seed); });
  }

  SteadyClock clock_;
  StoreFixture fixture_;
};

constexpr uint8_t kHostBit = 1u << static_cast<int>(Tier::kHost);
constexpr uint8_t kDiskBit = 1u << static_cast<int>(Tier::kDisk);

class Tiers : public ::testing::Test {
 protected:
  MemoryDiskTier::Medium medium_;
};

TEST_F(Tiers, BlocksAreSpilledAndTheirWriterHearsOfIt) {
  Process process(medium_, MiB(64));
  const Digest digest = process.PutThrough(1);
  EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
  EXPECT_EQ(process.durable_, 1u);
  EXPECT_EQ(process.spiller_->stats().spilled, 1u);
  EXPECT_EQ(process.tier_.stats().blocks, 1u);
  process.Put(1);
  process.Settle();
  EXPECT_EQ(process.durable_, 2u) << "there already";
  EXPECT_EQ(process.tier_.stats().puts, 1u);
  process.store().CheckInvariants();
}

TEST_F(Tiers, WhatLeavesThePoolComesBackFromDisk) {
  Process process(medium_, MiB(64));
  std::vector<Digest> digests;
  std::vector<uint32_t> seeds;
  for (uint32_t seed = 1; seed <= 60; ++seed) {  // four pools full
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
  EXPECT_EQ(process.tier_.stats().puts, 60u) << "what comes from disk is not written again";
  EXPECT_EQ(process.promoter_->stats().damaged, 0u);
  process.store().CheckInvariants();
}

TEST_F(Tiers, TheNextProcessHasThem) {
  std::vector<Digest> digests;
  {
    Process process(medium_, MiB(64));
    for (uint32_t seed = 1; seed <= 20; ++seed) digests.push_back(process.PutThrough(seed));
  }
  Process process(medium_, MiB(64));
  EXPECT_EQ(process.found_, 20u);
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(process.Tiers(digests[seed - 1]), kDiskBit);
    EXPECT_EQ(process.GetOne(digests[seed - 1], seed), BlockStatus::kOk);
    EXPECT_NE(process.Tiers(digests[seed - 1]) & kHostBit, 0);
  }
  process.store().CheckInvariants();
}

TEST_F(Tiers, DamageOnDiskIsAMissAndTheNameGoes) {
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
  // Its last hold ends right after its answer.
  EXPECT_TRUE(LookUntil(std::chrono::steady_clock::now() + 20s, [&] {
    process.Settle();
    return process.tier_.stats().blocks == 0;
  })) << "its room is free again";
  EXPECT_EQ(process.promoter_->stats().damaged, 1u);
  process.store().CheckInvariants();
}

// Damage of a block that nobody asks for.
TEST_F(Tiers, TheVerifierFindsDamageOnDiskAlone) {
  std::vector<Digest> digests;
  {
    Process process(medium_, MiB(64));
    for (uint32_t seed = 1; seed <= 8; ++seed) digests.push_back(process.PutThrough(seed));
  }
  Process process(medium_, MiB(64));
  {
    MutexLock lock(medium_.mu);
    medium_.records.begin()->second.payload[1000] ^= std::byte{1};
    std::next(medium_.records.begin())->second.unreadable = true;
  }
  DiskVerifier verifier({.bytes_per_s = GiB(1), .pause = 1ms}, process.store(), process.tier_);
  EXPECT_TRUE(LookUntil(std::chrono::steady_clock::now() + 20s,
                        [&] { return verifier.stats().walks >= 2; }));
  EXPECT_EQ(verifier.stats().damaged, 1u);
  EXPECT_GE(verifier.stats().failed, 2u) << "in every walk";
  EXPECT_GE(verifier.stats().blocks, 2u * 6);
  EXPECT_EQ(process.Tiers(digests[0]), 0);
  for (size_t i = 1; i < digests.size(); ++i) EXPECT_EQ(process.Tiers(digests[i]), kDiskBit);
  process.store().CheckInvariants();
}

// A bad place of a disk that works otherwise: it must not close the disk again and again.  But one
// failure, or several while nothing else was read, may be the disk's.
TEST_F(Tiers, ABlockThatAloneCannotBeReadIsGivenUp) {
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
    EXPECT_TRUE(LookUntil(std::chrono::steady_clock::now() + 20s,
                          [&] { return process.promoter_->worth_asking(); }));
    return process.GetOne(bad, 1);
  };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(get_bad(), BlockStatus::kMissing);
  for (uint32_t i = 0; i < good.size(); ++i) {
    EXPECT_EQ(process.Tiers(bad), kDiskBit) << i;
    EXPECT_TRUE(LookUntil(std::chrono::steady_clock::now() + 20s,
                          [&] { return process.promoter_->worth_asking(); }));
    EXPECT_EQ(process.GetOne(good[i], i + 2), BlockStatus::kOk);
    EXPECT_EQ(get_bad(), i + 1 < good.size() ? BlockStatus::kMissing : BlockStatus::kDamaged) << i;
  }
  EXPECT_EQ(process.Tiers(bad), 0);
  EXPECT_TRUE(process.promoter_->worth_asking());
  process.store().CheckInvariants();
}

// Then room cannot be made, however much is taken from the index; what waits is written afterwards.
TEST_F(Tiers, ADiskThatDoesNotEraseKeepsItsBlocks) {
  Process process(medium_, MiB(8));  // 64 blocks
  for (uint32_t seed = 1; seed <= 100; ++seed) process.PutThrough(seed);
  {
    MutexLock lock(medium_.mu);
    medium_.keeps_all = true;
  }
  const uint64_t evicted = process.store().stats().evicted_disk;
  const Digest waits = process.Put(101);
  EXPECT_TRUE(LookUntil(std::chrono::steady_clock::now() + 20s,
                        [&] { return process.spiller_->stats().breaker_opened >= 4; }));
  EXPECT_LE(process.store().stats().evicted_disk, evicted + 10) << "of one batch";
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
  process.store().CheckInvariants();
}

// Published during recovery, found on disk, and gone from the pool before its turn.
TEST_F(Tiers, OnDiskAloneByItsTurnIsDurable) {
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

TEST_F(Tiers, TheDiskMakesRoomForWhatIsNew) {
  Process process(medium_, MiB(8));  // 64 blocks
  std::vector<Digest> digests;
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    digests.push_back(process.PutThrough(seed));
    ASSERT_LE(process.tier_.stats().used, MiB(8));
  }
  EXPECT_EQ(process.spiller_->stats().spilled, 200u);
  EXPECT_EQ(process.spiller_->stats().dropped_room, 0u);
  EXPECT_NE(process.Tiers(digests.back()) & kDiskBit, 0);
  EXPECT_EQ(process.Tiers(digests.front()), 0) << "the coldest went";
  EXPECT_GT(process.store().stats().evicted_disk, 100u);
  process.store().CheckInvariants();
}

// A disk smaller than the pool: copies of what is in HOST make room.
TEST_F(Tiers, ASmallDiskUnderALargePool) {
  Process process(medium_, ByteCount(6 * kBlockBytes + (1 << 20) + 6 * kBlockBytes / 8));
  for (uint32_t seed = 1; seed <= 14; ++seed) process.PutThrough(seed);
  EXPECT_EQ(process.spiller_->stats().spilled, 14u);
  EXPECT_EQ(process.spiller_->stats().dropped_room, 0u);
  EXPECT_EQ(process.store().stats().evicted_demand, 0u);
  EXPECT_EQ(process.store().index().blocks(), 14u) << "nothing left HOST";
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
  table.segments[0].xxh3 = 12345;  // not its bytes'
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

TEST_F(Tiers, OneReadForManyWhoWantTheSame) {
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

// The recovery finds what an engine has published again in the meantime.
TEST_F(Tiers, PublishedAgainBeforeItIsFound) {
  Digest digest;
  {
    Process process(medium_, MiB(64));
    digest = process.PutThrough(1);
  }
  StoreFixture fixture(MiB(2), MiB(2));
  MemoryDiskTier tier(MiB(64), medium_);
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}), BlockStatus::kOk);
  RecoverInto(fixture.store(), tier);
  EXPECT_EQ(tier.stats().blocks, 1u) << "its durable copy stays";
  BlockIndex::Presence presence;
  fixture.store().index().Lookup(fixture.variant(), {&digest, 1}, {&presence, 1});
  EXPECT_EQ(presence.tiers, kHostBit | kDiskBit);
  fixture.store().CheckInvariants();
}

// The disk cannot be read, so the engine computes it again: then HOST has it.
TEST_F(Tiers, PublishedAgainWhileOnDiskAlone) {
  Digest digest;
  {
    Process process(medium_, MiB(64));
    digest = process.PutThrough(1);
  }
  Process process(medium_, MiB(64));
  EXPECT_EQ(process.Tiers(digest), kDiskBit);
  process.Put(1);
  EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
  EXPECT_EQ(process.GetOne(digest, 1), BlockStatus::kOk);
  process.Settle();
  EXPECT_EQ(process.durable_, 1u);
  EXPECT_EQ(process.tier_.stats().puts, 0u);
  process.store().CheckInvariants();
}

// It left the pool before its turn, and its name waits twice.
TEST_F(Tiers, PublishedTwiceBeforeItsTurn) {
  Process process(medium_, MiB(64));
  size_t durable = 0;
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
  EXPECT_EQ(durable, 2u) << "both were promised to hear";
  EXPECT_EQ(process.tier_.stats().puts, 1u);
  EXPECT_EQ(process.tier_.stats().blocks, 1u);
  EXPECT_EQ(process.Tiers(digest), kHostBit | kDiskBit);
}

// Engines read what the pool has while others publish: what was just read is worth more, but what
// is not on disk yet would be lost.
TEST_F(Tiers, WhatWaitsForTheDiskIsNotEvictedForWhatIsThere) {
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

// However much of the queue is on disk already, it keeps little from leaving.
TEST_F(Tiers, WhatNeedNotBeWrittenIsNotHeld) {
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

// One thread writes it when another finds it in the queue: no second record of the same name.
TEST_F(Tiers, OfferedAgainWhileItIsWritten) {
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
  // Gone and published again, so it is another block of the same name.
  ASSERT_TRUE(fixture.store().Drop(fixture.variant(), first));
  ASSERT_EQ(fixture.Put(Digest{}, 1, kBlockBytes, std::byte{1}), BlockStatus::kOk);
  spiller.Offer(kWho, fixture.variant(), first);
  spiller.Offer(kWho, fixture.variant(), second);
  tier.AwaitCalls(2);  // of the other thread, which had passed the name
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

TEST_F(Tiers, ACancelledJobIsAnsweredAndReadsNothing) {
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
  got = {};  // the lease goes before it is submitted
  Promoter::Cancel(prepared);
  process.promoter_->Submit(std::move(prepared));
  EXPECT_TRUE(LookUntil(std::chrono::steady_clock::now() + 20s, [&] { return answer >= 0; }));
  EXPECT_EQ(answer, static_cast<int>(BlockStatus::kCancelled));
  EXPECT_EQ(process.tier_.stats().gets, 0u);
}

// More blocks than are described at once; one of them, in the middle, is not in the catalog.
TEST_F(Tiers, ALongJobIsDescribedInParts) {
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
  Promoter promoter(2, fixture.store(), tier, clock);
  std::vector<std::atomic<int>> answers(kBlocks);
  std::atomic<uint32_t> left{kBlocks};
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
  while (left > 0) std::this_thread::yield();
  for (uint32_t i = 0; i < kBlocks; ++i)
    EXPECT_EQ(answers[i], i == kGone ? 100 + static_cast<int>(BlockStatus::kDamaged) : 1) << i;
}

TEST_F(Tiers, AnUnsubmittedJobOfNothingIsNothing) {
  Process process(medium_, MiB(64));
  process.promoter_->Submit(process.promoter_->Prepare({}));
  EXPECT_EQ(process.promoter_->stats().waiting, 0u);
}

}  // namespace
}  // namespace larder::testing
