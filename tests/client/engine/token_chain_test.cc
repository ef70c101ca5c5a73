#include "client/engine/token_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/test_scale.h"

namespace larder {
namespace {

Digest Seed() {
  ContentSpec content;
  content.tenant = "t";
  content.model = "m";
  return content.Id();
}

// However the tokens come, the digests are those of the whole chain.
TEST(TokenChain, GrowsAsTheWholeChain) {
  std::mt19937 random(testing::TestSeed());
  for (int round = 0; round < 200; ++round) {
    std::vector<uint32_t> tokens(random() % 500);
    for (uint32_t& token : tokens) token = static_cast<uint32_t>(random());
    TokenChain chain(Seed());
    for (size_t at = 0; at < tokens.size();) {
      const size_t some = std::min<size_t>(1 + random() % 40, tokens.size() - at);
      if (random() % 2 == 0) {
        chain.Append(std::span(tokens).subspan(at, some));
      } else {
        chain.Extend(at / 2, std::span(tokens).subspan(at / 2, at - at / 2 + some));
        chain.Extend(0, std::span(tokens).first(at));  // nothing new
      }
      at += some;
    }
    ASSERT_TRUE(std::ranges::equal(chain.tokens(), tokens));
    ASSERT_TRUE(std::ranges::equal(chain.steps(), Chain(Seed(), tokens)));
  }
}

TEST(TokenChain, NamesBlocksOfAnySize) {
  std::vector<uint32_t> tokens(16 * 9 + 5);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = i;
  TokenChain chain(Seed());
  chain.Append(tokens);
  for (const uint32_t block_tokens : {16u, 48u}) {
    Digest parent = Seed();
    const size_t blocks = chain.Blocks(block_tokens);
    EXPECT_EQ(blocks, tokens.size() / block_tokens);
    for (size_t block = 0; block < blocks; ++block) {
      EXPECT_EQ(chain.ParentOf(block, block_tokens), parent);
      EXPECT_EQ(chain.TokensOf(block, block_tokens).front(), block * block_tokens);
      parent = chain.DigestOf(block, block_tokens);
      EXPECT_EQ(
          Chain(chain.ParentOf(block, block_tokens), chain.TokensOf(block, block_tokens)).back(),
          parent);
    }
  }
}

}  // namespace
}  // namespace larder
