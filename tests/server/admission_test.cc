// Admission: limits are exact, refusals carry a hint, tickets give back once.
#include "server/admission.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace larder {
namespace {

using Gate = Admission::Gate;

TEST(AdmissionTest, RefusesBeyondTheLimitAndComesBack) {
  Admission admission({.calls_max = 2, .sessions_max = 1, .bytes_max = KiB(4)});
  auto first = admission.EnterCall();
  auto second = admission.EnterCall();
  EXPECT_TRUE(first.admitted() && second.admitted());
  const auto third = admission.EnterCall();
  EXPECT_FALSE(third.admitted());
  EXPECT_GT(third.retry_after, Duration::zero());
  EXPECT_EQ(admission.inside(Gate::kCalls), 2u);
  EXPECT_EQ(admission.refused(Gate::kCalls), 1u);
  first.ticket.Reset();
  first.ticket.Reset();  // once only
  EXPECT_EQ(admission.inside(Gate::kCalls), 1u);
  EXPECT_TRUE(admission.EnterCall().admitted());
  EXPECT_TRUE(admission.EnterSession().admitted()) << "gates are independent";
}

TEST(AdmissionTest, BytesThatNeverFitHaveNoHint) {
  Admission admission({.calls_max = 1, .sessions_max = 1, .bytes_max = KiB(4)});
  const auto fits = admission.EnterBytes(KiB(4));
  EXPECT_TRUE(fits.admitted());
  EXPECT_GT(admission.EnterBytes(ByteCount(1)).retry_after, Duration::zero());
  EXPECT_EQ(admission.EnterBytes(ByteCount(4097)).retry_after, Duration::zero());
  EXPECT_FALSE(admission.EnterBytes(ByteCount(UINT64_MAX)).admitted());
  EXPECT_EQ(admission.inside(Gate::kBytes), 4096u);
}

TEST(AdmissionTest, ATicketShrinks) {
  Admission admission({.calls_max = 1, .sessions_max = 1, .bytes_max = KiB(4)});
  auto answer = admission.EnterBytes(KiB(4));
  answer.ticket.ShrinkTo(1024);
  EXPECT_EQ(admission.inside(Gate::kBytes), 1024u);
  answer.ticket.ShrinkTo(2048);  // never grows
  EXPECT_EQ(admission.inside(Gate::kBytes), 1024u);
  answer.ticket.Reset();
  answer.ticket.ShrinkTo(512);
  EXPECT_EQ(admission.inside(Gate::kBytes), 0u);
}

TEST(AdmissionTest, TicketsMove) {
  Admission admission({.calls_max = 1, .sessions_max = 1, .bytes_max = KiB(4)});
  Admission::Ticket kept;
  {
    auto answer = admission.EnterCall();
    kept = std::move(answer.ticket);
  }
  EXPECT_EQ(admission.inside(Gate::kCalls), 1u);
  Admission::Ticket other(std::move(kept));
  EXPECT_TRUE(static_cast<bool>(other));
  other = Admission::Ticket();
  EXPECT_EQ(admission.inside(Gate::kCalls), 0u);
}

TEST(AdmissionTest, HintsAreSpread) {
  Admission admission({.calls_max = 0, .sessions_max = 1, .bytes_max = KiB(4)});
  const auto held = admission.EnterSession();
  std::set<Duration> hints;
  for (int i = 0; i < 16; ++i) hints.insert(admission.EnterSession().retry_after);
  EXPECT_EQ(hints.size(), 16u);
  EXPECT_LE(*hints.rbegin(), 2 * *hints.begin());
}

TEST(AdmissionTest, ExactUnderManyThreads) {
  constexpr uint64_t kMax = 1000;
  Admission admission({.calls_max = 1, .sessions_max = 1, .bytes_max = ByteCount(kMax)});
  std::atomic<uint64_t> inside{0}, over{0}, admitted{0}, refused{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 20'000; ++i) {
        const uint64_t amount = 1 + (i * 7 + t) % 400;
        const auto answer = admission.EnterBytes(ByteCount(amount));
        ++(answer.admitted() ? admitted : refused);
        if (!answer.admitted()) continue;
        // Counted before the ticket goes back, so never more than what the gate let in.
        if (inside.fetch_add(amount) + amount > kMax) ++over;
        if (i % 64 == 0) std::this_thread::yield();
        inside -= amount;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(over, 0u);
  EXPECT_EQ(admission.inside(Gate::kBytes), 0u);
  EXPECT_EQ(admission.refused(Gate::kBytes), refused);
  EXPECT_EQ(admitted + refused, 80'000u);
}

}  // namespace
}  // namespace larder
