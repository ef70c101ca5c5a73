// What a driver says of a restore, and what the scheduler answers: requests, steps, loads,
// outcomes.
//
// Values.  Times are seconds on whatever clock the driver has; they only ever need to grow.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "client/restore/cost_model.h"
#include "client/restore/layers.h"
#include "storage/types.h"

namespace larder {

using RequestId = Id<struct RestoreRequestTag>;
using StepId = Id<struct ComputeStepTag>;
using LoadId = Id<struct BlockLoadTag>;
inline constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// What the engine can.  llama.cpp: none of it.
struct EngineTraits {
  bool splits_layers = false;   // computes a chunk up to a layer, and goes on from there later
  bool abandons_steps = false;  // drops a step that is under way, soon
  bool hands_over = false;      // a stage gets the activations of what the one before it computes
  // Computes the suffix layer by layer, each when the prefix's is there.
  bool overlaps_suffix = false;
};

// Where the blocks of one rank of one stage are.
struct Copy {
  std::vector<ChannelId> channel_of_block = {};  // kNowhere: a hole
  double block_bytes = 0;                        // all layers of the stage
};

struct StageSpec {
  StageLayers layers = {};       // of the model
  std::vector<Copy> ranks = {};  // a block counts as loaded when every rank has it
  Copy boundary = {};            // activations that computing starts from; no blocks: needs none
};

struct RequestSpec {
  RequestId id = {};
  uint32_t tokens = 0;  // of the prefix: whole blocks
  uint32_t block_tokens = 0;
  uint32_t chunk_tokens = 0;  // of a step, at most; divides block_tokens, or is divided by it
  // Where some of a chunk is loaded, a step may also begin and end within it, at multiples of this
  // (a cut): whole blocks, that divide chunk_tokens.  No step has fewer tokens, unless its chunk
  // has: less than a cut at the end of the prefix belongs to the one before it, and a budget of one
  // is enough for both.  A smaller budget may compute nothing.  0: steps are whole chunks, but for
  // their budgets.
  // For engines that do not split layers, on one stage, without `depths`.
  uint32_t cut_tokens = 0;
  uint32_t suffix_tokens = 0;       // prefill behind the prefix, when it is there
  double deadline_s = kNoDeadline;  // no load is begun that would end later
  std::vector<StageSpec> stages = {};
  // Per chunk (or block, if that is larger): computes up to these layers first, and goes on where
  // the other resource has not been when both are through.  Empty: the scheduler's own way.
  std::vector<uint16_t> depths = {};
};

// INVALID_ARGUMENT with what is wrong; `layers` of the model.
[[nodiscard]] absl::Status Validate(const RequestSpec& spec, uint16_t layers);

enum class StepKind : uint8_t { kUnspecified = 0, kRestore = 1, kSuffix = 2 };

// To be computed in one go, on one stage.  Layers are the stage's own.
struct ComputeStep {
  StepId id = {};
  RequestId request = {};
  uint16_t stage = 0;
  StepKind kind = StepKind::kUnspecified;
  TokenRange tokens = {};
  StageLayers layers = {};
  bool hedge = false;  // a load of it is under way, too
  double began_s = 0, estimate_s = 0;
};

// To be loaded over one channel: layers of a block, or the activations at a boundary.
struct Load {
  LoadId id = {};
  RequestId request = {};
  uint16_t stage = 0, rank = 0;
  ChannelId channel = ChannelId::kNowhere;
  bool boundary = false;
  bool hedge = false;  // it is being computed, too
  uint32_t block = 0;
  StageLayers layers = {};
  double bytes = 0;
  double began_s = 0;
  double deadline_s = kNoDeadline;  // after it, OnTime takes the load for lost
};

// Why a load came to nothing.
enum class LoadFailure : uint8_t {
  kUnspecified = 0,
  kGone = 1,       // missing or damaged: it is a hole now
  kTransient = 2,  // may be tried again
};

// What becomes of bytes that arrived.
enum class Landing : uint8_t {
  kUnspecified = 0,
  kPlace = 1,
  kDrop = 2,  // computed meanwhile, cancelled, or of a request that is gone
};

struct StageOutcome {
  // Per block: layers [0, depth) are the engine's, the rest was loaded.  Of an engine that does not
  // split layers, the first block of depth 0 behind the last hole is the meet.
  std::vector<uint16_t> depths = {};
};

struct Outcome {
  RequestId request = {};
  double arrived_s = 0, restored_s = 0, first_token_s = 0;
  std::vector<StageOutcome> stages = {};
  double bytes_loaded = 0, bytes_dropped = 0;
  uint64_t tokens_recomputed = 0;  // in hedges that a load overtook
  bool cancelled = false;
  // Neither KV nor the activations at a boundary are there for some chunk: the engine computes all
  // of it, from the first stage on.  Where nothing may be computed: a block is not there, and is
  // gone, failed too often, or was not begun by the deadline.
  bool lost = false;
};

}  // namespace larder
