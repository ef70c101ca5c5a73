// Solve (endgame.h): a depth-first search through all staircases, for each of three guesses at the
// costs.
#include "client/restore/stage/endgame.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace larder {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTie = 1e-3;        // weight of all work, to choose among equally fast staircases
constexpr double kRegretMax = 0.02;  // above it, a load waits while its lane is still busy

// Factors of the predicted costs of computing and loading.
struct Guess {
  double compute = 1, load = 1;
};

struct Best {
  double seconds = kNever;
  std::vector<uint16_t> depths = {};
};

class Search {
 public:
  Search(const Endgame& game, Guess guess)
      : game_(game), guess_(guess), sums_(game.chunks.size() + 1), depths_(game.chunks.size()) {}

  Best Run() {
    sums_[0] = game_.busy_s;
    for (auto& sums : sums_) sums.resize(game_.lanes + 1);
    sums_[0][0] *= guess_.compute;
    for (size_t k = 1; k <= game_.lanes; ++k) sums_[0][k] *= guess_.load;
    Try(0, game_.layers);
    return std::move(best_);
  }

 private:
  void Try(size_t i, uint16_t limit) {
    const std::vector<double>& sums = sums_[i];
    double seconds = *std::max_element(sums.begin(), sums.end());
    if (seconds >= best_.seconds) return;
    if (i == depths_.size()) {
      for (const double sum : sums) seconds += kTie * sum;
      if (seconds < best_.seconds) best_ = {seconds, depths_};
      return;
    }
    const Endgame::Chunk& chunk = game_.chunks[i];
    const int high = std::max(chunk.low, std::min(limit, chunk.high));
    for (int at = high; at >= chunk.low; --at) {
      const auto depth = static_cast<uint16_t>(at);
      std::vector<double>& next = sums_[i + 1];
      next[0] = sums[0] + guess_.compute * chunk.layer_s * (depth - chunk.low);
      for (size_t k = 0; k < game_.lanes; ++k)
        next[k + 1] = sums[k + 1] + guess_.load * chunk.LoadSeconds(depth, k, game_.lanes);
      depths_[i] = depth;
      const bool passes = depth == chunk.low && chunk.above_low_is_there;
      Try(i + 1, passes ? limit : std::min(limit, depth));
    }
  }

  const Endgame& game_;
  const Guess guess_;
  std::vector<std::vector<double>> sums_;  // sums_[i]: engine and lanes, for chunks [0, i)
  std::vector<uint16_t> depths_;
  Best best_;
};

// Returns the game after the engine was given the next layer of chunk `i`.
Endgame Computing(Endgame game, size_t i) {
  Endgame::Chunk& chunk = game.chunks[i];
  game.busy_s[0] += chunk.layer_s;
  ++chunk.low;
  chunk.above_low_is_there = false;
  chunk.loads_s.erase(chunk.loads_s.begin(),
                      chunk.loads_s.begin() + static_cast<std::ptrdiff_t>(game.lanes));
  return game;
}

// Returns the game after `lane` was given a load of one layer of a block of chunk `i`.
Endgame Loading(Endgame game, size_t i, size_t lane) {
  Endgame::Chunk& chunk = game.chunks[i];
  const double piece_s = chunk.piece_s[lane];
  game.busy_s[lane + 1] += piece_s;
  double left_s = 0;  // to load the rest of the piece's layer
  for (uint16_t depth = chunk.low; depth < chunk.piece_top[lane]; ++depth)
    chunk.loads_s[static_cast<size_t>(depth - chunk.low) * game.lanes + lane] -= piece_s;
  const auto below = static_cast<uint16_t>(chunk.piece_top[lane] - 1);
  for (size_t k = 0; k < game.lanes; ++k) left_s += chunk.LoadSeconds(below, k, game.lanes);
  if (left_s <= 1e-6 * piece_s) chunk.high = below;
  return game;
}

class Chooser {
 public:
  explicit Chooser(const Endgame& game) : game_(game) {
    const double by = 1 + game.doubt;
    guesses_ = {Guess{1, 1}, Guess{by, 1}, Guess{1, by}};
    for (size_t g = 0; g < guesses_.size(); ++g) best_[g] = Search(game, guesses_[g]).Run();
  }

  [[nodiscard]] EndgameAim Choose() const {
    EndgameAim aim;
    aim.depths = best_[0].depths;
    aim.loads.resize(game_.lanes);
    const size_t chunks = game_.chunks.size();
    // The choice with the least Regret wins (0 if all guesses agree on a choice).  Among choices of
    // equal regret, the engine gets the first chunk and a lane gets the last.
    Least compute;
    uint16_t limit = game_.layers;  // all chunks before this one have layers [0, limit)
    for (size_t i = 0; i < chunks; ++i) {
      const Endgame::Chunk& chunk = game_.chunks[i];
      if (chunk.low < limit)
        Weigh(
            i, Computes(i), [&] { return Computing(game_, i); }, &compute);
      if (!chunk.above_low_is_there) limit = std::min(limit, chunk.low);
    }
    aim.compute = compute.chunk;
    for (size_t lane = 0; lane < game_.lanes; ++lane) {
      Least load;
      for (size_t i = chunks; i-- > 0;)
        Weigh(
            i, Loads(i, lane), [&] { return Loading(game_, i, lane); }, &load);
      aim.loads[lane] = load.chunk;
      aim.waits.push_back(load.chunk.has_value() && load.regret > kRegretMax &&
                          game_.busy_s[lane + 1] > 0);
    }
    return aim;
  }

 private:
  // Whether the best staircases of `any` or `all` of the guesses compute the next layer of a chunk
  // (Computes), or load its next piece (Loads).
  struct Votes {
    bool any = false, all = true;
  };
  [[nodiscard]] Votes Computes(size_t i) const {
    Votes votes;
    for (const Best& best : best_) Add(&votes, best.depths[i] > game_.chunks[i].low);
    return votes;
  }
  [[nodiscard]] Votes Loads(size_t i, size_t lane) const {
    Votes votes;
    const uint16_t top = game_.chunks[i].piece_top[lane];
    for (const Best& best : best_) Add(&votes, best.depths[i] < top);
    return votes;
  }
  static void Add(Votes* votes, bool vote) {
    votes->any |= vote;
    votes->all &= vote;
  }

  struct Least {
    std::optional<size_t> chunk = {};
    double regret = kNever;
  };
  template <class Give>
  void Weigh(size_t i, Votes votes, const Give& give, Least* least) const {
    if (!votes.any) return;
    const double regret = votes.all ? 0 : Regret(give());
    if (least->chunk.has_value() && regret >= least->regret) return;
    *least = {i, regret};
  }
  // Returns how much longer than in the best case the restore takes from `after` on, relative to
  // the best time, in the guess for which this is largest.
  [[nodiscard]] double Regret(const Endgame& after) const {
    double worst = 0;
    for (size_t g = 0; g < guesses_.size(); ++g) {
      const double ratio = Search(after, guesses_[g]).Run().seconds / best_[g].seconds;
      worst = std::max(worst, ratio - 1);
    }
    return worst;
  }

  const Endgame& game_;
  std::array<Guess, 3> guesses_;
  std::array<Best, 3> best_;
};

}  // namespace

bool IsEndgame(size_t chunks, uint16_t layers) {
  const uint64_t few = std::min<uint64_t>(chunks, layers),
                 many = std::max<uint64_t>(chunks, layers);
  uint64_t count = 1;  // of staircases: the binomial coefficient of chunks + layers over chunks
  for (uint64_t i = 1; i <= few && count <= Endgame::kStaircasesMax; ++i)
    count = count * (many + i) / i;
  return chunks > 0 && count <= Endgame::kStaircasesMax;
}

EndgameAim Solve(const Endgame& game) { return Chooser(game).Choose(); }

}  // namespace larder
