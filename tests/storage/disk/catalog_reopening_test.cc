// Catalogs after a failed write, after which RocksDB accepts writes only when it is opened again.
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "storage/disk/file_disk_tier.h"
#include "storage/spin_wait.h"
#include "tests/storage/disk/no_file_grows.h"
#include "tests/support/disk_blocks.h"
#include "tests/support/temporary_directory.h"

namespace larder::testing {
namespace {

DiskBlock BlockNumbered(uint64_t number) { return {number, 2, 50'000}; }

class OpenedAnew : public ::testing::Test {
 protected:
  // Opens a tier with some blocks.  A write to every catalog then fails, so the next write opens
  // each catalog again.
  void OpenAndBreak() {
    auto tier = FileDiskTier::Open({.directory = directory_.path() + "/disk",
                                    .limit = MiB(160),
                                    .faults = &faults_,
                                    .faulty_shard = std::nullopt,
                                    .warn = {}});
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    ASSERT_TRUE(RecoverAll(*tier_).empty());
    for (uint64_t number = 1; number <= 12; ++number) Put(number);
    const NoFileGrows broken;
    EXPECT_FALSE(tier_->PutFact("a", "1").ok());
  }
  void Put(uint64_t number) {
    const DiskTier::PutResult put = PutOne(*tier_, BlockNumbered(number));
    ASSERT_EQ(put.status, DiskTier::PutStatus::kOk);
    held_[number] = put.location;
  }
  // Returns how many of the blocks that were put are missing or wrong.
  size_t Missing() {
    size_t missing = 0;
    for (const auto& [number, location] : held_)
      missing += Has(*tier_, BlockNumbered(number), location) ? 0 : 1;
    return missing;
  }

  // `spoil` changes the file that names the manifest of a catalog.
  void IsReadAgainAfter(const std::function<void(const std::string& current)>& spoil) {
    ASSERT_NO_FATAL_FAILURE(OpenAndBreak());
    const std::string current = directory_.path() + "/disk/shard-00/catalog/CURRENT";
    std::stringstream there;
    there << std::ifstream(current).rdbuf();
    spoil(current);
    (void)tier_->PutFact("a", "2");
    EXPECT_EQ(tier_->stats().shards_failed, 1u);
    EXPECT_GT(Missing(), 0u);
    std::ofstream(current) << there.str();
    EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(10),
                          [&] { return Missing() == 0; }));
  }

  TemporaryDirectory directory_;
  FaultPoints faults_;
  std::unique_ptr<FileDiskTier> tier_;
  std::map<uint64_t, DiskLocation> held_;
};

// A catalog that a failed write has closed, and that cannot be opened for writing, can still be
// read.
TEST_F(OpenedAnew, ACatalogThatCannotBeReopenedForWritingCanBeRead) {
  ASSERT_NO_FATAL_FAILURE(OpenAndBreak());
  ASSERT_TRUE(faults_.Arm("catalog.open=error").ok());
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(tier_->PutFact("a", "2").ok());
    EXPECT_EQ(Missing(), 0u);
    EXPECT_EQ(tier_->stats().shards_failed, tier_->stats().shards);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  const auto tries = static_cast<uint64_t>(1 + took.count());  // the tier tries once a second
  EXPECT_LE(faults_.faults(FaultPoint::kCatalogOpen), tries * tier_->stats().shards)
      << "a catalog must not be opened at each write";
  ASSERT_TRUE(faults_.Arm("").ok());
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(10), [&] {
    return tier_->PutFact("a", "3").ok() && tier_->stats().shards_failed == 0;
  }));
  Put(20);
  EXPECT_EQ(Missing(), 0u);
}

// While no name can be committed, no payload is written either, and the stats report the failed
// shards.
TEST_F(OpenedAnew, NoPayloadIsWrittenWhileNoNameCanBeCommitted) {
  ASSERT_NO_FATAL_FAILURE(OpenAndBreak());
  ASSERT_TRUE(faults_.Arm("data.write=sleep:1ms").ok());
  {
    const NoFileGrows broken;
    EXPECT_EQ(tier_->stats().shards_failed, tier_->stats().shards);
    EXPECT_EQ(PutOne(*tier_, BlockNumbered(20)).status, DiskTier::PutStatus::kFailed);
    EXPECT_EQ(faults_.arrivals(FaultPoint::kDataWrite), 0u);
    EXPECT_EQ(tier_->stats().shards_failed, tier_->stats().shards);
  }
  EXPECT_TRUE(tier_->PutFact("a", "3").ok());
  EXPECT_EQ(tier_->stats().shards_failed, 0u);
  EXPECT_TRUE(SpinUntil(std::chrono::steady_clock::now() + std::chrono::seconds(10), [&] {
    return PutOne(*tier_, BlockNumbered(20)).status == DiskTier::PutStatus::kOk;
  }));
  EXPECT_GT(faults_.arrivals(FaultPoint::kDataWrite), 0u);
  EXPECT_EQ(Missing(), 0u);
}

// The catalog cannot be opened for reading either.  It is opened again without a write that
// triggers this.
TEST_F(OpenedAnew, AnUnreadableCatalogIsReadAgainLater) {
  IsReadAgainAfter(
      [](const std::string& current) { std::ofstream(current) << "MANIFEST-999999\n"; });
}
// Nor is an empty catalog created in its place.
TEST_F(OpenedAnew, ACatalogThatSeemsMissingIsReadAgainLater) {
  IsReadAgainAfter([](const std::string& current) { std::filesystem::remove(current); });
}

// Reads wait while the catalog is closed.
TEST_F(OpenedAnew, ReadsWaitWhileACatalogIsReopened) {
  ASSERT_NO_FATAL_FAILURE(OpenAndBreak());
  ASSERT_TRUE(faults_.Arm("catalog.open=sleep:300ms").ok());
  auto written = std::async(std::launch::async, [&] { return tier_->PutFact("a", "2"); });
  size_t missing = 0;
  while (written.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    missing += Missing();
  EXPECT_TRUE(written.get().ok());
  EXPECT_EQ(missing, 0u);
}

// A write does not wait for a reader that scans the whole catalog, and other readers may read it
// meanwhile.
absl::Status PutFact(BlockCatalog& catalog, const std::string& value) {
  const DiskTier::Fact one{"a", value};
  return catalog.PutFacts({&one, 1});
}

TEST_F(OpenedAnew, ACatalogIsNotReopenedDuringAScan) {
  CatalogMemory memory(MiB(8));
  auto opened = BlockCatalog::Open({.directory = directory_.path() + "/catalog",
                                    .disk_bytes_max = MiB(16),
                                    .memory = &memory,
                                    .faults = &faults_,
                                    .warn = {}});
  ASSERT_TRUE(opened.ok()) << opened.status();
  BlockCatalog& catalog = **opened;
  const DiskBlock block = BlockNumbered(1);
  const std::string header = EncodeRecordHeader(block.header());
  const CatalogEntry entry{.key = block.key(),
                           .place = {.extent = {.slab = {}, .page = 0, .pages = 100},
                                     .payload_bytes = KiB(100),
                                     .parent = {}},
                           .header = std::as_bytes(std::span(header)),
                           .tokens = block.tokens()};
  ASSERT_TRUE(catalog.Commit({&entry, 1}).ok());
  {
    const NoFileGrows broken;
    EXPECT_FALSE(PutFact(catalog, "1").ok());
  }
  std::future<absl::Status> written;
  size_t visited = 0;
  EXPECT_TRUE(catalog
                  .ForEachPlace([&](const BlockKey&, const CatalogPlace&) {
                    ++visited;
                    written = std::async(std::launch::async, [&] { return PutFact(catalog, "2"); });
                    EXPECT_EQ(written.wait_for(std::chrono::seconds(5)), std::future_status::ready);
                    std::optional<BlockCatalog::Description> known;
                    EXPECT_TRUE(catalog.Describe({&entry.key, 1}, {&known, 1}).ok());
                    EXPECT_TRUE(known);
                    return true;
                  })
                  .ok());
  ASSERT_EQ(visited, 1u);
  EXPECT_TRUE(absl::IsUnavailable(written.get()));
  EXPECT_TRUE(PutFact(catalog, "3").ok());
}

}  // namespace
}  // namespace larder::testing
