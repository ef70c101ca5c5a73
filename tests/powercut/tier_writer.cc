// tier_writer LOG DIRECTORY SEED STEPS FIRST-VERSION drives a FileDiskTier over a directory with
// two threads, each with its own blocks and facts, and marks in a DiskLog what it requested and
// what it was promised.  It prints nothing, and ends in the middle of its work or properly.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "storage/check.h"
#include "storage/disk/file_disk_tier.h"
#include "tests/powercut/promises.h"
#include "tests/powercut/tier_writer.h"
#include "tests/powercut/versioned_block.h"

namespace larder::powercut {
namespace {

class Writer {
 public:
  Writer(FileDiskTier& tier, Ledger& ledger, uint32_t first, uint64_t seed, uint32_t version)
      : tier_(tier), ledger_(ledger), first_(first), random_(seed), version_(version) {}

  // Notes a block that was found before the first step.
  void Found(uint32_t number, DiskLocation location) { locations_[number] = location; }

  void Step() {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
      case 3:
        return Put();
      case 4:
        return Erase();
      case 5:
        return Forget();
      case 6:
        return PutFacts();
      default:
        return Sync();
    }
  }

 private:
  // Returns a number of this thread.
  [[nodiscard]] uint32_t Any(uint32_t count) {
    return static_cast<uint32_t>(random_() % (count / kThreads) * kThreads + first_);
  }
  [[nodiscard]] std::vector<uint32_t> Some(bool there) {
    std::vector<uint32_t> numbers;
    const uint32_t from = Any(kBlocks);
    const uint64_t count = 1 + random_() % 6;
    for (uint32_t i = 0; i < kBlocks && numbers.size() < count; i += kThreads) {
      const uint32_t number = (from + i) % kBlocks;
      if ((locations_[number] != DiskLocation::kNone) == there) numbers.push_back(number);
    }
    return numbers;
  }
  void Hear(Book book, Said said, uint32_t number, uint32_t version) {
    ledger_.Hear({.book = book, .said = said, .number = number, .version = version});
  }

  // Puts blocks, sometimes also blocks that are there, as when a block is dropped while it is
  // read.  The older record of such a block is erased sooner or later.
  void Put() {
    ++version_;
    const std::vector<uint32_t> numbers = Some(random_() % 8 == 0);
    std::vector<VersionedBlock> blocks;
    blocks.reserve(numbers.size());
    std::vector<DiskTier::NewBlock> news;
    for (const uint32_t number : numbers) {
      blocks.emplace_back(number, version_);
      news.push_back(blocks.back().AsNew());
      Hear(Book::kBlocks, Said::kStoring, number, version_);
    }
    std::vector<DiskTier::PutResult> results(news.size());
    tier_.Put(news, results);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (results[i].status != DiskTier::PutStatus::kOk) continue;
      Hear(Book::kBlocks, Said::kStored, numbers[i], version_);
      DiskLocation& location = locations_[numbers[i]];
      if (location != DiskLocation::kNone)
        older_.push_back({VersionedBlock::KeyOf(numbers[i]), location});
      location = results[i].location;
    }
    if (random_() % 2 == 0) EraseOlder();
  }
  void EraseOlder() {
    if (!older_.empty()) LARDER_CHECK(tier_.Erase(older_).ok());
    older_.clear();
  }
  [[nodiscard]] std::vector<DiskAddress> Removing(std::span<const uint32_t> numbers) {
    std::vector<DiskAddress> addresses;
    for (const uint32_t number : numbers) {
      Hear(Book::kBlocks, Said::kRemoving, number, 0);
      addresses.push_back({VersionedBlock::KeyOf(number), locations_[number]});
      locations_[number] = DiskLocation::kNone;
    }
    return addresses;
  }
  void Erase() {
    const std::vector<uint32_t> numbers = Some(true);
    LARDER_CHECK(tier_.Erase(Removing(numbers)).ok());
    removed_.insert(removed_.end(), numbers.begin(), numbers.end());
  }
  // Forgets blocks as Clear does if they are leased.
  void Forget() {
    const std::vector<uint32_t> numbers = Some(true);
    const std::vector<DiskAddress> addresses = Removing(numbers);
    LARDER_CHECK(tier_.Forget(addresses).ok());
    removed_.insert(removed_.end(), numbers.begin(), numbers.end());
    Sync();
    LARDER_CHECK(tier_.Erase(addresses).ok());
  }
  void Sync() {
    LARDER_CHECK(tier_.SyncErasures().ok());
    for (const uint32_t number : removed_) {
      const bool put_again = locations_[number] != DiskLocation::kNone;
      if (!put_again) Hear(Book::kBlocks, Said::kRemoved, number, 0);
    }
    removed_.clear();
  }
  void PutFacts() {
    ++version_;
    std::vector<DiskTier::Fact> facts;
    std::vector<uint32_t> numbers;
    const bool forget = random_() % 3 == 0;
    const uint32_t from = Any(kFacts);
    for (uint32_t i = 0; i < kThreads * (1 + random_() % 3); i += kThreads) {
      const uint32_t number = (from + i) % kFacts;
      facts.push_back({FactKey(number), forget ? "" : FactValue(number, version_)});
      numbers.push_back(number);
      Hear(Book::kFacts, forget ? Said::kRemoving : Said::kStoring, number, version_);
    }
    LARDER_CHECK(tier_.PutFacts(facts).ok());
    for (const uint32_t number : numbers)
      Hear(Book::kFacts, forget ? Said::kRemoved : Said::kStored, number, version_);
  }

  FileDiskTier& tier_;
  Ledger& ledger_;
  const uint32_t first_;
  std::mt19937_64 random_;
  uint32_t version_;
  std::vector<DiskLocation> locations_ = std::vector<DiskLocation>(kBlocks, DiskLocation::kNone);
  std::vector<uint32_t> removed_;   // but not durably yet
  std::vector<DiskAddress> older_;  // records that lost their names to newer ones
};

void Run(const std::string& log_path, const std::string& directory, uint64_t seed, uint64_t steps,
         uint32_t version) {
  DiskLog log(log_path);
  Ledger ledger(&log);
  FileDiskTier::Options options;
  options.directory = directory;
  options.limit = kTierLimit;
  auto tier = FileDiskTier::Open(options);
  LARDER_CHECK(tier.ok());
  std::vector<Writer> writers;
  for (uint32_t i = 0; i < kThreads; ++i)
    writers.emplace_back(**tier, ledger, i, seed * kThreads + i, version);
  for (const DiskTier::Entry& entry : testing::RecoverAll(**tier)) {
    for (uint32_t number = 0; number < kBlocks; ++number) {
      if (entry.key == VersionedBlock::KeyOf(number))
        writers[number % kThreads].Found(number, entry.location);
    }
  }
  std::vector<std::thread> threads;
  for (Writer& writer : writers) {
    threads.emplace_back([&writer, steps] {
      for (uint64_t i = 0; i < steps; ++i) writer.Step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (seed % 2 == 0) _exit(0);
}

}  // namespace
}  // namespace larder::powercut

int main(int count, char** arguments) {
  if (count != 6) {
    std::fprintf(stderr, "tier_writer LOG DIRECTORY SEED STEPS FIRST-VERSION\n");
    return 2;
  }
  larder::powercut::Run(arguments[1], arguments[2], std::strtoull(arguments[3], nullptr, 10),
                        std::strtoull(arguments[4], nullptr, 10),
                        static_cast<uint32_t>(std::strtoul(arguments[5], nullptr, 10)));
  return 0;
}
