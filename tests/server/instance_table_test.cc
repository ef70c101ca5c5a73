#include "server/instance_table.h"

#include <gtest/gtest.h>

#include "tests/storage/store_fixture.h"

namespace larder {
namespace {

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
    return table_.Lookup(Content().Id(), chain_, engine);
  }

  StoreFixture f_;
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
  EXPECT_EQ(host.ranges, (std::vector<TokenRange>{{0, 32}, {64, 96}}));  // also behind the hole
  EXPECT_EQ(host.bytes, KiB(16));                                        // two blocks of two ranks
  EXPECT_DOUBLE_EQ(host.load_s, 16384 / 1e9);
}

TEST_F(InstanceTableTest, GroupsMayHaveOtherBlockSizes) {
  const ContentSpec content = Content();
  std::vector<VariantSpec> variants = {Variant(0, 1, 16), Variant(0, 1, 64)};
  variants[1].group = "sliding";
  const auto index = table_.Register("e", {&content, 1}, variants);
  ASSERT_TRUE(index.ok());
  for (size_t step = 0; step < 10; ++step) Store((*index)[0], step);
  Store((*index)[1], 3);
  EXPECT_EQ(Lookup().at(0).tiers.at(0).ranges, (std::vector<TokenRange>{{0, 64}}));
}

TEST_F(InstanceTableTest, TailOfAPartialBlockIsNotCounted) {
  const ContentSpec content = Content();
  const VariantSpec variant = Variant(0, 1, 64);
  const auto index = table_.Register("e", {&content, 1}, {&variant, 1});
  Store((*index)[0], 3);
  Store((*index)[0], 7);
  EXPECT_EQ(Lookup().at(0).tiers.at(0).contiguous, TokenCount(128));  // 160 tokens asked
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
  EXPECT_TRUE(table_.Lookup(Content("other").Id(), chain_, "").empty());
}

TEST_F(InstanceTableTest, RefusedVariantsUseUpNoNumbers) {
  std::vector<VariantSpec> variants(1025, Variant(0, 1));
  for (uint32_t i = 0; i < variants.size(); ++i) variants[i].first_layer = i;
  EXPECT_TRUE(absl::IsResourceExhausted(table_.Register("e", {}, variants).status()));
  EXPECT_FALSE(f_.store().index().FindVariant(variants[7].Id()));
}

TEST_F(InstanceTableTest, EnginesAreLimitedAlsoByTheirSessions) {
  for (int i = 0; i < 4096; ++i) ASSERT_TRUE(table_.SessionBegan(std::to_string(i), {}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(table_.SessionBegan("more", {})));
  EXPECT_TRUE(table_.SessionBegan("7", {}).ok());
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
