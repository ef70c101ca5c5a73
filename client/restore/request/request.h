// What a driver tells the scheduler of a restore, and what the scheduler returns: requests, steps,
// loads, outcomes.
//
// Ownership: values.
// Times are seconds on any clock of the driver that never goes back.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "client/restore/costs/cost_model.h"
#include "client/restore/costs/layers.h"
#include "client/restore/request/options.h"
#include "storage/types.h"

namespace larder {

using RequestId = Id<struct RestoreRequestTag>;
using StepId = Id<struct ComputeStepTag>;
using LoadId = Id<struct BlockLoadTag>;

// Where the blocks of one rank of one stage are.
struct Copy {
  std::vector<ChannelId> channel_of_block = {};  // kNowhere: a hole
  double block_bytes = 0;                        // all layers of the stage
};

struct StageSpec {
  StageLayers layers = {};       // counted within the model
  std::vector<Copy> ranks = {};  // a block counts as loaded when every rank has it
  Copy boundary = {};  // the activations that computing starts from; without blocks it needs none
};

struct RequestSpec {
  RequestId id = {};
  uint32_t tokens = 0;  // of the prefix, which is whole blocks
  uint32_t block_tokens = 0;
  uint32_t chunk_tokens = 0;  // of a step, at most; a multiple or a divisor of block_tokens
  // Where part of a chunk is loaded, a step may also begin and end within the chunk, at multiples
  // of this.  Such a part of a chunk is a cut: it is whole blocks, and cut_tokens divides
  // chunk_tokens.  No step has fewer tokens than a cut, unless its chunk has fewer: a rest at the
  // end of the prefix that is less than a cut belongs to the cut before it, and a budget of one cut
  // is enough for both.  With a smaller budget the scheduler may give no step.  0: steps are whole
  // chunks, unless their budgets are smaller.
  // Only for engines that do not split layers, with one stage and without `depths`.
  uint32_t cut_tokens = 0;
  uint32_t suffix_tokens = 0;       // prefill behind the prefix, once the prefix is restored
  double deadline_s = kNoDeadline;  // no load begins that would end later
  std::vector<StageSpec> stages = {};
  // Per chunk (or per block, if blocks are larger): the engine computes up to these layers first,
  // and the channels load the rest; a resource that has finished continues with what the other has
  // not begun.  Empty: the scheduler chooses.
  std::vector<uint16_t> depths = {};
};

// Returns InvalidArgument with what is wrong.  `layers` are those of the model.
[[nodiscard]] absl::Status Validate(const RequestSpec& spec, uint16_t layers);

enum class StepKind : uint8_t { kUnspecified = 0, kRestore = 1, kSuffix = 2 };

// Work that one stage computes in one go.  Layers count within the stage.
struct ComputeStep {
  StepId id = {};
  RequestId request = {};
  uint16_t stage = 0;
  StepKind kind = StepKind::kUnspecified;
  TokenRange tokens = {};
  StageLayers layers = {};
  bool hedge = false;  // a load of the same is under way as well
  double began_s = 0, estimate_s = 0;
};

// What one channel is to load: layers of a block, or the activations at a boundary.
struct Load {
  LoadId id = {};
  RequestId request = {};
  uint16_t stage = 0, rank = 0;
  ChannelId channel = ChannelId::kNowhere;
  bool boundary = false;
  bool hedge = false;  // the engine computes the same as well
  uint32_t block = 0;
  StageLayers layers = {};
  double bytes = 0;
  double began_s = 0;
  double deadline_s = kNoDeadline;  // afterwards OnTime treats the load as lost
};

// Why a load failed.
enum class LoadFailure : uint8_t {
  kUnspecified = 0,
  kGone = 1,       // the block is missing or damaged, and a hole from now on
  kTransient = 2,  // the load may be tried again
};

// What the driver does with bytes that have arrived.
enum class Landing : uint8_t {
  kUnspecified = 0,
  kPlace = 1,  // puts them into the engine's cache
  kDrop = 2,   // drops them: computed meanwhile, cancelled, or their request has ended
};

struct StageOutcome {
  // Per block: the engine computed layers [0, depth), the rest was loaded.  If the engine does not
  // split layers, computing and loading met at the first block of depth 0 behind the last hole.
  std::vector<uint16_t> depths = {};
};

struct Outcome {
  RequestId request = {};
  double arrived_s = 0, restored_s = 0, first_token_s = 0;
  std::vector<StageOutcome> stages = {};
  double bytes_loaded = 0, bytes_dropped = 0;
  uint64_t tokens_recomputed = 0;  // computed in hedges although a load came first
  bool cancelled = false;
  // For some chunk neither the KV nor the activations at a boundary are available, so the engine
  // must compute all of it, from the first stage on.  If nothing may be computed
  // (SchedulerOptions::computes is false): a block was not loaded, because it is missing or
  // damaged, its loads failed too often, or no load of it began before the deadline.
  bool lost = false;
};

}  // namespace larder
