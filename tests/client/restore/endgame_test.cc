// The last few cells: the exact optimum if the costs are known, and the choice of least regret if
// they are not.
#include "client/restore/stage/endgame.h"

#include <gtest/gtest.h>

#include <random>

#include "client/restore/staircase.h"

namespace larder {
namespace {

// Chunks of which nothing is computed or loaded yet, on one lane, one block each.
Endgame Untouched(uint16_t layers, const std::vector<std::pair<double, double>>& costs) {
  Endgame game{.layers = layers, .lanes = 1, .busy_s = {0, 0}};
  for (const auto& [compute_s, load_s] : costs) {
    Endgame::Chunk chunk{.high = layers, .layer_s = compute_s / layers};
    for (int depth = 0; depth <= layers; ++depth)
      chunk.loads_s.push_back(load_s * (layers - depth) / layers);
    chunk.piece_top = {layers};
    chunk.piece_s = {load_s / layers};
    game.chunks.push_back(chunk);
  }
  return game;
}

TEST(Endgame, FindsTheBestOfAllStaircases) {
  std::mt19937_64 random(1);
  const auto real = [&] { return std::uniform_real_distribution<double>(0.1, 1)(random); };
  for (int i = 0; i < 300; ++i) {
    const auto layers = static_cast<uint16_t>(1 + random() % 5);
    const size_t chunks = 1 + random() % 4;
    std::vector<std::pair<double, double>> costs;
    PlanInput input{.layers = layers};
    for (size_t c = 0; c < chunks; ++c) {
      costs.emplace_back(real(), real());
      input.chunks.push_back({costs.back().first, {{ChannelId{1}, costs.back().second}}});
    }
    const EndgameAim aim = Solve(Untouched(layers, costs));
    EXPECT_NEAR(CostOf(input, aim.depths).seconds(), BestStaircase(input)->seconds, 3e-3);
  }
}

TEST(Endgame, IsLimitedByTheNumberOfStaircases) {
  EXPECT_TRUE(IsEndgame(2, 30));
  EXPECT_FALSE(IsEndgame(2, 31));
  EXPECT_TRUE(IsEndgame(12, 3));
  EXPECT_FALSE(IsEndgame(1'000'000, 128));
  EXPECT_FALSE(IsEndgame(0, 4));
}

TEST(Endgame, StartsWithMovesThatAreRightInAnyCase) {
  Endgame game = Untouched(2, {{1, 1}, {1, 1}});
  game.doubt = 0.3;
  const EndgameAim aim = Solve(game);
  EXPECT_EQ(aim.compute, 0u);
  EXPECT_EQ(aim.loads[0], 1u);
  EXPECT_FALSE(aim.waits[0]);
}

// Either one layer of each chunk should be loaded or all of the second: this depends on the speed
// of computing, which has not been measured.
TEST(Endgame, WaitsForAReportIfTheNextLoadMayBeWrong) {
  Endgame game = Untouched(2, {{0.28, 0.43}, {0.153, 0.2155}});
  game.chunks[0].low = 1;
  game.chunks[0].loads_s = {0.2155, 0};
  game.chunks[1].high = 1;
  game.chunks[1].loads_s = {0.1078, 0};
  game.chunks[1].piece_top = {1};
  game.busy_s = {0.14, 0.1078};
  EXPECT_FALSE(Solve(game).waits[0]);
  game.doubt = 0.3;
  EXPECT_TRUE(Solve(game).waits[0]);
  game.busy_s[1] = 0;
  EXPECT_FALSE(Solve(game).waits[0]);
  EXPECT_TRUE(Solve(game).loads[0].has_value());
}

TEST(Endgame, ALaneWithoutLoadsGetsNone) {
  Endgame game = Untouched(2, {{1, 1}});
  game.chunks[0].piece_top = {0};
  EXPECT_FALSE(Solve(game).loads[0].has_value());
}

}  // namespace
}  // namespace larder
