// What FileDiskTier does when the disk or its directory has faults.  Each case ends in a status and
// a counter, and everything works again when the cause is gone.
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/disk/file_disk_tier.h"
#include "storage/spin_wait.h"
#include "tests/storage/disk/no_file_grows.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"

namespace larder::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr ByteCount kLimit = MiB(160);

DiskBlock BlockNumbered(uint64_t number) {
  return {number, static_cast<uint32_t>(1 + number % 7), 50'000};
}

uint64_t BytesOnDisk(const fs::path& directory) {
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    struct stat found {};
    if (stat(entry.path().c_str(), &found) == 0)
      bytes += static_cast<uint64_t>(found.st_blocks) * 512;
  }
  return bytes;
}

class FileDiskTierFaults : public ::testing::Test {
 protected:
  [[nodiscard]] absl::StatusOr<std::unique_ptr<FileDiskTier>> TryOpen(
      ByteCount limit = kLimit, std::optional<uint32_t> faulty_shard = std::nullopt) {
    FileDiskTier::Options options;
    options.directory = path();
    options.limit = limit;
    options.faults = &faults_;
    options.faulty_shard = faulty_shard;
    options.warn = [this](const std::string& text) {
      MutexLock lock(mu_);
      warnings_ += text + "\n";
    };
    return FileDiskTier::Open(options);
  }
  void Open(ByteCount limit = kLimit) {
    tier_.reset();
    auto tier = TryOpen(limit);
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    held_.clear();
    for (const DiskTier::Entry& entry : RecoverAll(*tier_)) {
      uint64_t number = 0;
      std::memcpy(&number, entry.key.digest.bytes.data(), sizeof number);
      // A block may be reported twice: one shard committed it but could not confirm this, so
      // another shard has it too.
      if (!held_.emplace(number, entry.location).second)
        EraseOne(*tier_, {BlockNumbered(number).key(), entry.location});
    }
  }
  DiskTier::PutStatus Put(uint64_t number) {
    const DiskTier::PutResult put = PutOne(*tier_, BlockNumbered(number));
    if (put.status == DiskTier::PutStatus::kOk) held_[number] = put.location;
    return put.status;
  }
  void PutUntilFull() {
    for (uint64_t number = 1; Put(number) == DiskTier::PutStatus::kOk; ++number)
      ASSERT_LT(number, 10'000u);
  }
  void EraseAll() {
    for (const auto& [number, location] : held_)
      EraseOne(*tier_, {BlockNumbered(number).key(), location});
    held_.clear();
  }
  // Waits longer than it takes until failed erasures are tried again.
  void AwaitErasures() {
    (void)SpinUntil(std::chrono::steady_clock::now() + std::chrono::milliseconds(1500),
                    [&] { return (void)tier_->Erase({}), false; });
  }
  // Returns how many of the blocks that were put are missing or wrong.
  size_t Missing() {
    size_t missing = 0;
    for (const auto& [number, location] : held_)
      missing += Has(*tier_, BlockNumbered(number), location) ? 0 : 1;
    return missing;
  }
  [[nodiscard]] std::string path() const { return directory_.path() + "/disk"; }
  [[nodiscard]] std::string warnings() {
    MutexLock lock(mu_);
    return warnings_;
  }

  TemporaryDirectory directory_;
  FaultPoints faults_;
  Mutex mu_;
  std::string warnings_ LARDER_GUARDED_BY(mu_);
  std::unique_ptr<FileDiskTier> tier_;
  std::map<uint64_t, DiskLocation> held_;
};

// ---- The directory.

TEST_F(FileDiskTierFaults, ASecondProcessIsRefused) {
  Open();
  const auto second = TryOpen();
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("used by another process"));
}

TEST_F(FileDiskTierFaults, ADirectoryOfANewerVersionIsRefused) {
  Open();
  tier_.reset();
  for (const auto& shard : fs::directory_iterator(path())) {
    if (fs::exists(shard.path() / "FORMAT"))
      std::ofstream(shard.path() / "FORMAT") << "larder-disk-tier 5\nshards 3\nfile_bytes 1\n";
  }
  const auto refused = TryOpen();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("newer larderd"));
}

TEST_F(FileDiskTierFaults, ADirectoryThatCannotBeMadeIsAnError) {
  FileDiskTier::Options options;
  options.directory = directory_.path() + "/no/such/parent";
  options.limit = kLimit;
  EXPECT_THAT(std::string(FileDiskTier::Open(options).status().message()),
              HasSubstr("/no/such/parent"));
  options.directory = path();
  options.limit = MiB(10);
  EXPECT_TRUE(absl::IsInvalidArgument(FileDiskTier::Open(options).status()));
}

TEST_F(FileDiskTierFaults, ADamagedCatalogIsSetAsideAndOnlyTheLastIsKept) {
  for (int time = 0; time < 3; ++time) {
    Open();
    for (uint64_t number = 1; number <= 20; ++number) Put(number);
    tier_.reset();
    fs::remove(path() + "/shard-00/catalog/CURRENT");
    Open();
    EXPECT_EQ(tier_->stats().shards_set_aside, 1u);
    EXPECT_THAT(warnings(), HasSubstr("shard-00 is damaged and starts empty"));
    EXPECT_TRUE(fs::exists(path() + "/set-aside/catalog"));
    EXPECT_EQ(Missing(), 0u);
    EXPECT_EQ(Put(1000 + static_cast<uint64_t>(time)), DiskTier::PutStatus::kOk);
    EXPECT_LE(BytesOnDisk(path()), kLimit.value());
    EraseAll();
  }
}

// As a loss of power may leave it.  The scan finds the damage when the daemon already serves.
TEST_F(FileDiskTierFaults, ACatalogDamagedInTheMiddleIsSetAsideToo) {
  Open();
  for (uint64_t number = 1; number <= 40; ++number) Put(number);
  tier_.reset();
  Open();  // the start writes the log into tables
  tier_.reset();
  for (const auto& entry : fs::directory_iterator(path() + "/shard-00/catalog")) {
    if (entry.path().extension() != ".sst") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(10);
    file << "damage";
  }
  Open();
  EXPECT_EQ(tier_->stats().shards_set_aside, 1u);
  EXPECT_EQ(Missing(), 0u);
  EXPECT_EQ(Put(1000), DiskTier::PutStatus::kOk);
}

TEST_F(FileDiskTierFaults, ALowerLimitRemovesFilesAndTheirBlocks) {
  Open(MiB(320));
  PutUntilFull();
  const size_t before = held_.size();
  tier_.reset();
  Open(MiB(200));
  EXPECT_LT(held_.size(), before);
  EXPECT_GT(held_.size(), 0u);
  EXPECT_EQ(Missing(), 0u);
  EXPECT_LE(BytesOnDisk(path()), MiB(200).value());
}

TEST_F(FileDiskTierFaults, ALostDataFileLosesOnlyItsBlocks) {
  Open();
  PutUntilFull();
  tier_.reset();
  fs::remove(path() + "/shard-00/00000000.kv");
  Open();
  const size_t missing = Missing();
  EXPECT_GT(missing, 0u);
  EXPECT_LT(missing, held_.size());
  EXPECT_GT(tier_->stats().damaged, 0u);
}

// ---- The disk.

struct Kind {
  const char* point;
  bool writes;
};
class FileDiskTierErrors : public FileDiskTierFaults, public ::testing::WithParamInterface<Kind> {};

// Every kind of operation fails now and then.  What was answered OK is there, and afterwards no
// trace of the faults remains.
TEST_P(FileDiskTierErrors, OccasionalFailuresLoseNothingThatWasAnsweredOk) {
  Open();
  for (const char* rate : {"/1", "/32", "/1000"}) {
    for (const char* action : {"error", "full", "short"}) {
      SCOPED_TRACE(absl::StrCat(GetParam().point, "=", action, rate));
      ASSERT_TRUE(faults_.Arm(absl::StrCat(GetParam().point, "=", action, rate)).ok());
      std::map<uint64_t, DiskLocation> put;
      for (uint64_t number = 1; number <= 60; ++number) {
        if (Put(number) == DiskTier::PutStatus::kOk) put[number] = held_[number];
        if (number % 3 == 0 && put.contains(number - 1)) {
          EraseOne(*tier_, {BlockNumbered(number - 1).key(), held_[number - 1]});
          held_.erase(number - 1);
        }
        if (put.contains(number)) (void)Has(*tier_, BlockNumbered(number), held_[number]);
      }
      ASSERT_TRUE(faults_.Arm("").ok());
      EXPECT_EQ(Missing(), 0u);
      EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(10), [&] {
        return Put(100) == DiskTier::PutStatus::kOk;
      })) << "the tier must work again soon";
      EXPECT_EQ(Missing(), 0u);
      const auto kept = held_;
      Open();
      for (const auto& [number, location] : kept) EXPECT_TRUE(held_.contains(number)) << number;
      EXPECT_EQ(Missing(), 0u)
          << "a block that comes back because its erasure failed must be right too";
      EraseAll();
      EXPECT_EQ(tier_->stats().used, ByteCount(0)) << "no disk space may leak";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Each, FileDiskTierErrors,
                         ::testing::Values(Kind{"data.create", true}, Kind{"data.created", true},
                                           Kind{"data.write", true}, Kind{"data.read", false},
                                           Kind{"data.sync", true}, Kind{"put.allocated", true},
                                           Kind{"put.written", true}, Kind{"put.synced", true},
                                           Kind{"put.committed", true},
                                           Kind{"catalog.commit", true},
                                           Kind{"catalog.erase", true}, Kind{"erase.written", true},
                                           Kind{"catalog.read", false}),
                         [](const auto& kind) {
                           std::string name = kind.param.point;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST_F(FileDiskTierFaults, ErrorsAreCounted) {
  Open();
  ASSERT_TRUE(faults_.Arm("data.write=error").ok());
  EXPECT_EQ(Put(1), DiskTier::PutStatus::kFailed);
  ASSERT_TRUE(faults_.Arm("data.sync=error").ok());
  EXPECT_EQ(Put(1), DiskTier::PutStatus::kFailed);
  ASSERT_TRUE(faults_.Arm("").ok());
  EXPECT_EQ(Put(1), DiskTier::PutStatus::kOk);
  ASSERT_TRUE(faults_.Arm("data.read=error").ok());
  EXPECT_FALSE(Has(*tier_, BlockNumbered(1), held_[1]));
  const DiskTier::Stats stats = tier_->stats();
  EXPECT_EQ(stats.write_failures, stats.shards) << "each shard was tried";
  EXPECT_EQ(stats.sync_failures, stats.shards);
  EXPECT_EQ(stats.read_failures, 1u);
  EXPECT_THAT(warnings(), HasSubstr("cannot write"));
}

// An erasure that failed and is completed later must not free space that belongs to another record
// by then.
TEST_F(FileDiskTierFaults, ALateErasureDoesNotFreeReusedSpace) {
  Open();
  ASSERT_EQ(Put(1), DiskTier::PutStatus::kOk);
  const DiskAddress former{BlockNumbered(1).key(), held_[1]};
  EraseAll();
  uint64_t number = 1;
  do {
    ASSERT_EQ(Put(number += 7), DiskTier::PutStatus::kOk);  // of the same size
  } while (held_[number] != former.location && number < 1000);
  ASSERT_TRUE(faults_.Arm("catalog.erase=error").ok());
  EraseOne(*tier_, former);
  ASSERT_TRUE(faults_.Arm("").ok());
  AwaitErasures();
  EXPECT_EQ(tier_->stats().blocks, held_.size());
  for (int i = 0; i < 40; ++i) Put(number += 7);
  EXPECT_EQ(Missing(), 0u);
  EraseAll();
  EXPECT_EQ(tier_->stats().used, ByteCount(0)) << "no disk space may leak";
}

TEST_F(FileDiskTierFaults, ARepeatedFailedErasureIsCompletedOnce) {
  for (const char* point : {"catalog.erase=error", "erase.written=error"}) {
    Open();
    ASSERT_EQ(Put(1), DiskTier::PutStatus::kOk);
    ASSERT_TRUE(faults_.Arm(point).ok());
    const DiskAddress one{BlockNumbered(1).key(), held_[1]};
    for (int i = 0; i < 2; ++i) EraseOne(*tier_, one);
    ASSERT_TRUE(faults_.Arm("").ok());
    AwaitErasures();
    EXPECT_EQ(tier_->stats().used, ByteCount(0));
    EXPECT_EQ(tier_->stats().blocks, 0u);
  }
}

// As with a page of the pool that the machine has lost: no write can take it, but the other blocks
// of the batch are written.
TEST_F(FileDiskTierFaults, ABlockThatCannotBeWrittenFailsAlone) {
  Open();
  constexpr uint32_t kBytes = 64 << 10, kBad = 3;
  std::vector<DiskBlock> blocks;
  std::vector<DiskTier::NewBlock> news;
  for (uint64_t number = 1; number <= 8; ++number) blocks.emplace_back(number, 1, kBytes);
  for (const DiskBlock& block : blocks) news.push_back(block.AsNew());
  void* unreadable = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(unreadable, MAP_FAILED);
  news[kBad].payload = {static_cast<const std::byte*>(unreadable), kBytes};
  std::vector<DiskTier::PutResult> results(news.size());
  tier_->Put(news, results);
  for (uint32_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(results[i].status,
              i == kBad ? DiskTier::PutStatus::kFailed : DiskTier::PutStatus::kOk)
        << i;
    EXPECT_EQ(Has(*tier_, blocks[i], results[i].location), i != kBad) << i;
  }
  EXPECT_EQ(tier_->stats().blocks, 7u);
  EXPECT_EQ(tier_->stats().used.value() % 7, 0u) << "no disk space may leak";
  munmap(unreadable, kBytes);
}

// A disk that takes nothing is not tried again for each block of a batch.
TEST_F(FileDiskTierFaults, ADeadDiskFailsSoon) {
  Open();
  std::vector<DiskBlock> blocks;
  std::vector<DiskTier::NewBlock> news;
  for (uint64_t number = 1; number <= 32; ++number) blocks.emplace_back(number, 1, 64 << 10);
  for (const DiskBlock& block : blocks) news.push_back(block.AsNew());
  std::vector<DiskTier::PutResult> results(news.size());
  ASSERT_TRUE(faults_.Arm("data.write=error").ok());
  tier_->Put(news, results);
  for (const DiskTier::PutResult& result : results)
    EXPECT_EQ(result.status, DiskTier::PutStatus::kFailed);
  EXPECT_LE(faults_.faults(FaultPoint::kDataWrite), 3u * tier_->stats().shards);
  EXPECT_EQ(tier_->stats().used, ByteCount(0));
}

// The catalogs then refuse all writes until they are opened again.
TEST_F(FileDiskTierFaults, CatalogsAreWrittenAgainAfterAFailure) {
  Open();
  for (uint64_t number = 1; number <= 12; ++number) Put(number);
  ASSERT_TRUE(tier_->PutFact("a", "1").ok());
  const auto kept = held_;
  {
    const NoFileGrows broken;
    EXPECT_FALSE(tier_->PutFact("a", "2").ok());
    EXPECT_FALSE(tier_->PutFact("a", "2").ok());
    for (uint64_t number = 13; number <= 16; ++number)
      EXPECT_EQ(Put(number), DiskTier::PutStatus::kFailed);
    const DiskAddress one{BlockNumbered(1).key(), held_[1]};
    EXPECT_FALSE(tier_->Erase({&one, 1}).ok());
    held_.erase(1);
    EXPECT_EQ(Missing(), 0u) << "the catalogs can still be read";
  }
  EXPECT_TRUE(tier_->PutFact("a", "3").ok())
      << "a write of a fact must be enough to reopen the catalogs";
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(10),
                        [&] { return Put(20) == DiskTier::PutStatus::kOk; }));
  EXPECT_EQ(Missing(), 0u);
  Open();
  EXPECT_GE(held_.size(), kept.size());
  EXPECT_EQ(Missing(), 0u);
  std::string value;
  tier_->ForEachFact([&](const std::string&, const std::string& now) { value = now; });
  EXPECT_EQ(value, "3");
  EraseAll();
  EXPECT_EQ(tier_->stats().used, ByteCount(0)) << "no disk space may leak";
}

// If one shard fails to take a block, another shard takes it.
TEST_F(FileDiskTierFaults, AnotherShardTakesABlockThatOneFailsToTake) {
  Open();
  ASSERT_GE(tier_->stats().shards, 4u);
  ASSERT_TRUE(faults_.Arm("data.write=error/3").ok());
  size_t failed = 0;
  for (uint64_t number = 1; number <= 60; ++number)
    failed += Put(number) == DiskTier::PutStatus::kOk ? 0 : 1;
  EXPECT_LE(failed, 6u) << "one failure in 81 puts would be expected";
  EXPECT_GE(tier_->stats().write_failures, 10u);
  ASSERT_TRUE(faults_.Arm("").ok());
  EXPECT_EQ(Missing(), 0u);
}

TEST_F(FileDiskTierFaults, FilesThatWereSetAsideCountAfterTheNextStart) {
  for (int start = 0; start < 2; ++start) Open();  // the logs of a new directory take more
  fs::create_directories(path() + "/set-aside/catalog");
  const uint64_t before = tier_->stats().allocated.value();
  std::ofstream(path() + "/set-aside/catalog/000001.sst") << std::string(1 << 20, 'x');
  Open();
  EXPECT_GE(tier_->stats().allocated.value(), before + (1 << 20));
}

TEST_F(FileDiskTierFaults, ACrashWhileAShardIsSetAsideIsHarmless) {
  for (int time = 0; time < 3; ++time) {
    Open();
    for (uint64_t number = 1; number <= 20; ++number) Put(number);
    tier_.reset();
    fs::remove(path() + "/shard-00/catalog/CURRENT");
    ASSERT_TRUE(faults_.Arm("shard.set-aside=crash").ok());
    EXPECT_EXIT(TryOpen().IgnoreError(), ::testing::ExitedWithCode(66), "");
    ASSERT_TRUE(faults_.Arm("").ok());
    Open();
    EXPECT_EQ(Missing(), 0u);
    EXPECT_EQ(Put(1000), DiskTier::PutStatus::kOk);
    EraseAll();
  }
}

// What could not be read at the start is reported when it can be read, and once.
TEST_F(FileDiskTierFaults, AnotherRecoverReportsTheRest) {
  for (const char* point : {"catalog.scan=error/40", "catalog.open=error/2"}) {
    SCOPED_TRACE(point);
    Open();
    for (uint64_t number = 1; number <= 60; ++number) Put(number);
    const auto kept = held_;
    const uint32_t shards = tier_->stats().shards;
    tier_.reset();
    ASSERT_TRUE(faults_.Arm(point).ok());
    auto tier = TryOpen();
    while (!tier.ok()) tier = TryOpen();  // not one shard could be opened
    tier_ = *std::move(tier);
    EXPECT_EQ(tier_->stats().shards, shards) << "closed shards count as well";
    held_.clear();
    size_t failed_recoveries = 0;
    const auto recover = [&] {
      return tier_->Recover(
          [&](const DiskTier::Entry& entry) {
            uint64_t number = 0;
            std::memcpy(&number, entry.key.digest.bytes.data(), sizeof number);
            EXPECT_TRUE(held_.emplace(number, entry.location).second)
                << "reported twice: " << number;
            return 1u;
          },
          [] { return false; });
    };
    for (absl::Status status = recover(); !status.ok(); status = recover()) {
      ASSERT_TRUE(absl::IsUnavailable(status)) << status;
      EXPECT_GT(tier_->stats().shards_failed, 0u);
      EXPECT_EQ(Missing(), 0u) << "every block that was reported must be there";
      if (++failed_recoveries == 20) {
        ASSERT_TRUE(faults_.Arm("").ok());
      }
    }
    ASSERT_TRUE(faults_.Arm("").ok());
    EXPECT_EQ(tier_->stats().shards_failed, 0u);
    EXPECT_EQ(held_.size(), kept.size());
    EXPECT_EQ(Missing(), 0u);
    EXPECT_EQ(Put(1000), DiskTier::PutStatus::kOk);
    tier_.reset();
    fs::remove_all(path());
  }
}

// The shard that opens late has the most free space, so blocks that were missed from it are put
// again, into the other shards.
TEST_F(FileDiskTierFaults, NothingIsPutIntoAShardThatIsNotFullyReported) {
  Open();
  for (uint64_t number = 1; number <= 40; ++number) Put(number);
  const auto kept = held_;
  tier_.reset();
  auto tier = TryOpen(kLimit, 0);
  ASSERT_TRUE(tier.ok());
  tier_ = *std::move(tier);
  ASSERT_TRUE(faults_.Arm("catalog.scan=error").ok());
  held_.clear();
  const auto tell = [&](const DiskTier::Entry& entry) {
    uint64_t number = 0;
    std::memcpy(&number, entry.key.digest.bytes.data(), sizeof number);
    held_.emplace(number, entry.location);
    return 1u;
  };
  const auto never = [] { return false; };
  ASSERT_TRUE(absl::IsUnavailable(tier_->Recover(tell, never)));
  const auto others = held_;
  ASSERT_LT(others.size(), kept.size());
  for (uint64_t number = 1001; number <= 1060; ++number) Put(number);
  ASSERT_TRUE(faults_.Arm("").ok());
  std::vector<DiskAddress> again;
  const auto put_again_and_tell = [&](const DiskTier::Entry& entry) {
    for (auto it = kept.begin(); again.size() < kept.size() - others.size(); ++it) {
      if (others.contains(it->first)) continue;
      const DiskBlock block = BlockNumbered(it->first);
      const DiskTier::PutResult put = PutOne(*tier_, block);
      EXPECT_EQ(put.status, DiskTier::PutStatus::kOk);
      again.push_back({block.key(), put.location});
    }
    return tell(entry);
  };
  ASSERT_TRUE(tier_->Recover(put_again_and_tell, never).ok());
  ASSERT_FALSE(again.empty());
  // As a caller does that learns of another copy meanwhile.
  ASSERT_TRUE(tier_->Erase(again).ok());
  const size_t known = held_.size();
  EXPECT_EQ(known, kept.size() + 60);
  EXPECT_EQ(Missing(), 0u);
  tier_.reset();
  Open();
  EXPECT_EQ(held_.size(), known);
  EXPECT_EQ(Missing(), 0u);
}

// With small blocks that have long descriptions, the catalog is full before the data files are.
// From then on, as many blocks must be erased as are put.
TEST_F(FileDiskTierFaults, AFullCatalogTakesAsManyBlocksAsAreErased) {
  Open();
  constexpr size_t kBatch = 128, kPuts = 12'000;
  const ByteCount wanted(kBatch * 3 * kPageBytes);
  std::vector<DiskAddress> there;
  size_t most = 0, first = 0, refused = 0;
  for (uint64_t number = 1; number <= kPuts; number += kBatch) {
    while (tier_->free_bytes() < wanted && first < there.size()) {
      const size_t slice = std::min(kBatch / 4, there.size() - first);
      ASSERT_TRUE(tier_->Erase(std::span(there).subspan(first, slice)).ok());
      first += slice;
    }
    std::vector<DiskBlock> blocks;
    std::vector<DiskTier::NewBlock> news;
    for (size_t i = 0; i < kBatch; ++i) blocks.emplace_back(number + i, 128, 16);
    for (const DiskBlock& block : blocks) news.push_back(block.AsNew());
    std::vector<DiskTier::PutResult> results(kBatch);
    tier_->Put(news, results);
    for (size_t i = 0; i < kBatch; ++i) {
      if (results[i].status == DiskTier::PutStatus::kOk) {
        there.push_back({blocks[i].key(), results[i].location});
      } else {
        ++refused;
      }
    }
    const size_t blocks_now = there.size() - first;
    most = std::max(most, blocks_now);
    ASSERT_GE(blocks_now, most / 2) << "more blocks were erased than were put, at " << number;
    ASSERT_LE(BytesOnDisk(path()), kLimit.value());
  }
  EXPECT_GT(first, 1000u) << "the catalog must have been full";
  EXPECT_LE(refused, kPuts / 50);
  for (size_t i = first; i < there.size(); i += 97) {
    uint64_t number = 0;
    std::memcpy(&number, there[i].key.digest.bytes.data(), sizeof number);
    EXPECT_TRUE(Has(*tier_, DiskBlock(number, 128, 16), there[i].location));
  }
}

// The disk is full before the limit is reached: the tier is smaller than configured, and otherwise
// works as usual.
TEST_F(FileDiskTierFaults, ADiskSmallerThanTheLimit) {
  fs::create_directory(path());
  if (mount("tmpfs", path().c_str(), "tmpfs", 0, "size=100m,mode=0700") != 0)
    GTEST_SKIP() << "needs root, to mount a file system of 100 MiB";
  Open(MiB(320));
  PutUntilFull();
  EXPECT_GT(held_.size(), 100u);
  EXPECT_EQ(Missing(), 0u);
  EXPECT_GT(tier_->stats().write_failures, 0u);
  EraseAll();
  EXPECT_EQ(Put(1), DiskTier::PutStatus::kOk);
  Open(MiB(320));
  EXPECT_EQ(held_.size(), 1u);
  EXPECT_EQ(Missing(), 0u);
  tier_.reset();
  EXPECT_EQ(umount2(path().c_str(), MNT_DETACH), 0);
}

// ---- The limit.

TEST_F(FileDiskTierFaults, NeverTakesMoreThanTheLimit) {
  for (const ByteCount limit : {FileDiskTier::kLimitMin, MiB(200), MiB(1000)}) {
    SCOPED_TRACE(limit.value());
    Open(limit);
    for (uint64_t number = 1; number <= 4000; ++number) {
      if (Put(number) == DiskTier::PutStatus::kNoRoom) {
        ASSERT_FALSE(held_.empty()) << "an empty tier must have space";
        const auto oldest = held_.begin();
        EraseOne(*tier_, {BlockNumbered(oldest->first).key(), oldest->second});
        held_.erase(oldest);
      }
      if (number % 100 == 0) {
        ASSERT_LE(BytesOnDisk(path()), limit.value());
        ASSERT_LE(tier_->stats().allocated, limit);
      }
    }
    EXPECT_EQ(Missing(), 0u);
    EraseAll();
    tier_.reset();
    fs::remove_all(path());
  }
}

}  // namespace
}  // namespace larder::testing
