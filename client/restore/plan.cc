// MakePlan tries depths of which at most three are different, and keeps running sums so that the
// cost of each trial takes O(channels).
#include "client/restore/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "storage/check.h"

namespace larder {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Running sums over the chunks of an input, with which Cost takes O(channels).  A depth is the
// number of a chunk's layers that are computed; its other layers are loaded.
class Sums {
 public:
  explicit Sums(const PlanInput& input)
      : layers_(input.layers),
        compute_shares_(Ends(input.layer_compute_shares, input.layers)),
        load_shares_(Ends(input.layer_load_shares, input.layers)) {
    compute_.push_back(0);
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      const PlanChunk& chunk = input.chunks[i];
      compute_.push_back(compute_.back() + chunk.compute_s);
      if (chunk.loads.empty()) holes_end_ = i + 1;
      for (const PlanLoad& load : chunk.loads)
        loads_.try_emplace(load.channel, input.chunks.size() + 1);
    }
    for (auto& [channel, sums] : loads_) Fill(input, channel, &sums);
  }
  [[nodiscard]] size_t chunks() const { return compute_.size() - 1; }

  // Depth `high` for chunks [0, split), `middle` for chunk `split`, `low` for the chunks behind it.
  struct Steps {
    size_t split = 0;
    uint16_t high = 0, middle = 0, low = 0;
  };
  [[nodiscard]] DepthCost Cost(const Steps& steps) const {
    const size_t next = std::min(steps.split + 1, chunks());
    const auto sum = [&](const std::vector<double>& ends, double high, double middle, double low) {
      return ends[steps.split] * high + (ends[next] - ends[steps.split]) * middle +
             (ends.back() - ends[next]) * low;
    };
    DepthCost cost;
    cost.compute_s = sum(compute_, compute_shares_[steps.high], compute_shares_[steps.middle],
                         compute_shares_[steps.low]);
    if (LoadsHole(steps, next)) cost.load_s = kNever;
    for (const auto& [channel, ends] : loads_) {
      cost.load_s =
          std::max(cost.load_s, sum(ends, 1 - load_shares_[steps.high],
                                    1 - load_shares_[steps.middle], 1 - load_shares_[steps.low]));
    }
    return cost;
  }

 private:
  static std::vector<double> Ends(const std::vector<double>& shares, uint16_t layers) {
    std::vector<double> ends(layers + 1u, 0);
    for (size_t l = 0; l < layers; ++l)
      ends[l + 1] = ends[l] + (shares.empty() ? 1.0 / layers : shares[l]);
    ends.back() = 1;
    return ends;
  }
  [[nodiscard]] bool LoadsHole(const Steps& steps, size_t next) const {
    if (steps.high < layers_) return holes_end_ > 0;
    return (steps.middle < layers_ && holes_end_ > steps.split) ||
           (steps.low < layers_ && holes_end_ > next);
  }
  static void Fill(const PlanInput& input, ChannelId channel, std::vector<double>* sums) {
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      double seconds = 0;
      for (const PlanLoad& load : input.chunks[i].loads)
        seconds += load.channel == channel ? load.seconds : 0;
      (*sums)[i + 1] = (*sums)[i] + seconds;
    }
  }

  uint16_t layers_;
  std::vector<double> compute_shares_, load_shares_, compute_;
  std::map<ChannelId, std::vector<double>> loads_;
  size_t holes_end_ = 0;
};

// Returns the seconds until the first token.  The suffix starts after the restore, or, if
// input.overlaps_suffix is set, follows it layer by layer.
double FirstToken(const PlanInput& input, const DepthCost& cost) {
  if (!input.overlaps_suffix) return cost.seconds() + input.suffix_s;
  // The last loads are assumed to come bottom-up: the suffix computes its last layer after the last
  // load, and its first layer after the prefix is computed and the prefix's first layer is loaded.
  const double step = input.suffix_s / input.layers;
  const double first_layer =
      cost.load_s > 0 ? std::min(cost.load_s, input.suffix_s) / input.layers : 0;
  return std::max(cost.compute_s + input.suffix_s + first_layer, cost.load_s + step);
}

// Keeps, of the depths that it tries, those with the earliest first token (of several, those that
// it tried first).
class Search {
 public:
  Search(const PlanInput& input, const Sums& sums) : input_(&input), sums_(&sums) {}
  void Try(const Sums::Steps& steps) {
    const double seconds = FirstToken(*input_, sums_->Cost(steps));
    if (seconds >= seconds_ * (1 - 1e-12)) return;  // despite rounding, keep the first of equals
    seconds_ = seconds;
    best_ = steps;
  }
  // For each chunk, tries to compute all chunks before it, none behind it, and 0 to all layers of
  // the chunk itself (0 or all if the engine does not split layers).
  void TokenWise() {
    for (size_t split = 0; split <= sums_->chunks(); ++split) {
      for (int middle = 0; middle <= input_->layers;
           middle += input_->splits_layers ? 1 : input_->layers) {
        Try({split, input_->layers, static_cast<uint16_t>(middle), 0});
      }
    }
  }
  // Tries each depth for all chunks.  If `both`, also tries, for each chunk, one layer more in all
  // chunks before it.
  void LayerWise(bool both) {
    for (size_t split = both ? 0 : sums_->chunks(); split <= sums_->chunks(); ++split) {
      for (uint16_t depth = 0; depth <= input_->layers; ++depth) {
        Try({split, static_cast<uint16_t>(std::min(depth + 1, +input_->layers)), depth, depth});
        Try({split, depth, depth, depth});
      }
    }
  }
  [[nodiscard]] const Sums::Steps& best() const { return best_; }
  [[nodiscard]] std::vector<uint16_t> Depths() const {
    std::vector<uint16_t> depths(sums_->chunks(), best_.low);
    std::fill_n(depths.begin(), best_.split, best_.high);
    if (best_.split < depths.size()) depths[best_.split] = best_.middle;
    return depths;
  }

 private:
  const PlanInput* input_;
  const Sums* sums_;
  Sums::Steps best_;
  double seconds_ = kNever;
};

PlanShape ShapeOf(const PlanInput& input, const std::vector<uint16_t>& depths) {
  const bool level = depths.empty() || depths.front() == depths.back();
  if (level && !depths.empty() && depths[0] != 0 && depths[0] != input.layers)
    return PlanShape::kLayerWise;
  for (const uint16_t depth : depths) {
    if (depth != 0 && depth != input.layers) return PlanShape::kStaircase;
  }
  return PlanShape::kTokenWise;
}

PlanMode ModeOf(const PlanInput& input, const std::vector<uint16_t>& depths) {
  const bool computes = !depths.empty() && depths.front() > 0;
  const bool loads = !depths.empty() && depths.back() < input.layers;
  if (computes && loads) return PlanMode::kBoth;
  return computes ? PlanMode::kComputeOnly : PlanMode::kLoadOnly;
}

}  // namespace

const char* ToString(PlanMode mode) {
  constexpr const char* kNames[] = {"unspecified", "both", "compute only", "load only"};
  return kNames[static_cast<size_t>(mode)];
}

const char* ToString(PlanShape shape) {
  constexpr const char* kNames[] = {"unspecified", "token-wise", "layer-wise", "staircase"};
  return kNames[static_cast<size_t>(shape)];
}

DepthCost CostOf(const PlanInput& input, const std::vector<uint16_t>& depths) {
  LARDER_CHECK(depths.size() == input.chunks.size());
  const auto below = [&](const std::vector<double>& shares, uint16_t depth) {
    if (shares.empty()) return static_cast<double>(depth) / input.layers;
    return depth == input.layers ? 1 : std::accumulate(shares.begin(), shares.begin() + depth, 0.0);
  };
  DepthCost cost;
  std::map<ChannelId, double> loads;
  for (size_t i = 0; i < depths.size(); ++i) {
    const PlanChunk& chunk = input.chunks[i];
    cost.compute_s += chunk.compute_s * below(input.layer_compute_shares, depths[i]);
    if (depths[i] == input.layers) continue;
    if (chunk.loads.empty()) cost.load_s = kNever;
    const double share = 1 - below(input.layer_load_shares, depths[i]);
    for (const PlanLoad& load : chunk.loads) loads[load.channel] += load.seconds * share;
  }
  for (const auto& [channel, seconds] : loads) cost.load_s = std::max(cost.load_s, seconds);
  return cost;
}

Plan MakePlan(const PlanInput& input) {
  LARDER_CHECK(input.layers >= 1 && input.layers <= kStageLayersMax);
  const Sums sums(input);
  Search search(input, sums);
  const bool layer_wise = input.splits_layers && input.chunks.size() < input.crossover_chunks;
  Search token_wise(input, sums);
  token_wise.TokenWise();
  if (!layer_wise) search = token_wise;
  if (input.splits_layers) search.LayerWise(/*both=*/!layer_wise);
  Plan plan;
  plan.depths = search.Depths();
  const DepthCost cost = CostOf(input, plan.depths);
  plan.mode = ModeOf(input, plan.depths);
  plan.shape = ShapeOf(input, plan.depths);
  plan.restore_s = cost.seconds();
  plan.first_token_s = FirstToken(input, cost);
  plan.compute_only_s = sums.Cost({0, input.layers, input.layers, input.layers}).seconds();
  plan.load_only_s = sums.Cost({0, 0, 0, 0}).seconds();
  plan.token_wise_s = sums.Cost(token_wise.best()).seconds();
  plan.in_time = plan.first_token_s <= input.deadline_s;
  return plan;
}

PlanInput MakePlanInput(const CostModel& costs, uint32_t tokens, uint32_t block_tokens,
                        uint32_t chunk_tokens, const std::vector<ChannelId>& channel_of_block,
                        double bytes) {
  PlanInput input;
  input.layers = costs.layers();
  const uint32_t step = std::max(chunk_tokens, block_tokens);
  for (uint32_t begin = 0; begin < tokens; begin += step) {
    const TokenRange range{begin, std::min(begin + step, tokens)};
    PlanChunk chunk;
    for (uint32_t at = begin; at < range.end; at += chunk_tokens) {
      chunk.compute_s += costs.ComputeSeconds({at, std::min(at + chunk_tokens, range.end)});
    }
    for (uint32_t block = begin / block_tokens; block * block_tokens < range.end; ++block) {
      if (channel_of_block[block] == ChannelId::kNowhere) {
        chunk.loads.clear();
        break;
      }
      chunk.loads.push_back(
          {channel_of_block[block], costs.LoadSeconds(channel_of_block[block], bytes)});
    }
    input.chunks.push_back(std::move(chunk));
  }
  return input;
}

double DivisibleBound(double compute_s, double load_s) {
  if (compute_s <= 0 || load_s <= 0) return 0;
  return 1 / (1 / compute_s + 1 / load_s);
}

double OverlapBound(double compute_s, double load_s, double suffix_s, uint16_t layers) {
  if (load_s <= suffix_s) return suffix_s + load_s / layers;
  return load_s * (compute_s + suffix_s) / (compute_s + load_s);
}

}  // namespace larder
