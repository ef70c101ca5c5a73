// Chooses, before a restore begins, what is computed and what is loaded.  A pure function.
//
// A plan has a depth per chunk: layers [0, depth) of the chunk are computed, [depth, layers) are
// loaded.  A depth is never larger than that of the chunk before, so that computing never waits for
// a load.  Three shapes: token-wise computes all layers up to the chunk where computing and loading
// meet, and none behind it; layer-wise has one depth for all chunks, neither 0 nor all layers; a
// staircase has any other depths.  The scheduler, not the plan, decides while the restore runs.
// The plan does not know what other work the engine and the channels have.
// Thread-safety: functions without state.  Limits: kStageLayersMax layers.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "client/restore/costs/cost_model.h"
#include "storage/types.h"

namespace larder {

// How long a channel takes for its part of a chunk, all layers.  Several entries of one channel in
// a chunk add up.
struct PlanLoad {
  ChannelId channel = ChannelId::kNowhere;
  double seconds = 0;
};

// The tokens that one step computes, or one block, if a block has more.
struct PlanChunk {
  double compute_s = 0;              // all layers
  std::vector<PlanLoad> loads = {};  // empty: a hole, which is not stored and must be computed
};

struct PlanInput {
  uint16_t layers = 1;
  std::vector<double> layer_compute_shares = {};  // sum 1; empty: all equal
  std::vector<double> layer_load_shares = {};     // sum 1; empty: all equal
  std::vector<PlanChunk> chunks = {};
  // The engine can stop between layers.  If it cannot, each depth is 0 or `layers`.
  bool splits_layers = true;
  // If the engine splits layers and there are fewer chunks than this, all chunks get the same
  // depth, as in CacheFlow.  0: never.
  uint32_t crossover_chunks = 0;
  double deadline_s = std::numeric_limits<double>::infinity();  // from now
  // How long the prefill behind the prefix takes.  If `overlaps_suffix` is set, the engine starts
  // layer l of the suffix as soon as it has layer l of the prefix; otherwise it starts the suffix
  // when it has the whole prefix.
  double suffix_s = 0;
  bool overlaps_suffix = false;
};

enum class PlanMode : uint8_t { kUnspecified = 0, kBoth = 1, kComputeOnly = 2, kLoadOnly = 3 };
enum class PlanShape : uint8_t { kUnspecified = 0, kTokenWise = 1, kLayerWise = 2, kStaircase = 3 };
[[nodiscard]] const char* ToString(PlanMode mode);
[[nodiscard]] const char* ToString(PlanShape shape);

struct Plan {
  PlanMode mode = PlanMode::kUnspecified;
  PlanShape shape = PlanShape::kUnspecified;
  std::vector<uint16_t> depths = {};  // per chunk; none is larger than the one before
  double restore_s = 0;               // until the engine has all KV of the prefix
  double first_token_s = 0;           // until the suffix is computed as well
  double compute_only_s = 0;
  double load_only_s = 0;   // infinity if there is a hole
  double token_wise_s = 0;  // restore_s of the best plan found that divides at most one chunk
  bool in_time = true;      // first_token_s <= deadline_s
};

// How long a restore with given depths takes, if the engine and all channels work at the same time
// and without a pause.
struct DepthCost {
  double compute_s = 0;
  double load_s = 0;  // of the slowest channel; infinity if a hole is to be loaded
  [[nodiscard]] double seconds() const { return compute_s > load_s ? compute_s : load_s; }
};
// REQUIRES: there is a depth per chunk, and none is above the layers.
[[nodiscard]] DepthCost CostOf(const PlanInput& input, const std::vector<uint16_t>& depths);

// Returns the plan with the earliest first token of those that it compares, in which at most three
// depths are different.  Another staircase may be faster (staircase.h).
// O(chunks * layers * channels).
// REQUIRES: 1 <= input.layers <= kStageLayersMax.
[[nodiscard]] Plan MakePlan(const PlanInput& input);

// Returns how long a restore takes with one channel and perfectly divisible work, if computing
// everything takes compute_s (Tc) and loading everything load_s (Ti): T* = Tc * Ti / (Tc + Ti), or
// 0 if one of them is not above 0.
[[nodiscard]] double DivisibleBound(double compute_s, double load_s);
// The time to the first token that an ideal restore approaches, if work divides without limit and
// the suffix is computed layer by layer behind the loads.  With Tc = compute_s, Ti = load_s and Ts
// = suffix_s: Ti * (Tc + Ts) / (Tc + Ti) if Ti > Ts, otherwise Ts + Ti / layers (the load of the
// first layer).
[[nodiscard]] double OverlapBound(double compute_s, double load_s, double suffix_s,
                                  uint16_t layers);

// Makes the input of a plan: `layers` and `chunks`; all other fields keep their defaults.
// `channel_of_block` has a channel for each block.  kNowhere is a hole; its whole chunk must be
// computed, so the chunk has no loads.  `bytes` are those of one block in all layers.
[[nodiscard]] PlanInput MakePlanInput(const CostModel& costs, uint32_t tokens,
                                      uint32_t block_tokens, uint32_t chunk_tokens,
                                      const std::vector<ChannelId>& channel_of_block, double bytes);

}  // namespace larder
