// The end of a daemon with a disk, by SIGTERM or kill -9 at any time, and the blocks that the next
// daemon finds.
#include <atomic>
#include <deque>

#include "tests/e2e/support/disk_fixture.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using ::testing::HasSubstr;

// ---- SIGTERM

TEST_F(DiskTest, ADrainWaitsUntilAllBlocksAreOnDisk) {
  constexpr uint32_t kBlocks = 24;
  ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", "data.write=sleep:6s", "--drain-limit", "50s"}));
  ASSERT_NO_FATAL_FAILURE(PutWaiting(kBlocks));
  EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  EXPECT_EQ(OnDisk(), kBlocks);
  EXPECT_EQ(CountHits(0, kBlocks), kBlocks);
}

TEST_F(DiskTest, ADrainEndsAtItsLimitWithBlocksNotOnDisk) {
  constexpr uint32_t kBlocks = 24;
  ASSERT_NO_FATAL_FAILURE(
      Start({"--fault-points", "data.write=sleep:6s", "--drain-limit", "100ms"}));
  ASSERT_NO_FATAL_FAILURE(PutWaiting(kBlocks));
  EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
  EXPECT_THAT(daemon_->errors(), HasSubstr("not_spilled"));
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Eventually([&] { return Recovered(); }));
  EXPECT_EQ(static_cast<double>(CountHits(0, kBlocks)), OnDisk())
      << "not every block on disk is a hit";
}

TEST_F(DiskTest, TerminatesDuringRecoveryWithoutLosingBlocks) {
  constexpr uint32_t kDurable = 64;
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(PutDurable(kDurable));
  uint32_t all = kDurable;
  for (const bool publishes : {false, true}) {
    SCOPED_TRACE(publishes);
    daemon_->Kill9();
    // Recovery takes at least ten seconds, so that it still runs below, however slow the machine
    // is.
    ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", "catalog.scan=sleep:200ms"}));
    for (uint32_t i = 0; publishes && i < 8; ++i) ASSERT_EQ(Put(all++), BlockStatus::kOk);
    ASSERT_TRUE(Recovering());
    EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
    EXPECT_FALSE(Recovering() || Recovered()) << "a daemon that has ended answered";
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_TRUE(Eventually([&] { return Recovered(); }));
    EXPECT_EQ(OnDisk(), all);
    EXPECT_EQ(CountHits(0, all), all);
  }
}

TEST_F(DiskTest, ADrainWaitsForReadsThatAreUnderWay) {
  constexpr uint32_t kBlocks = 32;
  std::vector<Digest> digests;
  ASSERT_NO_FATAL_FAILURE(StartWithOnDisk(kBlocks, "data.read=sleep:100ms", &digests));
  std::thread reader([&] {
    const auto lease = session_->Acquire(variant_, digests, {.deadline = std::chrono::seconds(30)});
    ASSERT_TRUE(lease.ok()) << lease.status();
    for (size_t i = 0; i < kBlocks; ++i) EXPECT_EQ(lease->status(i), BlockStatus::kOk) << i;
  });
  EXPECT_TRUE(Eventually([&] { return Promoting() > 0; }));
  EXPECT_EQ(daemon_->Terminate(), 0) << daemon_->errors();
  reader.join();
}

// ---- kill -9

// Kills the daemon at random while blocks are written and read, also before it has recovered the
// blocks of the previous daemon.  Every block that a daemon reported as durable must be there.
class DiskKillTest : public DiskTest {
 protected:
  static constexpr uint32_t kNumbers = 800;  // all of them fit the disk

  [[nodiscard]] bool SaysOnDisk(uint32_t number) {
    const auto found = client_->Lookup(QueryOf(number));
    if (!found.ok() || found->instances.empty()) return false;
    const std::vector<wire::TierHit>& tiers = found->instances[0].tiers;
    return std::any_of(tiers.begin(), tiers.end(), [](const wire::TierHit& hit) {
      return hit.tier == Tier::kDisk && hit.contiguous > TokenCount(0);
    });
  }
  // Whether the daemon ended during the call, which is the only reason for a cancelled call here.
  bool WentMeanwhile(const absl::StatusOr<BlockStatus>& status) {
    if (!status.ok()) return true;
    if (*status != BlockStatus::kCancelled) return false;
    EXPECT_FALSE(client_->Lookup(QueryOf(0)).ok()) << "a live daemon cancelled the call";
    return true;
  }
  // Puts the next block, asks which of the waiting blocks are durable by now, and reads one durable
  // block.  Returns false if the daemon has ended.
  bool Work(std::mt19937& random, bool recovering) {
    const absl::StatusOr<BlockStatus> put = TryPut(next_);
    if (WentMeanwhile(put)) return false;
    EXPECT_TRUE(IsKept(*put)) << ToString(*put);
    waiting_.push_back(next_);
    next_ = (next_ + 1) % kNumbers;
    for (size_t i = std::min<size_t>(waiting_.size(), 4); i > 0; --i) {
      const uint32_t oldest = waiting_.front();
      waiting_.pop_front();
      if (!SaysOnDisk(oldest)) {
        waiting_.push_back(oldest);
      } else if (std::find(durable_.begin(), durable_.end(), oldest) == durable_.end()) {
        durable_.push_back(oldest);
      }
    }
    if (durable_.empty()) return true;
    const absl::StatusOr<BlockStatus> got = TryGet(durable_[random() % durable_.size()]);
    if (WentMeanwhile(got)) return false;
    EXPECT_TRUE(*got == BlockStatus::kOk || (recovering && *got == BlockStatus::kMissing))
        << ToString(*got);
    return true;
  }
  void ExpectDurableThere() {
    ASSERT_TRUE(Eventually([&] { return Recovered(); }));
    for (const uint32_t number : durable_)
      ASSERT_EQ(Get(number), BlockStatus::kOk) << number << " was durable";
  }

  uint32_t next_ = 0;
  std::deque<uint32_t> waiting_;  // published and not known to be durable
  std::vector<uint32_t> durable_;
};

TEST_F(DiskKillTest, DurableBlocksSurviveKill9AtRandomMoments) {
  std::mt19937 random(testing::TestSeed());
  const uint64_t kills = testing::Scaled(100);
  uint64_t recovering_kills = 0;
  for (uint64_t i = 0; i < kills; ++i) {
    SCOPED_TRACE(absl::StrCat("kill ", i));
    const bool early = i % 3 == 2;
    ASSERT_NO_FATAL_FAILURE(Start({"--fault-points", early ? "catalog.scan=sleep:50ms" : ""}));
    if (!early) {
      ASSERT_NO_FATAL_FAILURE(ExpectDurableThere());
    }
    waiting_.clear();
    // A third of the daemons are killed once a block of theirs is durable, or more blocks than
    // there are kills, a sixth once they have said whether they recover, and the others at any
    // moment.
    const size_t durable_before = durable_.size();
    std::atomic<bool> may_be_killed = i % 3 == 1 || (early && i % 2 == 1);
    std::thread killer([&, after = std::chrono::microseconds(random() % 150'000)] {
      EXPECT_TRUE(Eventually([&] { return may_be_killed.load(); }));
      std::this_thread::sleep_for(after);
      kill(daemon_->pid(), SIGKILL);
    });
    // The daemon's last answer counts.  One that was killed before the first question counts as
    // neither.
    bool recovered = !early, recovering = false;
    while (Work(random, /*recovering=*/!recovered)) {
      recovered = recovered || Recovered();
      recovering = !recovered && (recovering || Recovering());
      const bool durable = durable_.size() > std::min<size_t>(durable_before, kills);
      if (early ? recovering || recovered : durable) may_be_killed = true;
    }
    recovering_kills += recovering ? 1 : 0;
    killer.join();
    ASSERT_TRUE(daemon_->Wait().has_value());
  }
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(ExpectDurableThere());
  EXPECT_EQ(static_cast<double>(CountHits(0, kNumbers)), OnDisk())
      << "not every block on disk is a hit";
  EXPECT_GT(durable_.size(), kills);
  EXPECT_GT(recovering_kills, 0u);
  std::printf("%lu kills, %lu of them during recovery; %zu blocks were durable\n", kills,
              recovering_kills, durable_.size());
}

}  // namespace
}  // namespace larder::e2e
