#include "server/instances/instance_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/storage/store/store_fixture.h"

namespace larder {
namespace {

using ::testing::HasSubstr;
using testing::StoreFixture;

ContentSpec Content(const std::string& model = "m") {
  ContentSpec content;
  content.tenant = "default";
  content.model = model;
  return content;
}

VariantSpec Variant(uint32_t rank, uint32_t ranks, uint32_t block_tokens = 32) {
  VariantSpec v = testing::TestVariant(block_tokens);
  v.rank = rank;
  v.ranks = ranks;
  return v;
}

wire::InstanceSession Session(uint64_t id) {
  wire::InstanceSession session;
  session.session = SessionId{id};
  return session;
}

class InstanceTableTest : public ::testing::Test {
 protected:
  // Stores the block of `variant` that ends after step `step` of the chain.
  void Store(VariantIndex variant, size_t step, uint32_t pages = 1) {
    BlockIndex::NewBlock block;
    block.variant = variant;
    block.digest = chain_[step];
    const ByteCount bytes(pages * kPageBytes);
    auto reserved = f_.store().Reserve({&bytes, 1}, GiB(1));
    ASSERT_EQ(reserved.status, BlockStatus::kOk);
    SegmentTable table = UniformTable(1, static_cast<uint32_t>(bytes.value()));
    ASSERT_EQ(f_.store().Publish(reserved.reservation, 0, {variant, chain_[step], {}, {}, &table}),
              BlockStatus::kOk);
  }
  std::vector<wire::InstanceHit> Lookup(std::string_view engine = "") {
    return table_.Lookup(Content(), chain_, engine);
  }

  // The table returns what it holds of them when it is destroyed, after the body of a test.
  Shares& MakeShares(const Shares::Limits& limits) { return shares_.emplace_back(limits); }

  StoreFixture f_;
  std::deque<Shares> shares_;
  InstanceTable table_{f_.store(), f_.clock(), {{Tier::kHost, 1e9}, {Tier::kDisk, 1e8}}};
  std::vector<Digest> chain_ = Chain(Content().Id(), testing::TestTokens(1, 160));  // 10 steps
};

TEST_F(InstanceTableTest, AnswersTheMinimumOverRanks) {
  const ContentSpec content = Content();
  const std::vector<VariantSpec> variants = {Variant(0, 2), Variant(1, 2)};
  const auto index = table_.Register("e", {&content, 1}, variants);
  ASSERT_TRUE(index.ok());
  for (const size_t step : {1, 3, 5}) Store((*index)[0], step);
  EXPECT_TRUE(Lookup().empty());  // rank 1 has nothing
  for (const size_t step : {1, 5}) Store((*index)[1], step);
  const auto hits = Lookup();
  ASSERT_EQ(hits.size(), 1u);
  const wire::TierHit& host = hits[0].tiers.at(0);
  EXPECT_EQ(host.contiguous, TokenCount(32));
  EXPECT_EQ(host.ranges, (std::vector<TokenRange>{{0, 32}, {64, 96}}));  // behind the hole as well
  EXPECT_EQ(host.bytes, KiB(16));                                        // two blocks of two ranks
  EXPECT_DOUBLE_EQ(host.load_s, 16384 / 1e9);
}

TEST_F(InstanceTableTest, GroupsMayHaveDifferentBlockSizes) {
  const ContentSpec content = Content();
  std::vector<VariantSpec> variants = {Variant(0, 1, 16), Variant(0, 1, 64)};
  variants[1].group = "sliding";
  const auto index = table_.Register("e", {&content, 1}, variants);
  ASSERT_TRUE(index.ok());
  for (size_t step = 0; step < 10; ++step) Store((*index)[0], step);
  Store((*index)[1], 3);
  EXPECT_EQ(Lookup().at(0).tiers.at(0).ranges, (std::vector<TokenRange>{{0, 64}}));
}

// Full attention needs all blocks of a prefix, a window the last ones, recurrent layers the last.
TEST_F(InstanceTableTest, TheAnswerIsTheLongestPrefixThatAllGroupsCanServe) {
  const ContentSpec content = Content();
  VariantSpec full = Variant(0, 1, 16), window = Variant(0, 1, 16), state = Variant(0, 1, 32);
  window.group = "sliding";
  window.kind = GroupKind::kWindow;
  window.window_tokens = 40;  // three blocks of 16
  state.group = "state";
  state.kind = GroupKind::kState;
  const auto index = table_.Register("e", {&content, 1}, std::vector{full, window, state});
  ASSERT_TRUE(index.ok()) << index.status();
  for (const size_t step : {0, 1, 2, 3, 4, 5, 6, 7, 8}) Store((*index)[0], step);
  for (const size_t step : {3, 4, 5, 6, 7}) Store((*index)[1], step);
  EXPECT_TRUE(Lookup().empty()) << "there is no state";
  Store((*index)[2], 9);
  EXPECT_TRUE(Lookup().empty()) << "full attention lacks step 9";
  Store((*index)[2], 5);
  const wire::TierHit host = Lookup().at(0).tiers.at(0);
  EXPECT_EQ(host.contiguous, TokenCount(96)) << "6 steps: the state after step 5";
  EXPECT_EQ(host.ranges, (std::vector<TokenRange>{{0, 96}}));
  EXPECT_EQ(host.bytes, ByteCount((6 + 3 + 1) * kPageBytes));
  EXPECT_DOUBLE_EQ(host.load_s, 10 * 4096 / 1e9);
  ASSERT_TRUE(f_.store().Drop((*index)[1], chain_[4]));
  EXPECT_TRUE(Lookup().empty()) << "a hole in the window";
  Store((*index)[2], 7);
  EXPECT_EQ(Lookup().at(0).tiers.at(0).contiguous, TokenCount(128)) << "the hole is further back";
}

// A client that is newer than the daemon may have groups that the daemon does not know.
TEST_F(InstanceTableTest, NothingIsFoundForAnUnknownKind) {
  const ContentSpec content = Content();
  VariantSpec full = Variant(0, 1), unknown = Variant(0, 1);
  unknown.group = "other";
  unknown.kind = GroupKind::kUnknown;
  const auto index = table_.Register("e", {&content, 1}, std::vector{full, unknown});
  ASSERT_TRUE(index.ok());
  for (const VariantIndex variant : *index) Store(variant, 1);
  EXPECT_TRUE(Lookup().empty());
  unknown.kind = GroupKind::kState;
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Register("e", {}, {&unknown, 1}).status()))
      << "the same blocks cannot have another kind";
}

TEST_F(InstanceTableTest, TailOfAPartialBlockIsNotCounted) {
  const ContentSpec content = Content();
  const VariantSpec variant = Variant(0, 1, 64);
  const auto index = table_.Register("e", {&content, 1}, {&variant, 1});
  Store((*index)[0], 3);
  Store((*index)[0], 7);
  EXPECT_EQ(Lookup().at(0).tiers.at(0).contiguous, TokenCount(128));  // 160 tokens were asked for
}

TEST_F(InstanceTableTest, DetachedEnginesAnswerWhileBlocksAreStored) {
  const ContentSpec content = Content();
  const VariantSpec variant = Variant(0, 1);
  const auto index = table_.Register("e", {&content, 1}, {&variant, 1});
  wire::InstanceSession session;
  session.session = SessionId{5};
  ASSERT_TRUE(table_.SessionBegan("e", session).ok());
  Store((*index)[0], 1);
  EXPECT_TRUE(Lookup().at(0).attached);
  table_.SessionEnded("e", SessionId{5});
  table_.Collect();
  ASSERT_EQ(Lookup().size(), 1u);
  EXPECT_FALSE(Lookup()[0].attached);
  ASSERT_TRUE(f_.store().Drop((*index)[0], chain_[1]));
  table_.Collect();
  EXPECT_TRUE(table_.List().empty());
}

TEST_F(InstanceTableTest, BestInstanceFirstAndFilterByEngine) {
  const ContentSpec content = Content();
  const VariantSpec small = Variant(0, 1);
  VariantSpec large = Variant(0, 1);
  large.dtype = "bf16";
  const auto a = table_.Register("a", {&content, 1}, {&small, 1});
  const auto b = table_.Register("b", {&content, 1}, {&large, 1});
  Store((*a)[0], 1);
  Store((*b)[0], 1);
  Store((*b)[0], 3);
  EXPECT_EQ(Lookup().at(0).engine_id, "b");
  EXPECT_EQ(Lookup("a").size(), 1u);
  EXPECT_TRUE(Lookup("c").empty());
  EXPECT_TRUE(table_.Lookup(Content("other"), chain_, "").empty());
}

TEST_F(InstanceTableTest, RefusedVariantsUseUpNoNumbers) {
  std::vector<VariantSpec> variants(1025, Variant(0, 1));
  for (uint32_t i = 0; i < variants.size(); ++i) variants[i].first_layer = i;
  EXPECT_TRUE(absl::IsResourceExhausted(table_.Register("e", {}, variants).status()));
  EXPECT_FALSE(f_.store().index().FindVariant(variants[7].Id()));
}

TEST_F(InstanceTableTest, SessionsOfNewEnginesAreLimitedToo) {
  for (int i = 0; i < 4096; ++i) ASSERT_TRUE(table_.SessionBegan(std::to_string(i), {}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table_.SessionBegan("more", {})));
  EXPECT_TRUE(table_.SessionBegan("7", {}).ok());
}

// An engine id is a name and proves nothing: a second user that uses it can work, but what that
// user registers is not attributed to the engine.
class EngineIdTest : public InstanceTableTest {
 protected:
  EngineIdTest() {
    table_.SetOnOther([this](const std::string& who, const std::string& what) {
      told_.push_back(who + ": " + what);
    });
    table_.SetOnChange([this](const std::string& engine_id) { changed_.push_back(engine_id); });
  }
  [[nodiscard]] bool Register(const ContentSpec& content, const VariantSpec& variant,
                              const Shares::Account& who) {
    return table_.Register("e", {&content, 1}, {&variant, 1}, &who).ok();
  }
  std::vector<std::string> Models() {
    std::vector<std::string> models;
    for (const ContentSpec& content : table_.Find("e").contents) models.push_back(content.model);
    return models;
  }

  // The owner of the engine has no session and does not come back in time.
  void StayAway() {
    f_.clock().Advance(InstanceTable::kOwnerReturns);
    table_.Collect();
  }

  Shares shares_{Shares::LimitsOf({})};
  const Shares::Account first_ = shares_.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  const Shares::Account again_ = shares_.Of({.uid = 1000, .process = ProcessId{2}, .pid = 12});
  const Shares::Account other_ = shares_.Of({.uid = 1001, .process = ProcessId{3}, .pid = 13});
  const Shares::Account unknown_ = shares_.Of({});
  const ContentSpec content_ = Content(), poison_ = Content("poison");
  const VariantSpec variant_ = Variant(0, 1), rank_ = Variant(1, 2);
  std::vector<std::string> told_, changed_;
};

TEST_F(EngineIdTest, RegistrationsOfOtherUsersAreNotAttributedToAnOwnedEngine) {
  ASSERT_TRUE(table_.SessionBegan("e", Session(1), &first_).ok());
  ASSERT_TRUE(Register(content_, variant_, first_));
  EXPECT_TRUE(table_.SessionBegan("e", Session(2), &again_).ok());
  EXPECT_TRUE(table_.IsOf("e", again_));
  EXPECT_TRUE(told_.empty());
  uint64_t id = 3;
  for (const Shares::Account* const who : {&other_, &unknown_}) {
    told_.clear();
    EXPECT_TRUE(table_.SessionBegan("e", Session(id++), who).ok())
        << "the other user's session works all the same";
    ASSERT_EQ(told_.size(), 1u);
    EXPECT_THAT(told_[0],
                HasSubstr("engine id 'e' is used by " +
                          ShareHolder{.uid = who->holder().uid, .process = {}}.ToString() +
                          " while it belongs to uid 1000"));
    EXPECT_TRUE(Register(content_, variant_, *who));
    EXPECT_TRUE(Register(poison_, rank_, *who));
    EXPECT_FALSE(table_.IsOf("e", *who));
  }
  EXPECT_EQ(Models(), std::vector{content_.model});
  EXPECT_EQ(table_.Find("e").variants.size(), 1u) << "a further variant would hide what is stored";
  EXPECT_EQ(table_.Find("e").sessions.size(), 4u) << "an operator sees all sessions";
  EXPECT_EQ(changed_, std::vector<std::string>{"e"})
      << "registrations of other users are not saved to disk";
}

TEST_F(EngineIdTest, RegistrationsOfOtherUsersAreBoundedAndChargedToThem) {
  ASSERT_TRUE(table_.SessionBegan("e", Session(1), &first_).ok());
  ASSERT_TRUE(table_.SessionBegan("e", Session(2), &other_).ok());
  const uint64_t before = shares_.held(ShareKind::kContents);
  size_t taken = 0;
  while (Register(Content("c" + std::to_string(taken)), variant_, other_)) ++taken;
  EXPECT_EQ(taken, 64u);
  EXPECT_EQ(shares_.held(ShareKind::kContents), before + 64);
  EXPECT_EQ(other_.OfUid().held(ShareKind::kEngines), 1u);
  table_.SessionEnded("e", SessionId{2});
  EXPECT_EQ(shares_.held(ShareKind::kContents), before);
  EXPECT_EQ(other_.OfUid().held(ShareKind::kEngines), 0u);
}

// A byte stream registers without a session.  Only its blocks remain, and an operator can find
// them.
TEST_F(EngineIdTest, AnotherUsersRegistrationWithoutASessionIsNotKept) {
  ASSERT_TRUE(table_.SessionBegan("e", Session(1), &first_).ok());
  ASSERT_TRUE(Register(content_, variant_, first_));
  EXPECT_TRUE(Register(poison_, rank_, other_));
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_EQ(Models(), std::vector{content_.model});
  EXPECT_EQ(shares_.held(ShareKind::kContents), 1u);
  const VariantIndex stored = *f_.store().index().FindVariant(rank_.Id());
  EXPECT_EQ(std::ranges::count(table_.VariantsOf(""), stored), 0);
  Store(stored, 0);
  EXPECT_EQ(std::ranges::count(table_.VariantsOf(""), stored), 1);
}

TEST_F(EngineIdTest, PassesToAnotherUserWhenItsOwnerHasNoSessionLeft) {
  ASSERT_TRUE(table_.SessionBegan("e", Session(1), &first_).ok());
  ASSERT_TRUE(table_.SessionBegan("e", Session(2), &again_).ok());
  ASSERT_TRUE(Register(content_, variant_, first_));
  ASSERT_TRUE(table_.SessionBegan("e", Session(3), &other_).ok());
  ASSERT_TRUE(Register(poison_, rank_, other_));
  table_.SessionEnded("e", SessionId{1});
  EXPECT_FALSE(table_.IsOf("e", other_));
  changed_.clear();
  table_.SessionEnded("e", SessionId{2});
  table_.Collect();
  EXPECT_TRUE(table_.IsOf("e", first_)) << "the owner may still come back";
  StayAway();
  EXPECT_TRUE(table_.IsOf("e", other_));
  EXPECT_FALSE(table_.IsOf("e", first_));
  EXPECT_EQ(Models(), std::vector{poison_.model})
      << "the new owner's registration replaces the former one";
  EXPECT_EQ(table_.Find("e").variants.size(), 1u);
  EXPECT_EQ(changed_, std::vector<std::string>{"e"});
  EXPECT_EQ(first_.OfUid().held(ShareKind::kContents), 0u);
  // The id passes back to the first user, whatever the other user had registered.
  ASSERT_TRUE(table_.SessionBegan("e", Session(4), &first_).ok());
  ASSERT_TRUE(Register(content_, variant_, first_));
  table_.SessionEnded("e", SessionId{3});
  StayAway();
  EXPECT_TRUE(table_.IsOf("e", first_));
  EXPECT_EQ(Models(), std::vector{content_.model});
  EXPECT_EQ(other_.OfUid().held(ShareKind::kContents), 0u);
  EXPECT_EQ(other_.OfUid().held(ShareKind::kEngines), 0u);
}

// The user that owned the id when a daemon ended owns it in the next daemon, if that user comes
// back.
TEST_F(EngineIdTest, BelongsToItsFormerOwnerAfterARestart) {
  ASSERT_TRUE(table_.Register("e", {&content_, 1}, {&variant_, 1}).ok());
  EXPECT_EQ(table_.OwnerOf("e"), std::nullopt);
  table_.ExpectOwner("e", 1000);
  EXPECT_EQ(table_.OwnerOf("e"), 1000);
  ASSERT_TRUE(table_.SessionBegan("e", Session(1), &other_).ok());
  EXPECT_FALSE(table_.IsOf("e", other_));
  ASSERT_TRUE(table_.SessionBegan("e", Session(2), &first_).ok());
  EXPECT_TRUE(table_.IsOf("e", first_));
  StayAway();
  EXPECT_TRUE(table_.IsOf("e", first_)) << "the owner has a session";
  table_.SessionEnded("e", SessionId{2});
  StayAway();
  EXPECT_TRUE(table_.IsOf("e", other_));
}

// After a restart, the first user that attaches to an id without an owner takes over what is known
// of the engine, as long as that user has a session.
TEST_F(EngineIdTest, AnIdWithoutAnOwnerCanBeTakenAndPassesOn) {
  ASSERT_TRUE(table_.Register("e", {&content_, 1}, {&variant_, 1}).ok());
  Store(*f_.store().index().FindVariant(variant_.Id()), 0);
  ASSERT_TRUE(table_.SessionBegan("e", Session(1), &other_).ok());
  EXPECT_TRUE(table_.SessionBegan("e", Session(2), &first_).ok());
  table_.SessionEnded("e", SessionId{1});
  StayAway();
  EXPECT_TRUE(table_.IsOf("e", first_)) << "blocks of the engine are stored";
  EXPECT_EQ(Models(), std::vector{content_.model})
      << "the registration stays until the new owner registers something";
  ASSERT_TRUE(Register(poison_, variant_, first_));
  EXPECT_EQ(Models(), std::vector{poison_.model});
}

TEST_F(EngineIdTest, RegistrationsOfSessionsThatOverlapAreMerged) {
  ASSERT_TRUE(table_.SessionBegan("e", Session(1), &first_).ok());
  ASSERT_TRUE(Register(content_, variant_, first_));
  ASSERT_TRUE(table_.SessionBegan("e", Session(2), &again_).ok());
  table_.SessionEnded("e", SessionId{1});
  ASSERT_TRUE(Register(poison_, rank_, again_));
  EXPECT_EQ(Models().size(), 2u);
  EXPECT_TRUE(told_.empty());
}

// The engine may have come back with another block size, dtype or number of ranks.
TEST_F(EngineIdTest, TheFirstSessionBeginsANewRegistration) {
  ASSERT_TRUE(table_.SessionBegan("e", Session(1), &first_).ok());
  ASSERT_TRUE(Register(content_, rank_, first_));
  const uint64_t held = shares_.held(ShareKind::kVariants);
  table_.SessionEnded("e", SessionId{1});
  ASSERT_TRUE(table_.SessionBegan("e", Session(2), &again_).ok());
  EXPECT_EQ(Models(), std::vector{content_.model})
      << "the former one stays until the next Register";
  ASSERT_TRUE(Register(content_, variant_, again_));
  EXPECT_EQ(table_.Find("e").variants, std::vector{variant_});
  EXPECT_EQ(shares_.held(ShareKind::kVariants), held);
  EXPECT_EQ(first_.OfUid().held(ShareKind::kEngines), 1u);
  Store(*f_.store().index().FindVariant(variant_.Id()), 1);
  ASSERT_EQ(Lookup().size(), 1u) << "no variant of the former registration hides the block";
  // Another process attaches between two registers of the same life.
  ASSERT_TRUE(table_.SessionBegan("e", Session(3), &first_).ok());
  ASSERT_TRUE(Register(content_, rank_, first_));
  EXPECT_EQ(table_.Find("e").variants.size(), 2u);
}

// A user that has used up its share can still come back: the former registration's place is free.
TEST_F(EngineIdTest, ANewRegistrationUsesTheShareOfTheFormer) {
  Shares::Limits limits = Shares::LimitsOf({});
  limits[static_cast<size_t>(ShareKind::kVariants)].all = 1;
  Shares& shares = MakeShares(limits);
  const Shares::Account who = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  for (uint64_t life = 1; life < 4; ++life) {
    ASSERT_TRUE(table_.SessionBegan("e", Session(life), &who).ok());
    EXPECT_TRUE(Register(content_, Variant(0, 1, 32 * static_cast<uint32_t>(life)), who));
    EXPECT_FALSE(Register(content_, rank_, who)) << "the share is used up";
    table_.SessionEnded("e", SessionId{life});
  }
}

TEST_F(InstanceTableTest, OneUidGetsItsShareAndCollectReleasesIt) {
  Shares& shares = MakeShares(Shares::LimitsOf({}));
  const Shares::Account greedy = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  const Shares::Account victim = shares.Of({.uid = 1001, .process = ProcessId{2}, .pid = 12});
  absl::Status status;
  int engines = 0;
  for (; status.ok(); ++engines)
    status = table_.Register(absl::StrCat("e", engines), {}, {}, &greedy).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message().substr(0, 36), "share of engines: uid 1000 holds 307");
  EXPECT_EQ(engines - 1, 3072);
  const ContentSpec content = Content();
  const VariantSpec variant = Variant(0, 1);
  EXPECT_TRUE(table_.Register("victim", {&content, 1}, {&variant, 1}, &victim).ok());
  EXPECT_EQ(shares.held(ShareKind::kContents), 1u);
  EXPECT_EQ(shares.held(ShareKind::kVariants), 1u);
  table_.Collect();
  EXPECT_EQ(shares.held(ShareKind::kEngines), 0u);
  EXPECT_EQ(shares.held(ShareKind::kContents), 0u);
}

// Numbers are never released: a uid that used up its share of them gets no more, and another uid
// still does.
TEST_F(InstanceTableTest, OneUidDoesNotTakeAllNumbers) {
  Shares& shares = MakeShares(Shares::LimitsOf({}));
  const Shares::Account greedy = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  const Shares::Account victim = shares.Of({.uid = 1001, .process = ProcessId{2}, .pid = 12});
  std::vector<VariantSpec> some(1000, Variant(0, 1));
  absl::Status status;
  uint32_t next = 0;
  for (int round = 0; status.ok() && round < 70; ++round) {
    for (VariantSpec& variant : some) variant.first_layer = next++;
    status = table_.Register("greedy", {}, some, &greedy).status();
    table_.Collect();  // drops the registration but not its numbers
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(shares.held(ShareKind::kVariants), 0u);
  VariantSpec mine = Variant(0, 1);
  mine.layout = "victim/1/any";
  EXPECT_TRUE(table_.Register("victim", {}, {&mine, 1}, &victim).ok());
}

// A user who registers another user's content under many ids adds at most 64 engines to a Lookup,
// and no engine of the other user is left out.
TEST_F(InstanceTableTest, LookupAnswersForSomeEnginesOfEachUser) {
  Shares& shares = MakeShares(Shares::LimitsOf({}));
  const Shares::Account greedy = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  const Shares::Account victim = shares.Of({.uid = 1001, .process = ProcessId{2}, .pid = 12});
  const ContentSpec content = Content();
  const VariantSpec variant = Variant(0, 1);
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(table_.Register(absl::StrCat("a", i), {&content, 1}, {&variant, 1}, &greedy).ok());
  }
  ASSERT_TRUE(table_.SessionBegan("a77", Session(9), &greedy).ok());
  const auto index = table_.Register("victim", {&content, 1}, {&variant, 1}, &victim);
  ASSERT_TRUE(index.ok());
  Store((*index)[0], 1);
  std::vector<std::string> ids;
  for (const wire::InstanceHit& hit : Lookup()) ids.push_back(hit.engine_id);
  EXPECT_EQ(ids.size(), 65u);
  EXPECT_EQ(std::ranges::count(ids, "victim"), 1);
  EXPECT_EQ(std::ranges::count(ids, "a77"), 1) << "engines with sessions come first";
  EXPECT_EQ(Lookup("a499").size(), 1u) << "a caller that names an engine always gets it";
}

// Engines with different variants and with longer and shorter hits are looked up one after another;
// each gets its own answer.
TEST_F(InstanceTableTest, EnginesThatShareVariantsGetTheirOwnAnswers) {
  const ContentSpec content = Content();
  const std::vector<VariantSpec> ranks = {Variant(0, 2), Variant(1, 2)};
  const VariantSpec alone = Variant(0, 1, 16);
  const auto both = table_.Register("both", {&content, 1}, ranks);
  ASSERT_TRUE(table_.Register("first", {&content, 1}, {ranks.data(), 1}).ok());
  ASSERT_TRUE(table_.Register("second", {&content, 1}, {ranks.data() + 1, 1}).ok());
  const auto third = table_.Register("third", {&content, 1}, {&alone, 1});
  for (const size_t step : {1, 3, 5, 7, 9}) Store((*both)[0], step);
  for (const size_t step : {1, 3}) Store((*both)[1], step);
  for (size_t step = 0; step < 3; ++step) Store((*third)[0], step);
  std::map<std::string, TokenCount> hits;
  for (const wire::InstanceHit& hit : Lookup()) hits[hit.engine_id] = hit.tiers.at(0).contiguous;
  EXPECT_EQ(hits, (std::map<std::string, TokenCount>{{"both", TokenCount(64)},
                                                     {"first", TokenCount(160)},
                                                     {"second", TokenCount(64)},
                                                     {"third", TokenCount(48)}}));
}

TEST_F(InstanceTableTest, RepeatedRegistrationChangesNothing) {
  Shares& shares = MakeShares(Shares::LimitsOf({}));
  const Shares::Account who = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  int changes = 0;
  table_.SetOnChange([&](const std::string&) { ++changes; });
  const ContentSpec content = Content();
  const std::vector<VariantSpec> variants = {Variant(0, 2), Variant(1, 2)};
  const auto first = table_.Register("e", {&content, 1}, variants, &who);
  ASSERT_TRUE(first.ok());
  for (int i = 0; i < 3; ++i) {
    const auto again = table_.Register("e", {&content, 1}, variants, &who);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again, *first);
    EXPECT_TRUE(table_.Register("e", {}, {}, &who).ok());
  }
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(shares.held(ShareKind::kVariants), 2u);
}

// The disk space of registrations is shared as well: a uid that has used its share leaves the rest
// to other uids.
TEST_F(InstanceTableTest, OneUidDoesNotTakeAllDiskSpaceOfRegistrations) {
  Shares::Sizes sizes;
  sizes.registrations = KiB(256);
  Shares& shares = MakeShares(Shares::LimitsOf(sizes));
  const Shares::Account greedy = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  const Shares::Account victim = shares.Of({.uid = 1001, .process = ProcessId{2}, .pid = 12});
  std::vector<ContentSpec> long_ones(16, Content(std::string(200, 'm')));
  absl::Status status;
  for (int i = 0; status.ok() && i < 1'000; ++i) {
    for (size_t k = 0; k < long_ones.size(); ++k)
      long_ones[k].revision = absl::StrCat(i, "/", k, std::string(200, 'r'));
    status = table_.Register(absl::StrCat("greedy", i), long_ones, {}, &greedy).status();
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("share of registration_bytes: uid 1000"));
  const ContentSpec content = Content();
  EXPECT_TRUE(table_.Register("victim", {&content, 1}, {}, &victim).ok());
}

// A variant's number is never taken back, so a registration that needs more numbers than its user's
// share has left gets none.
TEST_F(InstanceTableTest, ARefusedRegistrationUsesUpNoNumbers) {
  Shares::Limits limits = Shares::LimitsOf({});
  limits[static_cast<size_t>(ShareKind::kNumbers)].all = 8;
  Shares& shares = MakeShares(limits);
  const Shares::Account who = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  const ContentSpec content = Content();
  std::vector<VariantSpec> variants;
  for (uint32_t rank = 0; rank < 10; ++rank) variants.push_back(Variant(rank, 10));
  const auto refused = table_.Register("e", {&content, 1}, variants, &who);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_EQ(shares.held(ShareKind::kNumbers), 0u);
  variants.resize(4);
  EXPECT_TRUE(table_.Register("e", {&content, 1}, variants, &who).ok());
  EXPECT_EQ(shares.held(ShareKind::kNumbers), 4u);
}

TEST_F(InstanceTableTest, AnUnavailableNumberIsNotCharged) {
  Shares& shares = MakeShares(Shares::LimitsOf({}));
  const Shares::Account who = shares.Of({.uid = 1000, .process = ProcessId{1}, .pid = 11});
  VariantSpec variant = Variant(0, 1);
  for (bool room = true; room; ++variant.first_layer) {
    room = f_.store().RegisterVariant(variant).ok();
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(absl::IsResourceExhausted(table_.Number(variant, &who).status()));
  }
  EXPECT_EQ(shares.held(ShareKind::kNumbers), 0u);
}

TEST_F(InstanceTableTest, PagesCoverAllEnginesAndAreBounded) {
  std::vector<ContentSpec> contents;
  for (int i = 0; i < 64; ++i) contents.push_back(Content(std::string(200, 'm')));
  for (size_t i = 0; i < contents.size(); ++i) contents[i].revision = std::to_string(i);
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(table_.Register(absl::StrCat("engine-", 10 + i), contents, {}).ok());
  std::vector<std::string> seen;
  std::string after;
  for (bool more = true; more;) {
    const InstanceTable::Page page = table_.List(after, 7, 100'000);
    ASSERT_FALSE(page.instances.empty());
    EXPECT_LE(page.instances.size(), 5u) << "each instance takes about 20 KB";
    for (const wire::InstanceInfo& info : page.instances) seen.push_back(info.engine_id);
    after = seen.back();
    more = page.more;
  }
  ASSERT_EQ(seen.size(), 40u);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(table_.List("", 7, SIZE_MAX).instances.size(), 7u);
  EXPECT_EQ(table_.List("", 7, 1).instances.size(), 1u)
      << "a page has at least one instance, however large";
  EXPECT_FALSE(table_.List("engine-49", 7, 1).more);
}

// Salts, LoRA names and multimodal parts have no limit: they are in the names of blocks.
TEST_F(InstanceTableTest, LookupAnswersForEveryContentOfAModel) {
  const VariantSpec variant = Variant(0, 1);
  int changes = 0;
  table_.SetOnChange([&](const std::string&) { ++changes; });
  ContentSpec content = Content();
  VariantIndex index = VariantIndex::kNone;
  for (int i = 0; i < 1'000; ++i) {
    content.salt = std::to_string(i);
    content.lora = std::to_string(i % 100);
    content.multimodal = std::to_string(i % 10);
    const auto registered = table_.Register("e", {&content, 1}, {&variant, 1});
    ASSERT_TRUE(registered.ok()) << registered.status();
    index = registered->front();
  }
  EXPECT_EQ(changes, 64) << "a content that List does not report is not written to disk";
  content.salt = "never registered";
  const std::vector<Digest> chain = Chain(content.Id(), testing::TestTokens(1, 160));
  EXPECT_TRUE(table_.Lookup(content, chain, "").empty());
  chain_ = chain;
  Store(index, 1);
  EXPECT_EQ(table_.Lookup(content, chain, "").size(), 1u);
  content.revision = "other";
  EXPECT_TRUE(table_.Lookup(content, chain, "").empty());
  const std::vector<ContentSpec> listed = table_.Find("e").contents;
  EXPECT_EQ(listed.size(), 64u);
  for (const ContentSpec& one : listed) EXPECT_EQ(one.salt + one.multimodal, "");
  // Further models take the places of LoRAs.
  for (int i = 0; i < 63; ++i) {
    const ContentSpec other = Content(absl::StrCat("other", i));
    ASSERT_TRUE(table_.Register("e", {&other, 1}, {}).ok()) << i;
  }
  EXPECT_EQ(table_.Find("e").contents.size(), 64u);
  EXPECT_EQ(table_.Lookup(Content(), chain, "").size(), 1u) << "one of each model stays";
  const ContentSpec more = Content("more");
  EXPECT_TRUE(absl::IsResourceExhausted(table_.Register("e", {&more, 1}, {}).status()));
}

TEST_F(InstanceTableTest, LimitsAreExact) {
  const VariantSpec variant = Variant(0, 1);
  std::vector<ContentSpec> contents;
  for (int i = 0; i < 64; ++i) contents.push_back(Content(std::to_string(i)));
  EXPECT_TRUE(table_.Register("e", contents, {&variant, 1}).ok());
  const ContentSpec one_more = Content("more");
  const auto over = table_.Register("e", {&one_more, 1}, {});
  EXPECT_TRUE(absl::IsResourceExhausted(over.status()));
  EXPECT_TRUE(table_.Register("e", contents, {}).ok());  // nothing new
  VariantSpec bad = variant;
  bad.block_tokens = 17;
  EXPECT_TRUE(absl::IsInvalidArgument(table_.Register("e", {}, {&bad, 1}).status()));
}

}  // namespace
}  // namespace larder
