// Directives to engines: which sessions get one, and which statuses the caller gets when engines
// answer, hang or end.
#include "server/instances/directive_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/support/test_scale.h"

namespace larder {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Statuses = std::vector<BlockStatus>;

constexpr VariantIndex kVariant{3};

Digest D(uint32_t n) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &n, sizeof n);
  return digest;
}

class DirectiveQueueTest : public ::testing::Test {
 protected:
  struct Sent {
    SessionId session;
    wire::Directive directive;
  };
  // Session 1 of engine a has blocks 0 to n - 1, and one order names them all.
  void GiveMany(uint32_t n) {
    std::vector<Digest> digests;
    std::vector<DirectiveQueue::Block> blocks;
    for (uint32_t i = 0; i < n; ++i) {
      digests.push_back(D(i));
      blocks.emplace_back(kVariant, D(i));
    }
    Has(1, "a", digests);
    desk_.Give({}, blocks, [this](Statuses statuses) { answer_ = std::move(statuses); });
  }
  void DoneAll(size_t i) { Done(i, Statuses(sent_[i].directive.digests.size(), BlockStatus::kOk)); }
  void Has(uint64_t session, const std::string& engine, std::vector<Digest> digests) {
    devices_.SessionBegan(SessionId{session}, engine);
    (void)devices_.Stored(SessionId{session}, {.variant = kVariant, .digests = digests});
  }
  void Give(const DirectiveQueue::Order& order, std::initializer_list<uint32_t> blocks) {
    std::vector<DirectiveQueue::Block> wanted;
    for (const uint32_t n : blocks) wanted.emplace_back(kVariant, D(n));
    desk_.Give(order, wanted, [this](Statuses statuses) {
      EXPECT_FALSE(answer_.has_value()) << "the caller is answered twice";
      answer_ = std::move(statuses);
    });
  }
  void Done(size_t i, Statuses statuses) {
    desk_.Done(sent_[i].session,
               {.directive_id = sent_[i].directive.directive_id, .status = std::move(statuses)});
  }

  EventRing ring_{64};
  DeviceTable devices_{ring_};
  ManualClock clock_;
  Counters counters_;
  std::vector<Sent> sent_;
  BlockStatus sending_ = BlockStatus::kOk;
  DirectiveQueue desk_{devices_, clock_, [] { return uint64_t{1'000}; }, counters_,
                       [this](SessionId id, VariantIndex, wire::Directive directive) {
                         sent_.push_back({id, std::move(directive)});
                         return sending_;
                       }};
  std::optional<Statuses> answer_;
};

constexpr auto kOk = BlockStatus::kOk;
constexpr auto kMissing = BlockStatus::kMissing;

TEST_F(DirectiveQueueTest, EachHolderOfABlockGetsADirectiveAndTheWorstStatusIsReturned) {
  Has(1, "a", {D(1), D(2)});
  Has(2, "b", {D(2)});
  Give({.kind = wire::DirectiveKind::kPin, .owner = "o", .deadline_unix_ms = 7}, {1, 2, 3});
  ASSERT_THAT(sent_, SizeIs(2));
  EXPECT_THAT(sent_[0].directive.digests, ElementsAre(D(1), D(2)));
  EXPECT_THAT(sent_[1].directive.digests, ElementsAre(D(2)));
  EXPECT_EQ(sent_[0].directive.owner, "o");
  EXPECT_EQ(sent_[0].directive.deadline_unix_ms, 7u);
  EXPECT_EQ(sent_[0].directive.valid_unix_ms, 6'000u);
  Done(0, {kOk, kOk});
  EXPECT_FALSE(answer_.has_value());
  Done(1, {BlockStatus::kFull});
  EXPECT_EQ(answer_, (Statuses{kOk, BlockStatus::kFull, kMissing}));
  EXPECT_EQ(counters_.directives_done.value(), 2u);
}

TEST_F(DirectiveQueueTest, AnOrderForOneEngineReachesOnlyThatEngine) {
  Has(1, "a", {D(1)});
  Has(2, "b", {D(1)});
  Give({.engine_id = "b"}, {1});
  ASSERT_THAT(sent_, SizeIs(1));
  EXPECT_EQ(sent_[0].session, SessionId{2});
}

TEST_F(DirectiveQueueTest, BlocksThatNoEngineHasAreAnsweredAtOnce) {
  Give({}, {1, 2});
  EXPECT_EQ(answer_, (Statuses{kMissing, kMissing}));
  EXPECT_THAT(sent_, IsEmpty());
}

TEST_F(DirectiveQueueTest, AnEngineThatTakesNoDirectivesOrEndsGetsAStatus) {
  Has(1, "a", {D(1)});
  sending_ = BlockStatus::kUnsupported;
  Give({}, {1});
  EXPECT_EQ(answer_, (Statuses{BlockStatus::kUnsupported}));
  answer_.reset();
  sending_ = kOk;
  Give({}, {1});
  EXPECT_FALSE(answer_.has_value());
  desk_.SessionEnded(SessionId{2});
  EXPECT_FALSE(answer_.has_value());
  desk_.SessionEnded(SessionId{1});
  EXPECT_EQ(answer_, (Statuses{kMissing}));
}

TEST_F(DirectiveQueueTest, AHangingEngineIsPendingAndItsLateAnswerIsIgnored) {
  Has(1, "a", {D(1)});
  Give({}, {1});
  desk_.Tick(clock_.Now() + DirectiveQueue::kPatience - std::chrono::milliseconds(1));
  EXPECT_FALSE(answer_.has_value());
  desk_.Tick(clock_.Now() + DirectiveQueue::kPatience);
  EXPECT_EQ(answer_, (Statuses{BlockStatus::kPending}));
  EXPECT_EQ(counters_.directives_unanswered.value(), 1u);
  Done(0, {kOk});
  EXPECT_EQ(counters_.directives_done.value(), 0u);
}

// An engine that is stopped uses a bounded amount of memory, however often it gets directives.
TEST_F(DirectiveQueueTest, AnEngineThatOwesTooManyAnswersGetsNoDirective) {
  Has(1, "a", {D(1)});
  const auto most = DirectiveQueue::kOwedMax / (1 + DirectiveQueue::kOwedOfDirective);
  for (size_t i = 0; i < most + 10; ++i) {
    answer_.reset();
    Give({}, {1});
    clock_.Advance(DirectiveQueue::kPatience);
    desk_.Tick(clock_.Now());
    ASSERT_EQ(answer_, (Statuses{BlockStatus::kPending}));
  }
  EXPECT_THAT(sent_, SizeIs(most));
  Done(0, {kOk});  // late, and no longer owed
  answer_.reset();
  Give({}, {1});
  EXPECT_THAT(sent_, SizeIs(most + 1));
  Done(most, {kOk});
  EXPECT_EQ(answer_, (Statuses{kOk}));
  desk_.SessionEnded(SessionId{1});
}

TEST_F(DirectiveQueueTest, EndAllAnswersEveryOrderAsPending) {
  Has(1, "a", {D(1)});
  Give({}, {1});
  desk_.EndAll();
  EXPECT_EQ(answer_, (Statuses{BlockStatus::kPending}));
  answer_.reset();
  Give({}, {1});
  EXPECT_EQ(answer_, (Statuses{BlockStatus::kPending}));
  EXPECT_THAT(sent_, SizeIs(1));
}

TEST_F(DirectiveQueueTest, AStatusThatDoesNotFitTheDirectiveBecomesUnsupported) {
  using Kind = wire::DirectiveKind;
  const auto heard = [this](Kind kind, BlockStatus said) {
    answer_.reset();
    Give({.kind = kind}, {1});
    Done(sent_.size() - 1, {said});
    return answer_.value().front();
  };
  Has(1, "a", {D(1)});
  EXPECT_EQ(heard(Kind::kPin, BlockStatus::kDuplicate), BlockStatus::kUnsupported);
  EXPECT_EQ(heard(Kind::kPin, BlockStatus::kKept), BlockStatus::kUnsupported);
  EXPECT_EQ(heard(Kind::kPin, BlockStatus::kFull), BlockStatus::kFull);
  EXPECT_EQ(heard(Kind::kDrop, BlockStatus::kFull), BlockStatus::kUnsupported);
  EXPECT_EQ(heard(Kind::kDrop, BlockStatus::kKept), BlockStatus::kKept);
  EXPECT_EQ(heard(Kind::kCompress, BlockStatus::kFull), BlockStatus::kFull);
  EXPECT_EQ(heard(Kind::kUnpin, BlockStatus::kCancelled), BlockStatus::kPending)
      << "the engine got the directive too late to carry it out";
}

TEST_F(DirectiveQueueTest, InvalidAnswersAreCountedAndIgnored) {
  Has(1, "a", {D(1)});
  Give({}, {1});
  Done(0, {kOk, kOk});
  desk_.Done(SessionId{2}, {.directive_id = sent_[0].directive.directive_id, .status = {kOk}});
  desk_.Done(SessionId{1}, {.directive_id = 999, .status = {kOk}});
  EXPECT_FALSE(answer_.has_value());
  EXPECT_EQ(counters_.invalid_messages.value(), 3u);
  Done(0, {kOk});
  EXPECT_EQ(answer_, (Statuses{kOk}));
}

TEST_F(DirectiveQueueTest, ManyBlocksAreSplitIntoSeveralDirectives) {
  GiveMany(wire::kKeysMax + 1);
  ASSERT_THAT(sent_, SizeIs(2));
  DoneAll(1);
  DoneAll(0);
  EXPECT_EQ(answer_, Statuses(wire::kKeysMax + 1, kOk));
}

// As many blocks as a caller may name, and then more, as a Clear of everything has.
TEST_F(DirectiveQueueTest, DirectivesBeyondTheOwedLimitFollowAsTheSessionAnswers) {
  for (const uint32_t n : {65'536u, 100'000u}) {
    SCOPED_TRACE(n);
    sent_.clear();
    answer_.reset();
    GiveMany(n);
    size_t keys = 0, owed = 0;
    for (size_t done = 0, sent = 0; done < sent_.size(); ++done) {
      for (; sent < sent_.size(); ++sent)
        owed += sent_[sent].directive.digests.size() + DirectiveQueue::kOwedOfDirective;
      ASSERT_LE(owed, DirectiveQueue::kOwedMax);
      keys += sent_[done].directive.digests.size();
      owed -= sent_[done].directive.digests.size() + DirectiveQueue::kOwedOfDirective;
      DoneAll(done);
    }
    EXPECT_EQ(keys, n);
    EXPECT_EQ(answer_, Statuses(n, kOk));
    desk_.SessionEnded(SessionId{1});
    devices_.SessionEnded(SessionId{1});
  }
  EXPECT_EQ(counters_.directives_unsent.value(), 0u);
}

// The queue waits for an engine that answers some directives.  If the engine then hangs, the queue
// also gives up the directives that it has not sent.
TEST_F(DirectiveQueueTest, QueuedDirectivesAreGivenUpWhenTheEngineHangs) {
  GiveMany(100'000);
  const size_t at_once = sent_.size();
  ASSERT_LT(at_once, 25u);
  clock_.Advance(std::chrono::seconds(4));
  DoneAll(0);
  ASSERT_THAT(sent_, SizeIs(at_once + 1));
  clock_.Advance(std::chrono::seconds(1));
  desk_.Tick(clock_.Now());
  EXPECT_EQ(counters_.directives_unanswered.value(), at_once - 1);
  EXPECT_FALSE(answer_.has_value());
  clock_.Advance(std::chrono::seconds(4));
  desk_.Tick(clock_.Now());
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(std::ranges::count(*answer_, kOk), static_cast<ptrdiff_t>(wire::kKeysMax));
  EXPECT_EQ(std::ranges::count(*answer_, BlockStatus::kPending),
            static_cast<ptrdiff_t>(100'000 - wire::kKeysMax));
  EXPECT_EQ(counters_.directives_unsent.value(), 25 - at_once - 1);
  DoneAll(1);
  EXPECT_THAT(sent_, SizeIs(at_once + 1)) << "no caller waits for the remaining directives";
}

TEST_F(DirectiveQueueTest, QueuedDirectivesEndWithTheirSession) {
  GiveMany(100'000);
  DoneAll(0);
  desk_.SessionEnded(SessionId{1});
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(std::ranges::count(*answer_, kMissing),
            static_cast<ptrdiff_t>(100'000 - wire::kKeysMax));
}

TEST_F(DirectiveQueueTest, AnOrderWithoutBlocksHasOneStatusPerSession) {
  const SessionId sessions[] = {SessionId{1}, SessionId{2}};
  desk_.GiveAll({.kind = wire::DirectiveKind::kUnpin, .owner = "o"}, sessions,
                [this](Statuses statuses) { answer_ = std::move(statuses); });
  ASSERT_THAT(sent_, SizeIs(2));
  Done(0, {});
  desk_.Tick(clock_.Now() + DirectiveQueue::kPatience);
  EXPECT_EQ(answer_, (Statuses{kOk, BlockStatus::kPending}));
}

TEST_F(DirectiveQueueTest, AFailedOrderWithoutBlocksIsNotReportedAsOk) {
  const SessionId session{1};
  for (const auto& [said, heard] :
       {std::pair(BlockStatus::kCancelled, BlockStatus::kPending),
        std::pair(BlockStatus::kUnsupported, BlockStatus::kUnsupported)}) {
    answer_.reset();
    desk_.GiveAll({.kind = wire::DirectiveKind::kUnpin}, {&session, 1},
                  [this](Statuses statuses) { answer_ = std::move(statuses); });
    Done(sent_.size() - 1, {kOk, kOk});
    EXPECT_FALSE(answer_.has_value()) << "an answer with a wrong number of statuses is ignored";
    Done(sent_.size() - 1, {said});
    EXPECT_EQ(answer_, Statuses{heard});
  }
}

// Two threads give orders, two answer, one advances the time, and one ends sessions.  Each order is
// answered exactly once.
TEST(DirectiveQueueThreads, EveryOrderIsAnsweredOnce) {
  constexpr uint64_t kSessions = 4;
  static constexpr uint32_t kBlocks = 6'000;  // more than one directive carries
  const int orders_each = static_cast<int>(larder::testing::Scaled(300));
  EventRing ring(64);
  DeviceTable devices(ring);
  const SteadyClock clock;
  Counters counters;
  Mutex mu;
  std::vector<std::pair<SessionId, wire::Directive>> sent;
  DirectiveQueue desk(
      devices, clock, [] { return uint64_t{1'000}; }, counters,
      [&](SessionId session, VariantIndex, wire::Directive directive) {
        MutexLock lock(mu);
        sent.emplace_back(session, std::move(directive));
        return kOk;
      });
  std::vector<Digest> digests;
  std::vector<DirectiveQueue::Block> blocks;
  for (uint32_t n = 0; n < kBlocks; ++n) {
    digests.push_back(D(n));
    blocks.emplace_back(kVariant, D(n));
  }
  std::atomic<uint64_t> last_session{0};
  const auto begin = [&] {
    const SessionId session{++last_session};
    devices.SessionBegan(session, "a");
    (void)devices.Stored(session, {.variant = kVariant, .digests = digests});
  };
  for (uint64_t i = 0; i < kSessions; ++i) begin();

  std::vector<std::atomic<int>> answered(2 * static_cast<size_t>(orders_each));
  std::atomic<bool> stop{false};
  const auto give = [&](int from) {
    for (int i = from; i < from + orders_each; ++i)
      desk.Give({}, blocks, [&answered, i](const Statuses& statuses) {
        EXPECT_THAT(statuses, SizeIs(kBlocks));
        ++answered[static_cast<size_t>(i)];
      });
  };
  const auto answer = [&] {
    while (!stop) {
      std::pair<SessionId, wire::Directive> next;
      {
        MutexLock lock(mu);
        if (sent.empty()) continue;
        next = std::move(sent.back());
        sent.pop_back();
      }
      desk.Done(next.first, {.directive_id = next.second.directive_id,
                             .status = Statuses(next.second.digests.size(), kOk)});
    }
  };
  std::vector<std::thread> others;
  others.emplace_back(answer);
  others.emplace_back(answer);
  others.emplace_back([&] {
    while (!stop) desk.Tick(clock.Now() + std::chrono::milliseconds(4'990));
  });
  others.emplace_back([&] {
    for (uint64_t ended = 1; !stop; ++ended) {
      begin();
      devices.SessionEnded(SessionId{ended});
      desk.SessionEnded(SessionId{ended});
    }
  });
  std::thread giver([&] { give(0); });
  give(orders_each);
  giver.join();
  desk.EndAll();
  stop = true;
  for (std::thread& other : others) other.join();
  for (const std::atomic<int>& times : answered) EXPECT_EQ(times.load(), 1);
  EXPECT_GT(counters.directives_done.value(), 0u);
}

}  // namespace
}  // namespace larder
