// A daemon's disk that does not give at once what a former daemon left there.
#include "server/disk_work.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

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
    for (const Entry& entry : told) owner_of(entry);
    return MemoryDiskTier::Recover(owner_of, stop);
  }
  [[nodiscard]] int calls() const { return calls_; }

  std::vector<Entry> told;  // set before the first call

 private:
  const int failures_;
  std::atomic<int> calls_{0};
};

class DiskWorkTest : public ::testing::Test {
 protected:
  void Start(int failures, std::vector<DiskTier::Entry> told = {}) {
    tier_.emplace(medium_, failures);
    tier_->told = std::move(told);
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

// A disk tells of blocks in its own order, so of children before their parents.
TEST_F(DiskWorkTest, WhenItHasHeardAllItKnowsWhatFollowsWhat) {
  Digest variant, first, second;
  first.bytes.fill(std::byte{1});
  second.bytes.fill(std::byte{2});
  const auto entry = [&](const Digest& digest, const Digest& parent, uint64_t location) {
    return DiskTier::Entry{.key = {.variant = variant, .digest = digest},
                           .location = DiskLocation{location},
                           .parent = parent,
                           .payload_bytes = KiB(4),
                           .raw_pages = 1,
                           .disk_bytes = KiB(8)};
  };
  Start(/*failures=*/0, {entry(second, first, 1), entry(first, Digest{}, 2)});
  ASSERT_TRUE(Eventually([&] { return !work_->recovering(); }));
  std::map<Digest, uint32_t> children;
  f_.store().index().ForEach(
      [&](const BlockIndex::View& view) { children[view.digest] = view.children; });
  EXPECT_EQ(children, (std::map<Digest, uint32_t>{{first, 1}, {second, 0}}));
}

TEST_F(DiskWorkTest, EndsThoughTheDiskStaysAway) {
  Start(/*failures=*/1'000'000);
  EXPECT_TRUE(Eventually([&] { return tier_->calls() >= 2; }));
  work_.reset();
  EXPECT_EQ(heard(), std::vector{absl::StatusCode::kUnavailable});
}

}  // namespace
}  // namespace larder
