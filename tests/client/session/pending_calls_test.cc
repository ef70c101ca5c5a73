// Callers that read the stream themselves, over a pump that the test feeds.
#include "client/session/pending_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>

namespace larder {
namespace {

using std::chrono::milliseconds;

TimePoint In(milliseconds time) { return std::chrono::steady_clock::now() + time; }

// Hands over what the test pushes, one message per call of Pump.
class FedPump final : public MessagePump {
 public:
  explicit FedPump(PendingCalls& calls) : calls_(calls) {}

  void Push(uint64_t id) {
    MutexLock lock(mu_);
    messages_.push_back(id);
    changed_.NotifyAll();
  }
  // Makes each Pump from now on take at least this long for a message.
  void ReadFor(std::chrono::microseconds time) { reading_ = time; }
  [[nodiscard]] uint64_t arrivals() const override { return arrivals_.load(); }
  void Pump(uint64_t seen, TimePoint /*look_until*/, TimePoint deadline) override {
    EXPECT_EQ(inside_.fetch_add(1), 0) << "two threads pump at once";
    uint64_t id = 0;
    {
      MutexLock lock(mu_);
      while (messages_.empty() && !woken_ && arrivals_.load() == seen) {
        if (!changed_.WaitUntil(mu_, deadline)) break;
      }
      if (!messages_.empty()) {
        id = messages_.front();
        messages_.pop_front();
      }
    }
    if (id != 0) {
      std::this_thread::sleep_for(reading_);
      calls_.Deliver(id, wire::Published{.id = id, .status = {}, .message = {}});
      ++arrivals_;
    }
    --inside_;
  }
  void Wake() override {
    MutexLock lock(mu_);
    woken_ = true;
    changed_.NotifyAll();
  }

 private:
  PendingCalls& calls_;
  std::atomic<uint64_t> arrivals_{0};
  std::atomic<int> inside_{0};
  std::chrono::microseconds reading_{0};
  Mutex mu_;
  CondVar changed_;
  bool woken_ LARDER_GUARDED_BY(mu_) = false;
  std::deque<uint64_t> messages_ LARDER_GUARDED_BY(mu_);
};

class PendingCallsTest : public ::testing::Test {
 protected:
  void SetUp() override { calls_.StartPump(&pump_); }
  void TearDown() override {
    calls_.FailAll(absl::UnavailableError("over"));
    if (idle_.joinable()) idle_.join();
    calls_.StopPump();
  }
  void StartIdleThread() {
    idle_ = std::thread([this] {
      while (const auto next = calls_.PumpIfIdle(std::chrono::steady_clock::now())) {
        std::this_thread::sleep_until(*next);
      }
    });
  }

  std::atomic<int> unclaimed_{0};
  PendingCalls calls_{[this](const Answer& /*answer*/) { ++unclaimed_; }};
  FedPump pump_{calls_};
  std::thread idle_;
};

TEST_F(PendingCallsTest, EachOfManyCallersGetsItsAnswer) {
  constexpr int kCallers = 4, kCalls = 500;
  StartIdleThread();
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([this] {
      for (int i = 0; i < kCalls; ++i) {
        OpenCall call = calls_.Open();
        pump_.Push(call.id());
        const auto answer = call.Wait<wire::Published>(In(milliseconds(10'000)));
        ASSERT_TRUE(answer.ok()) << answer.status();
        ASSERT_EQ(answer->id, call.id());
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(unclaimed_.load(), 0);
}

TEST_F(PendingCallsTest, AWaitingCallerTakesOverThePump) {
  OpenCall patient = calls_.Open();
  OpenCall hasty = calls_.Open();
  std::thread pumps_first([&] {
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(hasty.Wait<wire::Published>(In(milliseconds(50))).status()));
    pump_.Push(patient.id());  // after `hasty` left the pump
  });
  std::this_thread::sleep_for(milliseconds(10));  // so that usually the other thread pumps
  EXPECT_TRUE(patient.Wait<wire::Published>(In(milliseconds(10'000))).ok());
  pumps_first.join();
}

TEST_F(PendingCallsTest, OneIdlePumpTakesALimitedNumberOfMessages) {
  const TimePoint now = In(milliseconds(0));
  for (int i = 0; i < PendingCalls::kIdleMessagesMax + 1; ++i) pump_.Push(1'000'000);
  EXPECT_EQ(calls_.PumpIfIdle(now), now) << "one message is left";
  EXPECT_EQ(unclaimed_.load(), PendingCalls::kIdleMessagesMax);
  EXPECT_EQ(calls_.PumpIfIdle(now), now + PendingCalls::kIdle);
  EXPECT_EQ(unclaimed_.load(), PendingCalls::kIdleMessagesMax + 1);
}

// A step of an engine's scheduler must not become longer because many answers arrive at once.
TEST_F(PendingCallsTest, APollReadsForALimitedTime) {
  pump_.ReadFor(PendingCalls::kPollMax);
  for (int i = 0; i < 3; ++i) pump_.Push(1'000'000);
  for (int read = 1; read <= 3; ++read) {
    calls_.Poll();
    EXPECT_EQ(unclaimed_.load(), read) << "a poll reads one message, and leaves the rest";
  }
}

TEST_F(PendingCallsTest, IdlePumpsBecomeRareInALongSilence) {
  const TimePoint now = In(milliseconds(0));
  EXPECT_EQ(calls_.PumpIfIdle(now), now + 2 * PendingCalls::kIdle);
  EXPECT_EQ(calls_.PumpIfIdle(now), now + PendingCalls::kIdleMax);
  EXPECT_EQ(calls_.PumpIfIdle(now), now + PendingCalls::kIdleMax);
  pump_.Push(1'000'000);
  EXPECT_EQ(calls_.PumpIfIdle(now), now + PendingCalls::kIdle);
}

TEST_F(PendingCallsTest, NoIdlePumpRightAfterACaller) {
  OpenCall call = calls_.Open();
  pump_.Push(call.id());
  EXPECT_TRUE(call.Wait<wire::Published>(In(milliseconds(10'000))).ok());
  pump_.Push(1'000'000);
  EXPECT_TRUE(calls_.PumpIfIdle(In(milliseconds(0))).has_value());
  EXPECT_EQ(unclaimed_.load(), 0);
  (void)calls_.PumpIfIdle(In(PendingCalls::kIdle));
  EXPECT_EQ(unclaimed_.load(), 1);
}

TEST_F(PendingCallsTest, NoIdlePumpAfterTheEnd) {
  calls_.FailAll(absl::UnavailableError("over"));
  EXPECT_FALSE(calls_.PumpIfIdle(In(milliseconds(0))).has_value());
}

TEST_F(PendingCallsTest, StoppingWakesACallerThatPumps) {
  OpenCall call = calls_.Open();
  std::thread caller([&] {
    EXPECT_TRUE(absl::IsUnavailable(call.Wait<wire::Published>(In(milliseconds(60'000))).status()));
  });
  std::this_thread::sleep_for(milliseconds(20));  // so that usually it pumps already
  calls_.FailAll(absl::UnavailableError("over"));
  calls_.StopPump();
  caller.join();
}

TEST_F(PendingCallsTest, ALateAnswerIsReportedAsUnclaimed) {
  {
    OpenCall call = calls_.Open();
    EXPECT_FALSE(call.Wait<wire::Published>(In(milliseconds(1))).ok());
    calls_.Deliver(call.id(), wire::Published{});
  }
  EXPECT_EQ(unclaimed_.load(), 1);
}

}  // namespace
}  // namespace larder
