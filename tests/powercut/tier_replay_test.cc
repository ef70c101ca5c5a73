// The disk tier after a loss of power at any moment: a process drives the tier, everything that it
// does to its directory is recorded, and a directory is made of any prefix of the recording, in
// which what was not synced is lost, present, torn or out of order (disk_replay.h).  The tier that
// opens it must have what was promised.
//
// LARDER_TEST_SCALE (default 0.1) scales the 2,000 prefixes.  LARDER_TEST_SEED repeats the draws
// over equal logs, but two threads write a log, so logs differ.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/disk/file_disk_tier.h"
#include "tests/powercut/disk_replay.h"
#include "tests/powercut/memory_folder.h"
#include "tests/powercut/promises.h"
#include "tests/powercut/tier_writer.h"
#include "tests/powercut/versioned_block.h"
#include "tests/support/test_scale.h"

namespace larder::powercut {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPrefixes = 2'000;
constexpr uint64_t kPrefixesOfALife = 50;
constexpr uint64_t kSteps = 150;  // of each thread of a life
constexpr uint32_t kVersionsOfALife = 1'000'000;

// The verdicts of all prefixes.
struct Tally {
  uint64_t prefixes = 0, promised = 0, lost = 0, back = 0, wrong = 0, facts = 0, facts_wrong = 0,
           failed_starts = 0, set_aside = 0, damaged = 0, unsynced = 0;
};

class TierReplay : public ::testing::Test {
 protected:
  TierReplay() { fs::create_directory(root_); }

  // Runs a recorded tier_writer over root_.  Returns the recording.
  std::vector<DiskLog::Entry> Live(uint64_t life) {
    log_.reset();
    fs::remove(log_path_);
    const pid_t child = fork();
    LARDER_CHECK(child >= 0);
    if (child == 0) {
      setenv("LD_PRELOAD", LARDER_DISK_RECORDER, 1);
      setenv("POWERCUT_ROOT", root_.c_str(), 1);
      setenv("POWERCUT_LOG", log_path_.c_str(), 1);
      execl(LARDER_TIER_WRITER, LARDER_TIER_WRITER, log_path_.c_str(), Disk(root_).c_str(),
            absl::StrCat(seed_ + life).c_str(), absl::StrCat(kSteps).c_str(),
            absl::StrCat(life * kVersionsOfALife).c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    LARDER_CHECK(waitpid(child, &status, 0) == child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    log_.emplace(log_path_);
    return log_->Read();
  }

  static std::string Disk(const std::string& root) { return root + "/disk"; }

  // Checks whether the tier over `root` has what was promised.  `found` receives what it has.
  void Judge(const std::string& root, const Promises& promises, Promises* found) {
    ++tally_.prefixes;
    FileDiskTier::Options options;
    options.directory = Disk(root);
    options.limit = kTierLimit;
    warnings_.clear();
    options.warn = [this](const std::string& text) {
      MutexLock lock(warnings_mu_);
      absl::StrAppend(&warnings_, "\n  ", text);
    };
    auto tier = FileDiskTier::Open(options);
    if (!tier.ok()) {
      ++tally_.failed_starts;
      ADD_FAILURE() << "the tier does not start: " << tier.status();
      return;
    }
    JudgeBlocks(**tier, promises, found);
    JudgeFacts(**tier, promises, found);
    const DiskTier::Stats stats = (*tier)->stats();
    tally_.set_aside += stats.shards_set_aside;
    EXPECT_EQ(stats.shards_set_aside + stats.shards_failed, 0u) << "the tier warned:" << warnings_;
  }

  void JudgeBlocks(FileDiskTier& tier, const Promises& promises, Promises* found) {
    std::map<Digest, DiskLocation> there;
    for (const DiskTier::Entry& entry : testing::RecoverFirsts(tier))
      there[entry.key.digest] = entry.location;
    for (uint32_t number = 0; number < kBlocks; ++number) {
      const Promise& promise =
          number < promises.blocks.size() ? promises.blocks[number] : Promise();
      const auto at = there.find(VersionedBlock::KeyOf(number).digest);
      const std::optional<uint32_t> version =
          at == there.end() ? std::nullopt : VersionAt(tier, number, at->second);
      tally_.promised += promise.may_be_missing() ? 0 : 1;
      Count(promise.Judge(version),
            absl::StrCat("block ", number, " version ", version ? absl::StrCat(*version) : "none"));
      found->Hear(
          {Book::kBlocks, version ? Said::kStored : Said::kRemoved, number, version.value_or(0)});
    }
  }

  static void EraseDurably(FileDiskTier& tier, uint32_t number, DiskLocation location) {
    const DiskAddress address{VersionedBlock::KeyOf(number), location};
    LARDER_CHECK(tier.Erase({&address, 1}).ok() && tier.SyncErasures().ok());
  }

  // Returns nullopt if the tier returns no block, which is then erased, and 0 if the bytes are
  // those of no version.
  std::optional<uint32_t> VersionAt(FileDiskTier& tier, uint32_t number, DiskLocation location) {
    const DiskAddress address{VersionedBlock::KeyOf(number), location};
    const auto description = testing::DescribeOne(tier, address);
    if (description) {
      const uint32_t version = VersionedBlock::VersionOf(*description);
      const SegmentTable& table = description->header.table;
      const SegmentRange all{0, static_cast<uint32_t>(table.segments.size()), 0,
                             table.PayloadBytes().value()};
      const testing::Got got = testing::GetRange(tier, address, description->header, all);
      if (got.status == DiskTier::GetStatus::kOk)
        return VersionedBlock(number, version).Is(*description, got.bytes) ? version : 0;
    }
    ++tally_.damaged;
    EraseDurably(tier, number, location);
    return std::nullopt;
  }

  void JudgeFacts(FileDiskTier& tier, const Promises& promises, Promises* found) {
    std::map<std::string, std::string> there;
    tier.ForEachFact([&](const std::string& key, const std::string& value) { there[key] = value; });
    for (uint32_t number = 0; number < kFacts; ++number) {
      const Promise& promise = number < promises.facts.size() ? promises.facts[number] : Promise();
      const auto at = there.find(FactKey(number));
      std::optional<uint32_t> version;
      if (at != there.end()) {
        uint32_t said = 0, of = 0;
        (void)std::sscanf(at->second.c_str(), "%u %u", &of, &said);
        version = at->second == FactValue(number, said) ? said : 0;
      }
      ++tally_.facts;
      const Verdict verdict = promise.Judge(version);
      tally_.facts_wrong += verdict == Verdict::kRight ? 0 : 1;
      EXPECT_EQ(verdict, Verdict::kRight)
          << "fact " << number << " version " << version.value_or(0);
      found->Hear(
          {Book::kFacts, version ? Said::kStored : Said::kRemoved, number, version.value_or(0)});
    }
  }

  void Count(Verdict verdict, const std::string& what) {
    tally_.lost += verdict == Verdict::kLost ? 1 : 0;
    tally_.back += verdict == Verdict::kBack ? 1 : 0;
    tally_.wrong += verdict == Verdict::kWrong ? 1 : 0;
    if (verdict != Verdict::kRight && ++told_ <= 20)
      ADD_FAILURE() << what << " is " << ToString(verdict);
  }

  // Half of the prefixes end right behind a mark, because the latest promise is the most likely to
  // be broken.
  std::set<size_t> Draw(const std::vector<DiskLog::Entry>& log, uint64_t count) {
    std::vector<size_t> marks;
    for (size_t i = 0; i < log.size(); ++i) {
      if (log[i].op == DiskOp::kMark) marks.push_back(i);
    }
    std::set<size_t> lengths;
    while (lengths.size() < std::min<uint64_t>(count, log.size())) {
      const bool at_mark = random_() % 2 == 0 && !marks.empty();
      lengths.insert(at_mark ? marks[random_() % marks.size()] + 1 : random_() % log.size() + 1);
    }
    return lengths;
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  MemoryFolder folder_;
  const std::string root_ = folder_.path() + "/root", log_path_ = folder_.path() + "/log",
                    replayed_ = folder_.path() + "/replayed";
  std::optional<DiskLog> log_;
  Mutex warnings_mu_;
  std::string warnings_;  // of the tier that was opened last
  Tally tally_;
  int told_ = 0;
};

// Returns the contents of all files, by name.
std::map<std::string, std::string> Contents(const std::string& root) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    std::string& bytes = contents[fs::relative(entry.path(), root)];
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  return contents;
}

TEST_F(TierReplay, AReplayWithoutLossEqualsTheDirectory) {
  for (uint64_t life = 0; life < 2; ++life) {
    DiskReplay replay(root_);
    const std::vector<DiskLog::Entry> log = Live(life);
    ASSERT_GT(log.size(), 100u);
    for (const DiskLog::Entry& entry : log) replay.Apply(entry);
    fs::remove_all(replayed_);
    replay.WriteTo(replayed_, random_, DiskReplay::Loss::kNothing);
    const auto real = Contents(root_), made = Contents(replayed_);
    for (const auto& [name, bytes] : real) {
      ASSERT_TRUE(made.contains(name)) << name;
      EXPECT_TRUE(bytes == made.at(name))
          << name << ": " << bytes.size() << " bytes, not " << made.at(name).size();
    }
    EXPECT_EQ(real.size(), made.size());
  }
}

TEST_F(TierReplay, AnyPrefixKeepsWhatWasPromised) {
  const uint64_t prefixes = testing::Scaled(kPrefixes);
  Promises before;
  for (uint64_t life = 0; tally_.prefixes < prefixes && told_ == 0; ++life) {
    SCOPED_TRACE(absl::StrCat("life ", life));
    DiskReplay replay(root_);
    const std::vector<DiskLog::Entry> log = Live(life);
    const std::set<size_t> lengths =
        Draw(log, std::min(kPrefixesOfALife, prefixes - tally_.prefixes));
    Promises promises = before, found;
    for (size_t i = 0; i < log.size(); ++i) {
      replay.Apply(log[i]);
      promises.Hear(log[i]);
      if (!lengths.contains(i + 1)) continue;
      SCOPED_TRACE(absl::StrCat("prefix ", i + 1, " of ", log.size()));
      tally_.unsynced += replay.unsynced();
      fs::remove_all(replayed_);
      replay.WriteTo(replayed_, random_, DiskReplay::Loss::kDrawn);
      found = {};
      Judge(replayed_, promises, &found);
    }
    // The next life runs over what the last one left, or over an empty directory.
    fs::remove_all(root_);
    before = {};
    if (life % 4 == 3) {
      fs::create_directory(root_);
    } else {
      fs::rename(replayed_, root_);
      before = found;
    }
    if (HasFailure()) break;
  }
  std::printf(
      "%lu prefixes with %lu changes not synced: %lu durable blocks, %lu lost, %lu back, %lu "
      "wrong; %lu facts, %lu wrong; %lu failed starts, %lu shards set aside; not promised: %lu "
      "damaged\n",
      tally_.prefixes, tally_.unsynced, tally_.promised, tally_.lost, tally_.back, tally_.wrong,
      tally_.facts, tally_.facts_wrong, tally_.failed_starts, tally_.set_aside, tally_.damaged);
}

}  // namespace
}  // namespace larder::powercut
