// A daemon's disk that does not give at once what a former daemon left there.
#include "server/disk_work.h"

#include <gtest/gtest.h>

#include "storage/disk/memory_disk_tier.h"
#include "storage/look.h"
#include "tests/storage/store_fixture.h"

namespace larder {
namespace {

using testing::StoreFixture;
using std::chrono_literals::operator""s;

// So many times some of it cannot be read.
class LateTier final : public MemoryDiskTier {
 public:
  LateTier(Medium& medium, int failures) : MemoryDiskTier(MiB(64), medium), failures_(failures) {}

  absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                       absl::FunctionRef<bool()> stop) override {
    if (calls_++ < failures_) return absl::UnavailableError("shard 3 stays closed");
    return MemoryDiskTier::Recover(owner_of, stop);
  }
  [[nodiscard]] int calls() const { return calls_; }

 private:
  const int failures_;
  std::atomic<int> calls_{0};
};

class DiskWorkTest : public ::testing::Test {
 protected:
  void Start(int failures) {
    tier_.emplace(medium_, failures);
    work_.emplace(*tier_, f_.store(), clock_, 1, ByteCount(0),
                  [](SessionId, VariantIndex, std::span<const Digest>) {});
    work_->StartRecovery([this](const absl::Status& status, uint64_t, Duration) {
      MutexLock lock(mu_);
      heard_.push_back(status.code());
    });
  }
  std::vector<absl::StatusCode> heard() {
    MutexLock lock(mu_);
    return heard_;
  }
  static bool Eventually(const std::function<bool()>& condition) {
    return LookUntil(std::chrono::steady_clock::now() + 20s, condition);
  }

  MemoryDiskTier::Medium medium_;
  SteadyClock clock_;
  StoreFixture f_;
  Mutex mu_;
  std::vector<absl::StatusCode> heard_ LARDER_GUARDED_BY(mu_);
  std::optional<LateTier> tier_;
  std::optional<DiskWork> work_;
};

// An operator hears that something is lacking, and that it is no more; not of each time between.
TEST_F(DiskWorkTest, SaysOnceThatTheDiskStaysAwayAndOnceThatItIsBack) {
  Start(/*failures=*/3);
  EXPECT_TRUE(Eventually([&] { return heard().size() >= 2 && tier_->calls() == 4; }));
  EXPECT_EQ(heard(), (std::vector{absl::StatusCode::kUnavailable, absl::StatusCode::kOk}));
  EXPECT_FALSE(work_->recovering());
}

TEST_F(DiskWorkTest, SaysOnceWhatWentWell) {
  Start(/*failures=*/0);
  EXPECT_TRUE(Eventually([&] { return !work_->recovering(); }));
  work_.reset();
  EXPECT_EQ(heard(), std::vector{absl::StatusCode::kOk});
}

TEST_F(DiskWorkTest, EndsThoughTheDiskStaysAway) {
  Start(/*failures=*/1'000'000);
  EXPECT_TRUE(Eventually([&] { return tier_->calls() >= 2; }));
  work_.reset();
  EXPECT_EQ(heard(), std::vector{absl::StatusCode::kUnavailable});
}

}  // namespace
}  // namespace larder
