// Chooses, before a restore begins, what is computed and what is loaded.  A pure function.
//
// The answer is a depth per chunk: layers [0, depth) of it are computed, [depth, layers) are
// loaded.  A depth never increases from one chunk to the next, so that computing never waits for a
// load.  Token-wise: all layers up to the meet, none behind it.  Layer-wise: one depth for all.
// Staircase: whatever is fastest.
// Does not decide anything while the restore runs: the scheduler does, and starts from the same
// costs.  The plan does not know what else the engine and the channels have to do.
// Thread-safety: functions without state.  Limits: see each.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "client/restore/cost_model.h"
#include "storage/types.h"

namespace larder {

// A channel's part in loading a chunk: all layers.
struct PlanLoad {
  ChannelId channel = ChannelId::kNowhere;
  double seconds = 0;
};

// What is computed in one step.  Of blocks that are larger than that, one such block.
struct PlanChunk {
  double compute_s = 0;              // all layers
  std::vector<PlanLoad> loads = {};  // empty: a hole, which is computed
};

struct PlanInput {
  uint16_t layers = 1;
  std::vector<double> layer_compute_shares = {};  // sum 1; empty: all alike
  std::vector<double> layer_load_shares = {};     // sum 1; empty: all alike
  std::vector<PlanChunk> chunks = {};
  // The engine can stop between layers; else a depth is 0 or all.
  bool splits_layers = true;
  // Layer-wise below it, as CacheFlow chooses; 0: whatever is fastest.
  uint32_t crossover_chunks = 0;
  double deadline_s = std::numeric_limits<double>::infinity();  // from now
  // Prefill behind the prefix; its layer l starts when layer l of the prefix is there, if the
  // engine can.
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
  std::vector<uint16_t> depths = {};  // per chunk; none increases
  double restore_s = 0;               // until all KV is there
  double first_token_s = 0;           // and the suffix is computed
  double compute_only_s = 0;
  double load_only_s = 0;   // infinity with a hole
  double token_wise_s = 0;  // restore_s of the best that cuts one chunk only
  bool in_time = true;      // first_token_s <= deadline_s
};

// How long these depths take: computing and every channel work at once, each without a pause.
struct DepthCost {
  double compute_s = 0;
  double load_s = 0;  // of the slowest channel; infinity where a hole is loaded
  [[nodiscard]] double seconds() const { return compute_s > load_s ? compute_s : load_s; }
};
// REQUIRES: a depth per chunk, none above the layers.
[[nodiscard]] DepthCost CostOf(const PlanInput& input, const std::vector<uint16_t>& depths);

// Within a layer of one chunk of the best depths wherever costs do not fall along the prompt; see
// staircase.h for the exact optimum.  O(chunks * layers).
[[nodiscard]] Plan MakePlan(const PlanInput& input);

// T* of one channel, with the work perfectly divisible: Tc * Ti / (Tc + Ti).
[[nodiscard]] double DivisibleBound(double compute_s, double load_s);
// To the first token, with an overlapped suffix: Ti (Tc + Ts) / (Tc + Ti) where Ti > Ts, else Ts
// and the first layer's load.
[[nodiscard]] double OverlapBound(double compute_s, double load_s, double suffix_s,
                                  uint16_t layers);

// What a plan starts from.  `channel_of_block`: kNowhere is a hole.  `bytes`: a block, all layers.
[[nodiscard]] PlanInput MakePlanInput(const CostModel& costs, uint32_t tokens,
                                      uint32_t block_tokens, uint32_t chunk_tokens,
                                      const std::vector<ChannelId>& channel_of_block, double bytes);

}  // namespace larder
