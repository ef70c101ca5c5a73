// The first signal requests an orderly end, the second ends the process at once, a hangup does
// neither, and the watchdog gets its pulses.
#include "server/runtime/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <future>

namespace larder {
namespace {

TEST(SignalThreadTest, FirstSignalCallsOnEnd) {
  BlockSignals();
  std::promise<int> ended;
  std::promise<void> hung_up;
  const auto signals = SignalThread::Start({.on_end = [&](int signal) { ended.set_value(signal); },
                                            .on_hangup = [&] { hung_up.set_value(); },
                                            .on_pulse = {},
                                            .pulse = std::nullopt});
  ASSERT_TRUE(signals.ok()) << signals.status();
  kill(getpid(), SIGHUP);
  hung_up.get_future().wait();
  kill(getpid(), SIGTERM);
  EXPECT_EQ(ended.get_future().get(), SIGTERM);
}

TEST(SignalThreadTest, PulsesWithoutSignals) {
  BlockSignals();
  std::promise<void> twice;
  int pulses = 0;
  const auto signals = SignalThread::Start({.on_end = [](int) {},
                                            .on_hangup = [] {},
                                            .on_pulse =
                                                [&] {
                                                  if (++pulses == 2) twice.set_value();
                                                },
                                            .pulse = std::chrono::milliseconds(1)});
  ASSERT_TRUE(signals.ok()) << signals.status();
  twice.get_future().wait();
}

TEST(SignalThreadDeathTest, SecondSignalEndsAtOnce) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        BlockSignals();
        std::promise<void> first;
        const auto signals = SignalThread::Start({.on_end = [&](int) { first.set_value(); },
                                                  .on_hangup = [] {},
                                                  .on_pulse = {},
                                                  .pulse = std::nullopt,
                                                  .second_signal_exit_code = 7});
        kill(getpid(), SIGINT);
        first.get_future().wait();
        kill(getpid(), SIGTERM);
        while (true) pause();
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace larder
