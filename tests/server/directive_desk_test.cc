// Orders to engines: who is asked, what the caller hears, whoever answers, hangs or ends.
#include "server/directive_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

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

class DirectiveDeskTest : public ::testing::Test {
 protected:
  struct Sent {
    SessionId session;
    wire::Directive directive;
  };
  void Has(uint64_t session, const std::string& engine, std::vector<Digest> digests) {
    devices_.SessionBegan(SessionId{session}, engine);
    (void)devices_.Stored(SessionId{session}, {.variant = kVariant, .digests = digests});
  }
  void Give(const DirectiveDesk::Order& order, std::initializer_list<uint32_t> blocks) {
    std::vector<DirectiveDesk::Block> wanted;
    for (const uint32_t n : blocks) wanted.emplace_back(kVariant, D(n));
    desk_.Give(order, wanted, [this](Statuses statuses) {
      EXPECT_FALSE(answer_.has_value()) << "once";
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
  DirectiveDesk desk_{devices_, clock_, [] { return uint64_t{1'000}; }, counters_,
                      [this](SessionId id, VariantIndex, wire::Directive directive) {
                        sent_.push_back({id, std::move(directive)});
                        return sending_;
                      }};
  std::optional<Statuses> answer_;
};

constexpr auto kOk = BlockStatus::kOk;
constexpr auto kMissing = BlockStatus::kMissing;

TEST_F(DirectiveDeskTest, EachWhoHasABlockIsAskedAndTheWorstIsAnswered) {
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

TEST_F(DirectiveDeskTest, OneEngineAlone) {
  Has(1, "a", {D(1)});
  Has(2, "b", {D(1)});
  Give({.engine_id = "b"}, {1});
  ASSERT_THAT(sent_, SizeIs(1));
  EXPECT_EQ(sent_[0].session, SessionId{2});
}

TEST_F(DirectiveDeskTest, OfNothingTheAnswerComesAtOnce) {
  Give({}, {1, 2});
  EXPECT_EQ(answer_, (Statuses{kMissing, kMissing}));
  EXPECT_THAT(sent_, IsEmpty());
}

TEST_F(DirectiveDeskTest, AnEngineThatTakesNoneOrEndsIsAnsweredFor) {
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

TEST_F(DirectiveDeskTest, OneThatHangsIsPendingAndItsLateAnswerIsPassedOver) {
  Has(1, "a", {D(1)});
  Give({}, {1});
  desk_.Tick(clock_.Now() + DirectiveDesk::kPatience - std::chrono::milliseconds(1));
  EXPECT_FALSE(answer_.has_value());
  desk_.Tick(clock_.Now() + DirectiveDesk::kPatience);
  EXPECT_EQ(answer_, (Statuses{BlockStatus::kPending}));
  EXPECT_EQ(counters_.directives_unanswered.value(), 1u);
  Done(0, {kOk});
  EXPECT_EQ(counters_.directives_done.value(), 0u);
}

// One that is stopped takes no more memory, however often it is asked.
TEST_F(DirectiveDeskTest, OneThatOwesTooMuchIsNotAsked) {
  Has(1, "a", {D(1)});
  const auto most = DirectiveDesk::kOwedMax / (1 + DirectiveDesk::kOwedOfDirective);
  for (size_t i = 0; i < most + 10; ++i) {
    answer_.reset();
    Give({}, {1});
    clock_.Advance(DirectiveDesk::kPatience);
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

TEST_F(DirectiveDeskTest, AtTheEndAllAreAnswered) {
  Has(1, "a", {D(1)});
  Give({}, {1});
  desk_.EndAll();
  EXPECT_EQ(answer_, (Statuses{BlockStatus::kPending}));
  answer_.reset();
  Give({}, {1});
  EXPECT_EQ(answer_, (Statuses{BlockStatus::kPending}));
  EXPECT_THAT(sent_, SizeIs(1));
}

TEST_F(DirectiveDeskTest, WhatNoEngineMaySayIsUnsupported) {
  Has(1, "a", {D(1)});
  Give({}, {1});
  Done(0, {BlockStatus::kDuplicate});
  EXPECT_EQ(answer_, (Statuses{BlockStatus::kUnsupported}));
}

TEST_F(DirectiveDeskTest, NonsenseIsPassedOver) {
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

TEST_F(DirectiveDeskTest, ManyBlocksTravelInPieces) {
  std::vector<Digest> digests;
  std::vector<DirectiveDesk::Block> blocks;
  for (uint32_t n = 0; n < wire::kKeysMax + 1; ++n) {
    digests.push_back(D(n));
    blocks.emplace_back(kVariant, D(n));
  }
  Has(1, "a", digests);
  desk_.Give({}, blocks, [this](Statuses statuses) { answer_ = std::move(statuses); });
  ASSERT_THAT(sent_, SizeIs(2));
  Done(1, {kOk});
  Done(0, Statuses(wire::kKeysMax, kOk));
  EXPECT_EQ(answer_, Statuses(wire::kKeysMax + 1, kOk));
}

TEST_F(DirectiveDeskTest, AnOrderOfNoBlocksIsOneStatusASession) {
  const SessionId sessions[] = {SessionId{1}, SessionId{2}};
  desk_.GiveAll({.kind = wire::DirectiveKind::kUnpin, .owner = "o"}, sessions,
                [this](Statuses statuses) { answer_ = std::move(statuses); });
  ASSERT_THAT(sent_, SizeIs(2));
  Done(0, {});
  desk_.Tick(clock_.Now() + DirectiveDesk::kPatience);
  EXPECT_EQ(answer_, (Statuses{kOk, BlockStatus::kPending}));
}

}  // namespace
}  // namespace larder
