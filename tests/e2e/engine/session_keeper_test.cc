// Keeps an engine attached to a real daemon that comes, goes, hangs and drains.
#include "client/engine/session_keeper.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "gtest/gtest.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/test_blocks.h"
#include "tests/support/eventually.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How soon a keeper notices that its daemon is gone.  A short run shares its machine.
const seconds kLossSeenMax{testing::TestScale() >= 1 ? 2 : 30};

class SessionKeeperTest : public ::testing::Test {
 protected:
  void Start() {
    daemon_.reset();
    daemon_ = std::make_unique<DaemonProcess>(std::vector<std::string>{"--pool", "64MiB"},
                                              DaemonProcess::Options{.folder = folder_});
    ASSERT_TRUE(daemon_->serves()) << daemon_->errors();
  }
  void Keep() {
    SessionKeeper::Options options;
    options.client = {.socket_dir = folder_->path(), .connect_deadline = milliseconds(500)};
    options.session.engine_id = "kept";
    options.contents = {maker_.content};
    options.variants = {maker_.variant};
    options.backoff_min = milliseconds(10);
    options.backoff_max = milliseconds(100);
    options.look_every = milliseconds(20);
    options.probe_every = milliseconds(50);
    options.probe_deadline = milliseconds(200);
    options.prepare = [this](SessionKeeper::Live&) {
      ++prepared_;
      return absl::OkStatus();
    };
    options.on_change = [this](const absl::Status&) { ++changes_; };
    keeper_.emplace(std::move(options));
  }
  // Stores a block in the session that serves.
  absl::Status Put(milliseconds deadline = seconds(10)) {
    const std::shared_ptr<SessionKeeper::Live> live = keeper_->Get();
    if (live == nullptr) return absl::UnavailableError("not now");
    const FilledBlock block(maker_, maker_.Block(number_++), 1 << 12);
    const PutBlock put = block.ToPut();
    const absl::Status status =
        live->session->Put(live->variants.at(0), {&put, 1}, {.deadline = deadline}).status();
    keeper_->Note(*live, status);
    return status;
  }
  // Expects that Get answers at once that there is nothing.
  void ExpectNotNow() {
    for (int i = 0; i < 1'000; ++i) ASSERT_EQ(keeper_->Get(), nullptr);
    EXPECT_FALSE(keeper_->status().ok());
  }

  const std::shared_ptr<TemporarySocketDirectory> folder_ =
      std::make_shared<TemporarySocketDirectory>();
  BlockMaker maker_;
  uint32_t number_ = 0;
  std::atomic<int> prepared_ = 0, changes_ = 0;
  std::unique_ptr<DaemonProcess> daemon_;
  std::optional<SessionKeeper> keeper_;
};

TEST_F(SessionKeeperTest, AttachesWhenTheDaemonComesAndAgainAfterItWasKilled) {
  Keep();
  EXPECT_TRUE(absl::IsUnavailable(keeper_->WaitServing(milliseconds(200))));
  ExpectNotNow();
  for (int life = 1; life <= 3; ++life) {
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_TRUE(keeper_->WaitServing(seconds(10)).ok()) << keeper_->status();
    EXPECT_EQ(prepared_, life);
    const std::shared_ptr<SessionKeeper::Live> live = keeper_->Get();
    ASSERT_NE(live, nullptr);
    EXPECT_EQ(live->session->write_mode(), WriteMode::kMapped)
        << live->session->write_mode_reason();
    EXPECT_EQ(live->session->read_mode(), wire::ReadMode::kMapped);
    EXPECT_TRUE(Put().ok());
    daemon_->Kill9();
    (void)Put();
    EXPECT_TRUE(Eventually([&] { return keeper_->Get() == nullptr; }, kLossSeenMax));
    ExpectNotNow();
  }
  EXPECT_EQ(keeper_->stats().attached, 3u);
  EXPECT_GE(changes_, 6);
}

// Two calls, of Get and of status, may tell of two moments: that no session serves, and that one
// does.
TEST_F(SessionKeeperTest, TellsASessionOrWhyThereIsNoneWhileSessionsComeAndGo) {
  Keep();
  std::atomic<uint64_t> served = 0, refused = 0, neither = 0;
  std::jthread asks([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const auto live = keeper_->Serving();
      if (live.ok() && *live == nullptr) ++neither;
      ++(live.ok() ? served : refused);
    }
  });
  for (int life = 0; life < 10; ++life) {
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_TRUE(keeper_->WaitServing(seconds(10)).ok()) << keeper_->status();
    daemon_->Kill9();
    EXPECT_TRUE(Eventually([&] { return keeper_->Get() == nullptr; }, kLossSeenMax));
  }
  asks.request_stop();
  asks.join();
  EXPECT_EQ(neither, 0u);
  EXPECT_GT(served, 0u);
  EXPECT_GT(refused, 0u);
}

TEST_F(SessionKeeperTest, LeavesADaemonThatDrains) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Keep();
  ASSERT_TRUE(keeper_->WaitServing(seconds(10)).ok());
  EXPECT_EQ(daemon_->Terminate(), 0) << "the keeper ended its session";
  ExpectNotNow();
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_TRUE(keeper_->WaitServing(seconds(10)).ok());
}

TEST_F(SessionKeeperTest, ADaemonThatHangsIsAskedInTheBackgroundOnly) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Keep();
  ASSERT_TRUE(keeper_->WaitServing(seconds(10)).ok());
  ASSERT_TRUE(Put().ok());
  daemon_->Signal(SIGSTOP);
  int timeouts = 0;
  while (keeper_->Get() != nullptr && timeouts < 100) {
    if (absl::IsDeadlineExceeded(Put(milliseconds(20)))) ++timeouts;
  }
  EXPECT_GE(timeouts, 3);
  EXPECT_LT(timeouts, 100);
  ExpectNotNow();
  EXPECT_TRUE(keeper_->stats().breaker_open);
  daemon_->Signal(SIGCONT);
  ASSERT_TRUE(keeper_->WaitServing(seconds(10)).ok()) << keeper_->status();
  EXPECT_TRUE(Put().ok());
  EXPECT_EQ(keeper_->stats().attached, 1u) << "the session was kept";
  EXPECT_EQ(keeper_->stats().breaker_opened, 1u);
  EXPECT_FALSE(keeper_->stats().breaker_open);
}

TEST_F(SessionKeeperTest, EndsWithoutADaemon) {
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    Keep();
    keeper_.reset();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, seconds(20));
}

}  // namespace
}  // namespace larder::e2e
