// The real daemon after a loss of power, without root.  Everything that a daemon does to its disk
// is recorded, and a disk is made of any prefix of the recording, in which what was not synced is
// lost, present, torn or out of order (disk_replay.h). The next daemon over it must have what was
// promised before.
//
// tier_replay_test.cc does this with the disk tier alone, ten times as often.  This test is about
// what the daemon tells its clients: blocks reported durable, pins and Clears answered OK.
// LARDER_TEST_SCALE (default 0.1) scales the 200 prefixes.  LARDER_TEST_SEED repeats the draws, but
// not the timing.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/powercut/disk_replay.h"
#include "tests/powercut/memory_folder.h"
#include "tests/powercut/promise_engine.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::powercut {
namespace {

namespace fs = std::filesystem;
using e2e::DaemonProcess;

constexpr uint64_t kPrefixes = 200;
constexpr uint64_t kPrefixesOfALife = 10;
constexpr uint64_t kHeard = 400;  // requests and promises of one life
constexpr uint32_t kVersionsOfALife = 1'000'000;

class DaemonReplay : public ::testing::Test {
 protected:
  // Runs a recorded daemon over root_, with engines that log a mark for each promise of the daemon.
  void Live(uint64_t life) {
    log_.reset();
    fs::remove(log_path_);
    log_.emplace(log_path_);
    DaemonProcess daemon(FlagsFor(root_ + "/disk"), {.in_child = [this] {
                           setenv("LD_PRELOAD", LARDER_DISK_RECORDER, 1);
                           setenv("POWERCUT_ROOT", root_.c_str(), 1);
                           setenv("POWERCUT_LOG", log_path_.c_str(), 1);
                         }});
    ASSERT_TRUE(daemon.serves()) << daemon.errors();
    Ledger ledger(&*log_);
    PromiseEngine engine(daemon, ledger, seed_ + life,
                         static_cast<uint32_t>(life) * kVersionsOfALife, found_);
    EXPECT_TRUE(Eventually([&] { return ledger.heard() >= kHeard || !engine.failures().empty(); }));
    for (const std::string& failure : engine.failures()) ADD_FAILURE() << failure;
    engine.StopSoon();
    daemon.Kill9();
  }

  // Draws prefixes that end right behind a mark, where it is decided whether a promise was kept.
  std::set<size_t> Draw(const std::vector<DiskLog::Entry>& log, uint64_t count) {
    std::vector<size_t> marks;
    for (size_t i = 0; i < log.size(); ++i) {
      if (log[i].op == DiskOp::kMark) marks.push_back(i);
    }
    std::set<size_t> lengths;
    while (lengths.size() < std::min<uint64_t>(count, marks.size()))
      lengths.insert(marks[random_() % marks.size()] + 1);
    return lengths;
  }

  void Replay(uint64_t life, uint64_t prefixes) {
    DiskReplay replay(root_);
    ASSERT_NO_FATAL_FAILURE(Live(life));
    const std::vector<DiskLog::Entry> log = log_->Read();
    const std::set<size_t> lengths = Draw(log, prefixes);
    Ledger told;
    Tell(found_, &told);
    Promises promises = told.At([] {});
    for (size_t i = 0; i < log.size(); ++i) {
      replay.Apply(log[i]);
      promises.Hear(log[i]);
      if (!lengths.contains(i + 1)) continue;
      SCOPED_TRACE(absl::StrCat("life ", life, ", prefix ", i + 1, " of ", log.size()));
      unsynced_ += replay.unsynced();
      fs::remove_all(replayed_);
      replay.WriteTo(replayed_, random_, DiskReplay::Loss::kDrawn);
      found_ = StartAndJudge(replayed_ + "/disk", promises, &tally_);
    }
    fs::remove_all(root_);
    fs::rename(replayed_, root_);
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  MemoryFolder folder_;
  const std::string root_ = folder_.path() + "/root", log_path_ = folder_.path() + "/log",
                    replayed_ = folder_.path() + "/replayed";
  std::optional<DiskLog> log_;
  Found found_;
  Tally tally_;
  uint64_t unsynced_ = 0;
};

TEST_F(DaemonReplay, AnyPrefixKeepsWhatWasPromised) {
  fs::create_directory(root_);
  const uint64_t prefixes = testing::Scaled(kPrefixes);
  for (uint64_t life = 0; tally_.looks < prefixes && !HasFailure(); ++life)
    ASSERT_NO_FATAL_FAILURE(Replay(life, std::min(kPrefixesOfALife, prefixes - tally_.looks)));
  Print("prefixes", tally_);
  std::printf("%lu changes were not synced\n", unsynced_);
  // Otherwise there was little to keep, or nothing to lose.
  EXPECT_GT(tally_.promised, 10 * tally_.looks);
  EXPECT_GT(unsynced_, 0u);
}

}  // namespace
}  // namespace larder::powercut
