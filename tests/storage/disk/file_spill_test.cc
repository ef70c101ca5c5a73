// From HOST to files: what happens to all blocks when a part of the disk fails, or all of it for a
// while.
#include <atomic>
#include <functional>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/disk/file_disk_tier.h"
#include "storage/mutex.h"
#include "storage/spin_wait.h"
#include "storage/tiering/spiller.h"
#include "tests/storage/store/store_fixture.h"
#include "tests/storage/tiering/forwarding_tier.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"

namespace larder::testing {
namespace {

using namespace std::chrono_literals;

constexpr ByteCount kLimit = MiB(160);  // 4 shards of 2 files of 16 MiB
constexpr uint32_t kBlockBytes = 1 << 20;
constexpr uint32_t kBlocksMax = 128;  // more than fit
constexpr SessionId kWho{7};

// Calls a hook when blocks are held for a put, before they are put.
class HookedTier final : public ForwardingTier {
 public:
  using ForwardingTier::ForwardingTier;
  void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) override {
    if (before_put) before_put();
    ForwardingTier::Put(blocks, results);
  }
  std::function<void()> before_put;  // set while nothing is put
};

// A tier that answers the first `puts` puts with kNoRoom.
class FullTier final : public ForwardingTier {
 public:
  FullTier(DiskTier& to, int puts) : ForwardingTier(to), puts_(puts) {}
  void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) override {
    if (puts_-- <= 0) return ForwardingTier::Put(blocks, results);
    for (PutResult& result : results) result = {.status = PutStatus::kNoRoom};
  }

 private:
  std::atomic<int> puts_;
};

class FileSpill : public ::testing::Test {
 protected:
  // Starts a process that has not recovered its disk yet.  Faults concern `faulty_shard`, or all
  // shards.
  void Start(std::optional<uint32_t> faulty_shard = std::nullopt) {
    spiller_.reset();
    tier_.reset();
    fixture_ = std::make_unique<StoreFixture>(MiB(32), MiB(2));
    FileDiskTier::Options options;
    options.directory = directory_.path() + "/disk";
    options.limit = kLimit;
    options.faults = &faults_;
    options.faulty_shard = faulty_shard;
    options.warn = [this](const std::string& text) {
      MutexLock lock(warned_mu_);
      warned_ += text;
    };
    auto tier = FileDiskTier::Open(options);
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    hooked_.emplace(*tier_);
    spiller_.emplace(Spiller::Options{.paused = true}, store(), *hooked_, clock_,
                     [](SessionId, VariantIndex, std::span<const Digest>) {});
  }
  [[nodiscard]] absl::Status Recover() {
    return tier_->Recover(
        [this](const DiskTier::Entry& entry) {
          return store()
              .EnterFromDisk(entry.key.variant, entry.key.digest, entry.parent,
                             static_cast<uint64_t>(entry.location), entry.raw_pages)
              .value;
        },
        [] { return false; });
  }
  void Put(uint32_t seed) {
    Digest digest;
    ASSERT_EQ(fixture_->Put(Digest{}, seed, kBlockBytes, std::byte{1}, &digest), BlockStatus::kOk);
    spiller_->Offer(kWho, fixture_->variant(), digest);
    digests_[seed] = digest;
  }
  // Puts and spills one block after another, so that none leaves the pool before its turn.
  void PutThrough(uint32_t first, uint32_t last) {
    for (uint32_t seed = first; seed <= last; ++seed) {
      Put(seed);
      ASSERT_TRUE(Settle()) << "block " << seed;
    }
  }
  // Returns false if the disk did not take all blocks in time.
  [[nodiscard]] bool Settle(Duration how_long = 20s) {
    spiller_->Nudge();
    return spiller_->WaitIdle(std::chrono::steady_clock::now() + how_long);
  }
  void Arm(std::string_view text) { ASSERT_TRUE(faults_.Arm(text).ok()); }
  [[nodiscard]] BlockStore& store() { return fixture_->store(); }
  [[nodiscard]] bool InIndex(uint32_t seed) {
    BlockIndex::Presence presence;
    store().index().Lookup(fixture_->variant(), {&digests_[seed], 1}, {&presence, 1});
    return presence.tiers != 0;
  }
  // Returns true if the catalog has the copy of a block that the index has on disk.
  [[nodiscard]] bool InCatalog(uint32_t seed) {
    const BlockIndex::Held held = store().HoldUntouched(fixture_->variant(), digests_[seed]);
    const DiskAddress there{.key = {store().index().VariantId(fixture_->variant()), digests_[seed]},
                            .location = DiskLocation{held.disk_location}};
    std::optional<DiskTier::Description> known;
    EXPECT_TRUE(tier_->Describe({&there, 1}, {&known, 1}).ok());
    store().Unhold({&held.ref, 1});
    return known.has_value();
  }

  TemporaryDirectory directory_;
  Mutex warned_mu_;
  std::string warned_ LARDER_GUARDED_BY(warned_mu_);
  FaultPoints faults_;
  SteadyClock clock_;
  std::unique_ptr<StoreFixture> fixture_;
  std::unique_ptr<FileDiskTier> tier_;
  std::optional<HookedTier> hooked_;
  std::optional<Spiller> spiller_;
  std::map<uint32_t, Digest> digests_;  // by seed
};

// No other block may use that space, so the operator is told how much it is.
TEST_F(FileSpill, BlocksThatCannotEnterTheIndexKeepTheirSpaceAndAreReported) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Recover().ok());
  spiller_->Resume();
  ASSERT_NO_FATAL_FAILURE(PutThrough(1, 6));
  const ByteCount used = tier_->stats().used;
  ASSERT_GT(used, ByteCount(6 * kBlockBytes));
  ASSERT_NO_FATAL_FAILURE(Start());
  const auto unplaced = [](const DiskTier::Entry&) { return DiskTier::kUnplaced; };
  ASSERT_TRUE(tier_->Recover(unplaced, [] { return false; }).ok());
  EXPECT_EQ(tier_->stats().used, used);
  MutexLock lock(warned_mu_);
  EXPECT_NE(warned_.find(absl::StrCat("6 blocks on disk cannot enter the index now; they keep ",
                                      used.value(), " bytes of disk space")),
            std::string::npos)
      << warned_;
}

// Another thread may take space that one thread has freed.  That is no reason to lose a block.
TEST_F(FileSpill, ABlockWithoutDiskSpaceIsRetried) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Recover().ok());
  for (const auto& [full_puts, dropped] : {std::pair{6, 0u}, std::pair{1'000'000, 1u}}) {
    FullTier full(*tier_, full_puts);
    Spiller spiller({}, store(), full, clock_,
                    [](SessionId, VariantIndex, std::span<const Digest>) {});
    Digest digest;
    ASSERT_EQ(fixture_->Put(Digest{}, 1 + dropped, kBlockBytes, std::byte{1}, &digest),
              BlockStatus::kOk);
    spiller.Offer(kWho, fixture_->variant(), digest);
    ASSERT_TRUE(spiller.WaitIdle(std::chrono::steady_clock::now() + 20s));
    EXPECT_EQ(spiller.stats().dropped_room, dropped);
    EXPECT_EQ(spiller.stats().spilled, 1 - dropped);
  }
}

class FailingShard : public FileSpill, public ::testing::WithParamInterface<const char*> {};

// A shard that takes nothing or frees nothing costs its part of the disk: new blocks go to the
// other shards, which evict.
TEST_P(FailingShard, DoesNotFailTheWholeDisk) {
  ASSERT_NO_FATAL_FAILURE(Start(0));
  ASSERT_TRUE(Recover().ok());
  spiller_->Resume();
  ASSERT_NO_FATAL_FAILURE(PutThrough(1, kBlocksMax));
  ASSERT_GT(store().stats().evicted_disk, 0u) << "the disk must be full";
  Arm(GetParam());
  ASSERT_NO_FATAL_FAILURE(PutThrough(kBlocksMax + 1, 2 * kBlocksMax));
  EXPECT_EQ(spiller_->stats().spilled, 2 * kBlocksMax);
  EXPECT_EQ(spiller_->stats().dropped_room, 0u);
  EXPECT_EQ(spiller_->stats().breaker_opened, 0u);
  EXPECT_GT(tier_->stats().catalog_failures, 0u);
  Arm("");
  store().CheckInvariants();
}

INSTANTIATE_TEST_SUITE_P(Each, FailingShard,
                         ::testing::Values("catalog.erase=error",
                                           "catalog.commit=error,catalog.erase=error"));

// Blocks that wait meanwhile are neither too many nor too large, and no block has to be evicted for
// them.
TEST_F(FileSpill, BlocksWaitForADiskThatCannotBeReadAtFirst) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Recover().ok());
  spiller_->Resume();
  ASSERT_NO_FATAL_FAILURE(PutThrough(1, 8));
  ASSERT_NO_FATAL_FAILURE(Start());
  Arm("catalog.scan=error");
  ASSERT_TRUE(absl::IsUnavailable(Recover()));
  ASSERT_EQ(tier_->stats().shards_failed, tier_->stats().shards) << "each shard has some block";
  for (uint32_t seed = 9; seed <= 24; ++seed) Put(seed);
  spiller_->Resume();
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                        [&] { return spiller_->stats().breaker_opened >= 3; }));
  EXPECT_EQ(spiller_->stats().queued, 16u);
  Arm("");
  ASSERT_TRUE(Recover().ok());
  ASSERT_TRUE(Settle());
  EXPECT_EQ(spiller_->stats().spilled, 16u);
  EXPECT_EQ(spiller_->stats().dropped_room, 0u);
  EXPECT_EQ(tier_->stats().blocks, 24u);
}

// The newer copy takes the name in the catalog of that shard, which has the most free space.
TEST_F(FileSpill, ABlockFoundOnDiskDuringItsSpillIsReplaced) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Recover().ok());
  spiller_->Resume();
  ASSERT_NO_FATAL_FAILURE(PutThrough(1, 8));
  ASSERT_NO_FATAL_FAILURE(Start(0));
  Arm("catalog.scan=error");
  ASSERT_TRUE(absl::IsUnavailable(Recover()));
  Arm("");
  uint32_t seed = 1;
  while (InIndex(seed)) ASSERT_LE(++seed, 8u) << "each shard has some block";
  spiller_->Resume();
  ASSERT_NO_FATAL_FAILURE(PutThrough(9, 20));  // not in the shard of that block
  hooked_->before_put = [this, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    EXPECT_TRUE(Recover().ok());
  };
  ASSERT_NO_FATAL_FAILURE(PutThrough(seed, seed));
  EXPECT_EQ(spiller_->stats().spilled, 13u);
  EXPECT_TRUE(InCatalog(seed));
  EXPECT_EQ(tier_->stats().blocks, 20u) << "the older copy must be erased";
  EXPECT_EQ(tier_->stats().used.value() % 20, 0u) << "the older copy's space must be freed";
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Recover().ok());
  for (const auto& [each, digest] : digests_) EXPECT_TRUE(InIndex(each)) << each;
}

// A reader still holds the dropped record when another record has its name.
TEST_F(FileSpill, ABlockThatIsDroppedWhileItIsReadDoesNotComeBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Recover().ok());
  spiller_->Resume();
  ASSERT_NO_FATAL_FAILURE(PutThrough(1, 1));
  auto read = store().Acquire(fixture_->variant(), {&digests_[1], 1}, MiB(4), HoldWhat::kAnyTier);
  ASSERT_NE(read.blocks[0].ref, EntryRef{});
  store().DropDamaged(read.blocks[0].ref, Tier::kDisk);
  ASSERT_EQ(fixture_->Put(Digest{}, 1, kBlockBytes, std::byte{2}), BlockStatus::kOk);
  spiller_->Offer(kWho, fixture_->variant(), digests_[1]);
  ASSERT_TRUE(Settle());
  ASSERT_EQ(spiller_->stats().spilled, 2u) << "the new record must be durable";
  // The process is killed while the lease is held.
  spiller_.reset();
  tier_.reset();
  read = {};
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Recover().ok());
  const BlockIndex::Held held = store().HoldUntouched(fixture_->variant(), digests_[1]);
  const DiskAddress there{.key = {store().index().VariantId(fixture_->variant()), digests_[1]},
                          .location = DiskLocation{held.disk_location}};
  const auto known = DescribeOne(*tier_, there);
  ASSERT_TRUE(known);
  const Got got = GetRange(*tier_, there, known->header, {0, 1, 0, kBlockBytes});
  EXPECT_EQ(got.status, DiskTier::GetStatus::kOk);
  EXPECT_EQ(got.bytes, std::vector<std::byte>(kBlockBytes, std::byte{2}));
  store().Unhold({&held.ref, 1});
  EXPECT_EQ(tier_->stats().blocks, 1u);
}

// If no shard frees space, only as many blocks are evicted from the index as it takes to find this
// out.
TEST_F(FileSpill, ADiskThatCannotEraseKeepsItsBlocks) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Recover().ok());
  spiller_->Resume();
  ASSERT_NO_FATAL_FAILURE(PutThrough(1, kBlocksMax));
  Arm("catalog.erase=error");
  const uint64_t evicted = store().stats().evicted_disk;
  for (uint32_t seed = kBlocksMax + 1; seed <= kBlocksMax + 8; ++seed) Put(seed);
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + 20s,
                        [&] { return spiller_->stats().breaker_opened >= 6; }));
  EXPECT_LE(store().stats().evicted_disk, evicted + 16);
  Arm("");
  ASSERT_TRUE(Settle());
  EXPECT_EQ(spiller_->stats().spilled, kBlocksMax + 8);
  EXPECT_EQ(spiller_->stats().dropped_room, 0u);
  store().CheckInvariants();
}

}  // namespace
}  // namespace larder::testing
