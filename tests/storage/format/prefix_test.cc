#include "storage/format/prefix.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/test_scale.h"

namespace larder {
namespace {

GroupRule Rule(GroupKind kind, uint32_t block_tokens, uint32_t window = 0) {
  return {kind, block_tokens, window};
}

TEST(Prefix, NeededBlocksCoverWhatTheKindAsksFor) {
  EXPECT_EQ(NeededBlocks(Rule(GroupKind::kFull, 32), 5), (BlockRange{0, 5}));
  EXPECT_EQ(NeededBlocks(Rule(GroupKind::kState, 32), 5), (BlockRange{4, 5}));
  EXPECT_EQ(NeededBlocks(Rule(GroupKind::kState, 32), 0), (BlockRange{0, 0}));
  EXPECT_EQ(NeededBlocks(Rule(GroupKind::kWindow, 32, 64), 5), (BlockRange{3, 5}));
  EXPECT_EQ(NeededBlocks(Rule(GroupKind::kWindow, 32, 65), 5), (BlockRange{2, 5}));
  EXPECT_EQ(NeededBlocks(Rule(GroupKind::kWindow, 32, 1), 5), (BlockRange{4, 5}));
  EXPECT_EQ(NeededBlocks(Rule(GroupKind::kWindow, 32, 1'000), 5), (BlockRange{0, 5}));
  EXPECT_EQ(NeededBlocks(Rule(GroupKind::kUnknown, 32), 5), (BlockRange{0, 0}));
}

// The definition, token by token.
bool Serves(const GroupRule& rule, const std::vector<char>& present, uint32_t tokens) {
  if (rule.kind == GroupKind::kUnknown || tokens % rule.block_tokens != 0) return false;
  uint32_t from = 0;
  if (rule.kind == GroupKind::kWindow && tokens > rule.window_tokens)
    from = tokens - rule.window_tokens;
  if (rule.kind == GroupKind::kState) from = tokens - 1;
  for (uint32_t token = from; token < tokens; ++token) {
    const size_t block = token / rule.block_tokens;
    if (block >= present.size() || present[block] == 0) return false;
  }
  return true;
}

TEST(Prefix, AgreesWithTheDefinition) {
  std::mt19937 random(testing::TestSeed());
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  constexpr GroupKind kKinds[] = {GroupKind::kFull, GroupKind::kWindow, GroupKind::kState,
                                  GroupKind::kUnknown};
  for (uint64_t round = 0; round < testing::Scaled(20'000); ++round) {
    const size_t steps = below(40);
    std::vector<GroupRule> rules(1 + below(3));
    std::vector<std::vector<char>> present;
    std::vector<char> ends(steps, 1);
    for (GroupRule& rule : rules) {
      rule = Rule(kKinds[below(20) == 0 ? 3 : below(3)], kStepTokens * (1 + below(4)));
      if (rule.kind == GroupKind::kWindow) rule.window_tokens = 1 + below(200);
      std::vector<char>& there =
          present.emplace_back(steps * kStepTokens / rule.block_tokens + below(2));
      for (char& one : there) one = below(8) != 0 ? 1 : 0;
      KeepServable(rule, there, &ends);
    }
    ASSERT_EQ(ends.size(), steps);
    for (uint32_t i = 0; i < steps; ++i) {
      bool all = true;
      for (size_t v = 0; v < rules.size(); ++v)
        all = all && Serves(rules[v], present[v], (i + 1) * kStepTokens);
      ASSERT_EQ(ends[i] != 0, all) << "after " << i + 1 << " steps, round " << round;
    }
  }
}

}  // namespace
}  // namespace larder
