// Shares: the sum over all holders never exceeds the limit; one holder leaves capacity for others;
// a refusal says which share is full, whose it is and what to do; a ticket releases its amount
// exactly once.
#include "server/runtime/shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace larder {
namespace {

using ::testing::HasSubstr;
using Kind = ShareKind;

constexpr ShareHolder Process(uint64_t id, uid_t uid) {
  return {.uid = uid, .process = ProcessId{id}, .pid = static_cast<pid_t>(id + 100)};
}
Shares::Limits Of(Kind kind, const Shares::Limit& limit) {
  Shares::Limits limits;
  limits[static_cast<size_t>(kind)] = limit;
  return limits;
}
// Takes tickets one at a time until one is refused.
std::vector<Shares::Ticket> TakeAll(const Shares::Account& account, Kind kind) {
  std::vector<Shares::Ticket> tickets;
  for (;;) {
    Shares::Answer answer = account.Take(kind);
    if (!answer.admitted()) return tickets;
    tickets.push_back(std::move(answer.ticket));
  }
}

TEST(SharesTest, AProcessAloneGetsHalf) {
  Shares shares(Of(Kind::kSessions, {.all = 1024}));
  const auto tickets = TakeAll(shares.Of(Process(1, 1000)), Kind::kSessions);
  EXPECT_EQ(tickets.size(), 512u);
  EXPECT_EQ(shares.held(Kind::kSessions), 512u);
  EXPECT_EQ(shares.refused(Kind::kSessions), 1u);
}

// A refusal that the caller decides from Room is reported in the same words as a refusal by Take.
TEST(SharesTest, CountRefusedSaysHowMuchIsHeldAndOfWhat) {
  std::vector<std::string> why;
  Shares shares(Of(Kind::kLeases, {.all = 8}),
                [&](const std::string&, const std::string& text) { why.push_back(text); });
  const Shares::Account account = shares.Of(Process(1, 1000));
  const auto tickets = TakeAll(account, Kind::kLeases);
  account.CountRefused(Kind::kLeases);
  ASSERT_EQ(why.size(), 2u) << "one for the last Take of TakeAll, one for CountRefused";
  EXPECT_THAT(why[1],
              HasSubstr("share of leases: uid 1000 pid 101 holds 4; 4 of 8 are free, and it "
                        "may hold at most as much as is left: release leases"));
  EXPECT_EQ(shares.refused(Kind::kLeases), 2u);
}

TEST(SharesTest, ProcessesOfAUidGetThreeQuartersAndAnotherUidItsPart) {
  Shares shares(Of(Kind::kSessions, {.all = 1024}));
  std::vector<std::vector<Shares::Ticket>> held;
  for (uint64_t id = 1; id <= 50; ++id)
    held.push_back(TakeAll(shares.Of(Process(id, 1000)), Kind::kSessions));
  EXPECT_EQ(shares.held(Kind::kSessions), 768u);
  // Another uid gets half of what is left, like one process alone; that is still a useful amount.
  const auto victim = TakeAll(shares.Of(Process(99, 1001)), Kind::kSessions);
  EXPECT_EQ(victim.size(), 128u);
}

TEST(SharesTest, SomethingIsLeftForTheNextUid) {
  Shares shares(Of(Kind::kByteStreams, {.all = 64}));
  std::vector<std::vector<Shares::Ticket>> held;
  for (uint64_t id = 1; id <= 4; ++id) {
    held.push_back(
        TakeAll(shares.Of(Process(id, static_cast<uid_t>(1000 + id))), Kind::kByteStreams));
    EXPECT_FALSE(held.back().empty()) << id;
  }
  EXPECT_LT(shares.held(Kind::kByteStreams), 64u);
}

TEST(SharesTest, TheRuleDoesNotApplyUpToTheFloor) {
  Shares shares(Of(Kind::kMessageBytes, {.all = 256, .floor = 32}));
  const Shares::Account many = shares.Of(Process(1, 1000));
  const auto first = many.Take(Kind::kMessageBytes, 128);
  ASSERT_TRUE(first.admitted());
  EXPECT_FALSE(many.Take(Kind::kMessageBytes, 1).admitted());
  const Shares::Account few = shares.Of(Process(2, 1001));
  EXPECT_EQ(few.Room(Kind::kMessageBytes), 64u);
  const auto second = few.Take(Kind::kMessageBytes, 64);
  ASSERT_TRUE(second.admitted());
  const Shares::Account late = shares.Of(Process(3, 1002));
  EXPECT_EQ(late.Room(Kind::kMessageBytes), 32u);
  const auto third = late.Take(Kind::kMessageBytes, 32);
  EXPECT_TRUE(third.admitted());
}

TEST(SharesTest, FixedCapsOfProcessAndUidHold) {
  Shares shares(Of(Kind::kReservedBytes, {.floor = UINT64_MAX, .process_max = 25, .uid_max = 75}));
  const Shares::Account process = shares.Of(Process(1, 1000));
  EXPECT_EQ(process.Room(Kind::kReservedBytes), 25u);
  auto all = process.Take(Kind::kReservedBytes, 25);
  ASSERT_TRUE(all.admitted());
  const auto more = process.Take(Kind::kReservedBytes, 1);
  EXPECT_FALSE(more.admitted());
  EXPECT_TRUE(more.own);
  EXPECT_THAT(more.why, HasSubstr("share of reserved_bytes: uid 1000 pid 101 holds 25"));
  EXPECT_THAT(more.why, HasSubstr("--lease-share"));
  EXPECT_EQ(process.Take(Kind::kReservedBytes, 26).retry_after, Duration::zero());
  std::vector<Shares::Ticket> others;
  for (uint64_t id = 2; id <= 3; ++id)
    others.push_back(shares.Of(Process(id, 1000)).Take(Kind::kReservedBytes, 25).ticket);
  const auto fourth = shares.Of(Process(4, 1000)).Take(Kind::kReservedBytes, 1);
  EXPECT_THAT(fourth.why, HasSubstr("uid 1000 holds 75"));
  // Callers without a known process count as one process.
  EXPECT_EQ(shares.Of({}).Room(Kind::kReservedBytes), 25u);
}

TEST(SharesTest, RefusalsNameTheHolderAndWhenToRetry) {
  Shares shares(Of(Kind::kWatchers, {.all = 8}));
  const auto held = TakeAll(shares.Of({}), Kind::kWatchers);
  EXPECT_EQ(held.size(), 6u);
  const Shares::Answer refused = shares.Of({}).Take(Kind::kWatchers);
  EXPECT_THAT(refused.why, HasSubstr("share of watchers: callers without a sideband holds 6"));
  EXPECT_GT(refused.retry_after, Duration::zero());
  const auto daemon = shares.OfDaemon().Take(Kind::kWatchers, 2);
  ASSERT_TRUE(daemon.admitted()) << "the daemon's account is limited only by the total";
  const Shares::Answer full = shares.Of(Process(1, 1000)).Take(Kind::kWatchers);
  EXPECT_FALSE(full.own);
  EXPECT_THAT(full.why, HasSubstr("8 of 8 are taken by all"));
}

TEST(SharesTest, RetryHintsAreSpread) {
  Shares shares(Of(Kind::kCalls, {.all = 1}));
  const auto held = shares.Of({}).Take(Kind::kCalls);
  std::set<Duration> hints;
  for (int i = 0; i < 16; ++i) hints.insert(shares.Of({}).Take(Kind::kCalls).retry_after);
  EXPECT_EQ(hints.size(), 16u);
  EXPECT_LE(*hints.rbegin(), 2 * *hints.begin());
}

TEST(SharesTest, TicketsShrinkMergeMoveAndReleaseOnce) {
  Shares shares(Of(Kind::kMessageBytes, {.all = 4096, .floor = 4096}));
  const Shares::Account account = shares.Of(Process(1, 1000));
  Shares::Ticket ticket = account.Take(Kind::kMessageBytes, 3000).ticket;
  ticket.ShrinkTo(1024);
  EXPECT_EQ(shares.held(Kind::kMessageBytes), 1024u);
  ticket.ShrinkTo(2048);  // never grows
  EXPECT_EQ(ticket.amount(), 1024u);
  ticket.Merge(account.Take(Kind::kMessageBytes, 1000).ticket);
  EXPECT_EQ(ticket.amount(), 2024u);
  Shares::Ticket other(std::move(ticket));
  EXPECT_EQ(shares.held(Kind::kMessageBytes), 2024u);
  EXPECT_EQ(account.held(Kind::kMessageBytes), 2024u);
  other.Reset();
  other.Reset();
  other.ShrinkTo(0);
  EXPECT_EQ(shares.held(Kind::kMessageBytes), 0u);
  EXPECT_EQ(account.held(Kind::kMessageBytes), 0u);
}

TEST(SharesTest, TheUidsAccountHoldsWhatOutlivesAProcess) {
  Shares shares(Of(Kind::kEngines, {.all = 100}));
  Shares::Ticket kept = shares.Of(Process(1, 1000)).OfUid().Take(Kind::kEngines).ticket;
  EXPECT_EQ(shares.Of(Process(2, 1000)).OfUid().held(Kind::kEngines), 1u);
  const std::vector<Shares::Use> uses = shares.Uses(8);
  const Shares::Use& use = uses.at(static_cast<size_t>(Kind::kEngines));
  EXPECT_EQ(use.held, 1u);
  ASSERT_EQ(use.holders.size(), 1u);
  EXPECT_EQ(use.holders[0].holder.ToString(), "uid 1000");
}

TEST(SharesTest, UsesListsTheLargestHolders) {
  Shares shares(Of(Kind::kLeases, {.all = 100'000}));
  std::vector<Shares::Ticket> held;
  for (uint64_t id = 1; id <= 300; ++id)
    held.push_back(shares.Of(Process(id, 1000)).Take(Kind::kLeases, id).ticket);
  const Shares::Use use = shares.Uses(2).at(static_cast<size_t>(Kind::kLeases));
  ASSERT_EQ(use.holders.size(), 2u);
  EXPECT_EQ(use.holders[0].holder.ToString(), "uid 1000");
  EXPECT_EQ(use.holders[1].holder.ToString(), "uid 1000 pid 400");
  EXPECT_EQ(use.holders[1].held, 300u);
}

// When all holders wait for one another, at least one of them has its part; here it is the large
// one.
TEST(SharesTest, OneOfTheHoldersThatTogetherHoldAllHasItsPart) {
  Shares shares(Of(Kind::kMessageBytes, {.all = 100, .floor = 100}));
  const Shares::Account large = shares.Of(Process(1, 1000)), small = shares.Of(Process(2, 1001));
  const auto most = large.Take(Kind::kMessageBytes, 90), rest = small.Take(Kind::kMessageBytes, 10);
  ASSERT_TRUE(most.admitted() && rest.admitted());
  EXPECT_TRUE(large.HasItsPart(Kind::kMessageBytes));
  EXPECT_FALSE(small.HasItsPart(Kind::kMessageBytes));
}

TEST(SharesTest, TheLimitIsExactUnderManyThreads) {
  constexpr uint64_t kMax = 1000;
  Shares shares(Of(Kind::kMessageBytes, {.all = kMax, .floor = kMax}));
  std::atomic<uint64_t> inside{0}, over{0}, admitted{0}, refused{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 20'000; ++i) {
        const uint64_t amount = 1 + (i * 7 + t) % 400;
        const auto answer = shares.Of(Process(t % 2, 1000)).Take(Kind::kMessageBytes, amount);
        ++(answer.admitted() ? admitted : refused);
        if (!answer.admitted()) continue;
        // The amount is subtracted before the ticket releases it, so `inside` never exceeds what
        // Shares admitted.
        if (inside.fetch_add(amount) + amount > kMax) ++over;
        if (i % 64 == 0) std::this_thread::yield();
        inside -= amount;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(over, 0u);
  EXPECT_EQ(shares.held(Kind::kMessageBytes), 0u);
  EXPECT_EQ(shares.refused(Kind::kMessageBytes), refused);
  EXPECT_EQ(admitted + refused, 80'000u);
}

// A holder may hold more than the rule would now allow.  A request for zero more is not a refusal.
TEST(SharesTest, AnAmountOfZeroIsAlwaysAdmitted) {
  Shares shares(Of(Kind::kMessageBytes, {.all = 100}));
  const auto first = shares.Of(Process(1, 1));
  const auto ticket = first.Take(Kind::kMessageBytes, 50);
  ASSERT_TRUE(ticket.admitted());
  const auto others = shares.Of(Process(2, 2)).Take(Kind::kMessageBytes, 25);
  ASSERT_TRUE(others.admitted());
  EXPECT_FALSE(first.Take(Kind::kMessageBytes, 1).admitted());
  EXPECT_TRUE(first.Take(Kind::kMessageBytes, 0).admitted());
  EXPECT_EQ(first.held(Kind::kMessageBytes), 50u);
}

}  // namespace
}  // namespace larder
