// Engines with a paged KV cache on a device, restored through a running daemon, every byte checked;
// killed at any moment.  On the host device; LARDER_TEST_DEVICE=cuda: on a GPU.
//
// LARDER_TEST_SCALE (default 0.1) of 200 kills; LARDER_TEST_SEED replays a run.
#include <deque>
#include <random>
#include <thread>

#include "gtest/gtest.h"
#include "tests/e2e/child_engine.h"
#include "tests/e2e/daemon_process.h"
#include "tests/e2e/nothing_left.h"
#include "tests/test_scale.h"

namespace larder::e2e {
namespace {

constexpr int kLayouts = 8 * 3;  // kinds of caches, and sizes of their pages

TEST(PagedCacheTest, EveryLayoutInEveryMode) {
  DaemonProcess daemon({"--pool", "64MiB", "--slab", "16MiB", "--check-one-in", "1"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  for (const char* mode : {"mapped", "staged", "stream"}) {
    for (uint32_t layout = 0; layout < kLayouts; ++layout) {
      ChildEngine engine(daemon, mode, "once", layout, PAGED_ENGINE_PATH);
      EXPECT_EQ(engine.Hear(), "done 96") << mode << ", layout " << layout;
      EXPECT_EQ(engine.Wait(), 0) << mode << ", layout " << layout;
    }
  }
  EXPECT_EQ(daemon.Metric("larder_blocks_damaged_total{tier=\"host\"}"), 0);
}

TEST(PagedCacheTest, EnginesThatAreKilledLeaveNothing) {
  DaemonProcess daemon({"--pool", "64MiB", "--slab", "16MiB", "--check-one-in", "1"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  ChildEngine(daemon, "mapped", "once", 0, PAGED_ENGINE_PATH).Wait();
  const size_t descriptors = SettledDescriptors(daemon);

  std::mt19937 random(testing::TestSeed());
  const uint64_t kills = testing::Scaled(200);
  std::deque<std::unique_ptr<ChildEngine>> live;
  for (uint64_t i = 0; i < kills || !live.empty(); ++i) {
    if (i < kills)
      live.push_back(std::make_unique<ChildEngine>(
          daemon, random() % 3 == 0 ? "staged" : "mapped", "churn",
          static_cast<uint32_t>(random() % 100'000), PAGED_ENGINE_PATH));
    if (i < 2 && i + 1 < kills) continue;  // three at a time
    ASSERT_EQ(live.front()->Hear(), "ready");
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % 50'000));  // anywhere in its work
    (void)live.front()->KillAndProve();
    EXPECT_EQ(live.front()->Wait(), 128 + SIGKILL)
        << "it ended by itself: wrong bytes, or a call that failed";
    live.pop_front();
  }
  EXPECT_EQ(daemon.Metric("larder_blocks_damaged_total{tier=\"host\"}"), 0);
  ExpectNothingLeft(daemon, descriptors);
}

}  // namespace
}  // namespace larder::e2e
