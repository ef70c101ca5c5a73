// BestStaircase keeps Pareto sets of (compute, loads per channel); LowerBound sorts layers of
// chunks and uses a bisection.
#include "client/restore/staircase.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace larder {
namespace {

double ShareOf(const std::vector<double>& shares, const PlanInput& input, size_t layer) {
  return shares.empty() ? 1.0 / input.layers : shares[layer];
}

// ---- the optimum

// The sums over the first chunks of a staircase, and the State of one chunk fewer that this one
// extends.
struct State {
  std::vector<double> sums = {};  // of computing, then of each channel
  size_t parent = 0;              // index in states_
  uint16_t depth = 0;
};

class Programme {
 public:
  Programme(const PlanInput& input, size_t states_max) : input_(input), states_max_(states_max) {
    for (const PlanChunk& chunk : input.chunks) {
      for (const PlanLoad& load : chunk.loads)
        channels_.try_emplace(load.channel, channels_.size() + 1);
    }
    const Plan plan = MakePlan(input);
    limit_ = plan.restore_s * (1 + 1e-12);
  }

  std::optional<Optimum> Run() {
    states_.push_back({std::vector<double>(channels_.size() + 1, 0), 0, input_.layers});
    std::vector<size_t> front = {0};
    for (const PlanChunk& chunk : input_.chunks) {
      front = Next(front, chunk);
      if (states_.size() > states_max_) return std::nullopt;
    }
    return Fastest(front);
  }

 private:
  std::vector<size_t> Next(const std::vector<size_t>& front, const PlanChunk& chunk) {
    std::vector<size_t> kept;
    // A state is extended by its own depth or a lower one.  Keep compares only states of the same
    // depth.
    for (int depth = input_.layers; depth >= 0; --depth) {
      std::vector<State> made;
      for (const size_t from : front) {
        if (states_[from].depth < depth) continue;
        State state = Extend(from, chunk, static_cast<uint16_t>(depth));
        if (*std::max_element(state.sums.begin(), state.sums.end()) <= limit_)
          made.push_back(std::move(state));
      }
      Keep(std::move(made), &kept);
    }
    return kept;
  }
  State Extend(size_t from, const PlanChunk& chunk, uint16_t depth) const {
    State state{states_[from].sums, from, depth};
    double computed = 0, loaded = 0;
    for (uint16_t l = 0; l < input_.layers; ++l) {
      (l < depth ? computed : loaded) +=
          ShareOf(l < depth ? input_.layer_compute_shares : input_.layer_load_shares, input_, l);
    }
    state.sums[0] += chunk.compute_s * computed;
    if (depth == input_.layers) return state;
    // A hole cannot be loaded, so the state is dropped.
    if (chunk.loads.empty()) state.sums[0] = 2 * limit_ + 1;
    for (const PlanLoad& load : chunk.loads)
      state.sums[channels_.at(load.channel)] += load.seconds * loaded;
    return state;
  }
  // Drops a state if a kept state of the same depth is no worse in any sum.
  void Keep(std::vector<State> made, std::vector<size_t>* kept) {
    std::sort(made.begin(), made.end(),
              [](const State& a, const State& b) { return a.sums < b.sums; });
    const size_t first = states_.size();
    for (State& state : made) {
      const auto beats = [&](const State& other) {
        return std::equal(other.sums.begin(), other.sums.end(), state.sums.begin(),
                          std::less_equal<>());
      };
      if (std::any_of(states_.begin() + static_cast<std::ptrdiff_t>(first), states_.end(), beats))
        continue;
      kept->push_back(states_.size());
      states_.push_back(std::move(state));
    }
  }
  std::optional<Optimum> Fastest(const std::vector<size_t>& front) const {
    if (front.empty()) return std::nullopt;
    const auto time = [&](size_t i) {
      return *std::max_element(states_[i].sums.begin(), states_[i].sums.end());
    };
    size_t at = *std::min_element(front.begin(), front.end(),
                                  [&](size_t a, size_t b) { return time(a) < time(b); });
    Optimum optimum{time(at), std::vector<uint16_t>(input_.chunks.size())};
    for (size_t i = input_.chunks.size(); i-- > 0; at = states_[at].parent)
      optimum.depths[i] = states_[at].depth;
    return optimum;
  }

  const PlanInput& input_;
  const size_t states_max_;
  double limit_;
  std::map<ChannelId, size_t> channels_;
  std::vector<State> states_;
};

// ---- the bound

struct Cell {
  double load_s = 0, spares_s = 0;
};

// How much computing a channel can spare the engine in a given time, fractions allowed: a concave
// and piecewise linear function.
class Spared {
 public:
  explicit Spared(std::vector<Cell> cells) {
    std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) {
      return a.spares_s * b.load_s > b.spares_s * a.load_s;
    });
    for (const Cell& cell : cells) {
      load_.push_back(load_.back() + cell.load_s);
      spares_.push_back(spares_.back() + cell.spares_s);
    }
  }
  [[nodiscard]] double In(double seconds) const {
    const auto above = std::upper_bound(load_.begin(), load_.end(), seconds);
    if (above == load_.end()) return spares_.back();
    const auto i = static_cast<size_t>(above - load_.begin());
    return spares_[i - 1] +
           (spares_[i] - spares_[i - 1]) * (seconds - load_[i - 1]) / (load_[i] - load_[i - 1]);
  }

 private:
  std::vector<double> load_ = {0}, spares_ = {0};
};

}  // namespace

std::optional<Optimum> BestStaircase(const PlanInput& input, size_t states_max) {
  return Programme(input, states_max).Run();
}

double LowerBound(const PlanInput& input) {
  return LowerBound(input, {[](double seconds) { return seconds; },
                            [](ChannelId, double seconds) { return seconds; }});
}

double LowerBound(const PlanInput& input, const WorkDone& done) {
  std::map<ChannelId, std::vector<Cell>> cells;
  double compute_s = 0;
  for (const PlanChunk& chunk : input.chunks) {
    compute_s += chunk.compute_s;
    double load_s = 0;
    for (const PlanLoad& load : chunk.loads) load_s += load.seconds;
    for (const PlanLoad& load : chunk.loads) {
      for (size_t l = 0; l < input.layers; ++l) {
        const double spares = chunk.compute_s * ShareOf(input.layer_compute_shares, input, l);
        const double seconds = load.seconds * ShareOf(input.layer_load_shares, input, l);
        cells[load.channel].push_back({seconds, spares * load.seconds / load_s});
      }
    }
  }
  std::map<ChannelId, Spared> channels;
  for (auto& [channel, list] : cells) channels.emplace(channel, std::move(list));
  const auto enough = [&](double seconds) {
    double left = compute_s;
    for (const auto& [channel, spared] : channels) left -= spared.In(done.load(channel, seconds));
    return left <= done.compute(seconds);
  };
  double low = 0, high = std::max(compute_s, 1e-12);
  while (!enough(high)) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return low;
}

}  // namespace larder
