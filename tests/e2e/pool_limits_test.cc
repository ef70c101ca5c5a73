// Four engines fill the pool again and again, and at every sample the limit must hold exactly.
#include <csignal>
#include <cstdlib>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/support/child_engine.h"
#include "tests/e2e/support/daemon_process.h"
#include "tests/support/test_scale.h"

namespace larder::e2e {
namespace {

TEST(PoolLimits, TheLimitHoldsExactlyWhileThePoolIsFilledRepeatedly) {
  const double scale = testing::TestScale();
  DaemonProcess daemon({"--pool", "128MiB", "--slab", "16MiB"});
  ASSERT_TRUE(daemon.serves()) << daemon.errors();
  std::vector<std::unique_ptr<ChildEngine>> engines;
  for (const char* mode : {"mapped", "staged", "mapped", "stream"}) {
    engines.push_back(std::make_unique<ChildEngine>(daemon, mode, "fill", engines.size() + 1));
  }
  for (const auto& engine : engines) ASSERT_EQ(engine->Hear(), "ready");

  const double evicted_wanted = 20'000 * scale;  // blocks of half a MiB; dozens of times the pool
  uint64_t samples = 0, samples_full = 0;
  ASSERT_TRUE(Eventually(
      [&] {
        const v1::TenantStats t = daemon.Tenant();
        EXPECT_EQ(t.pool_limit(), uint64_t{128} << 20);
        EXPECT_EQ(t.pool_stored() + t.pool_reserved() + t.pool_free(), t.pool_limit())
            << t.ShortDebugString();
        EXPECT_LE(t.pool_leased(), t.pool_stored()) << t.ShortDebugString();
        ++samples;
        samples_full += t.pool_free() < t.pool_limit() / 10 ? 1 : 0;
        return ::testing::Test::HasFailure() ||
               daemon.Metric("larder_blocks_evicted_total{cause=\"demand\"}") +
                       daemon.Metric("larder_blocks_evicted_total{cause=\"watermark\"}") >
                   evicted_wanted;
      },
      std::chrono::seconds(240)));
  std::printf("%lu samples, %lu of them with less than a tenth free; never over the limit\n",
              samples, samples_full);
  EXPECT_GT(samples_full, samples / 2) << "the pool was not full, so this proves nothing";
  for (const auto& engine : engines) {
    engine->Signal(SIGTERM);
    EXPECT_EQ(engine->Wait(), 0);
  }
  EXPECT_TRUE(Eventually([&] { return daemon.Tenant().sessions() == 0; }));
  EXPECT_TRUE(Eventually([&] {
    return daemon.Tenant().reservations() == 0 && daemon.Tenant().leases() == 0;
  })) << daemon.Tenant().ShortDebugString();
  EXPECT_EQ(daemon.Terminate(), 0) << daemon.errors();
}

}  // namespace
}  // namespace larder::e2e
