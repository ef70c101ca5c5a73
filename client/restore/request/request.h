// What the program that runs a Scheduler (the driver) tells it, and what the Scheduler returns:
// requests, steps, loads, outcomes.
//
// Ownership: values.
// Points in time are seconds on any clock of the driver that never goes back.
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

// Where the blocks of one rank of one stage are, or the activations at the beginning of a stage.
struct Copy {
  std::vector<ChannelId> channel_of_block = {};  // kNowhere: the block is a hole, stored nowhere
  double block_bytes = 0;  // of one block: of all layers of the stage, or of its activations
};

struct StageSpec {
  StageLayers layers = {};       // counted within the model
  std::vector<Copy> ranks = {};  // a block counts as loaded when every rank has it
  Copy boundary = {};  // activations that computing starts from; empty if the stage needs none
};

struct RequestSpec {
  RequestId id = {};
  uint32_t tokens = 0;  // of the prefix, which is whole blocks
  uint32_t block_tokens = 0;
  uint32_t chunk_tokens = 0;  // the most in a step of the restore; multiple or divisor of a block
  // A step of the restore may begin and end inside a chunk, at multiples of cut_tokens, so that
  // loads can bring the rest of the chunk.  The tokens between two such positions are a cut.  A cut
  // is whole blocks, and cut_tokens divides chunk_tokens.  No such step has fewer tokens than a
  // cut, unless its chunk has fewer: if the prefix ends with less than a cut, those tokens belong
  // to the cut before them.  With a token budget below cut_tokens, Scheduler::NextCompute may
  // return no step.  0: steps are whole chunks, unless the budget is smaller.
  // Only for engines that do not split layers, with one stage and without `depths`.
  uint32_t cut_tokens = 0;
  // The engine has these tokens of the prefix already, from the beginning: whole
  // blocks, and only if a cut is one block.
  uint32_t have_tokens = 0;
  uint32_t suffix_tokens = 0;  // to prefill behind the prefix; see overlaps_suffix
  // From this time on, Scheduler::OnTime treats loads of the request as failed.  A load of KV that
  // is predicted to end later is not begun, unless it is a hedge.
  double deadline_s = kNoDeadline;
  std::vector<StageSpec> stages = {};
  // Per chunk (or per block, if blocks are larger): at first the engine computes layers [0, depth),
  // or all layers of a chunk with a hole, and the channels load the layers above.  When the engine
  // or a channel has nothing left of its own part, it may continue with layers of the other.
  // Empty: the scheduler chooses.
  std::vector<uint16_t> depths = {};
};

// Returns InvalidArgument if `spec` is not valid for a model of `layers` layers.
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
  bool hedge = false;  // a load of the same layers was under way when the step began
  double began_s = 0, estimate_s = 0;
};

// What one channel is to load: layers of a block, or the activations that a stage starts from.
struct Load {
  LoadId id = {};
  RequestId request = {};
  uint16_t stage = 0, rank = 0;
  ChannelId channel = ChannelId::kNowhere;
  bool boundary = false;
  bool hedge = false;  // the engine is computing the same layers
  uint32_t block = 0;
  StageLayers layers = {};
  double bytes = 0;
  double began_s = 0;
  double deadline_s = kNoDeadline;  // as predicted at began_s; see Scheduler::DeadlineOf
};

// Why a load failed.
enum class LoadFailure : uint8_t {
  kUnspecified = 0,
  kGone = 1,       // missing or damaged; a block becomes a hole
  kTransient = 2,  // the load may be tried again; too many in a row, and the block becomes a hole
  kWithdrawn = 3,  // the driver itself ended the load, which may be tried again
};

// What the driver does with bytes that have arrived.
enum class Landing : uint8_t {
  kUnspecified = 0,
  kPlace = 1,  // puts them into the engine's cache
  kDrop = 2,   // drops them: the engine has them already, or the load or its request has ended
};

struct StageOutcome {
  // Per block: the engine computed layers [0, depth).  The other layers were loaded, except in a
  // request that was cancelled or lost: there, they may be missing.
  std::vector<uint16_t> depths = {};
};

struct Outcome {
  RequestId request = {};
  double arrived_s = 0, restored_s = 0, first_token_s = 0;
  std::vector<StageOutcome> stages = {};
  double bytes_loaded = 0, bytes_dropped = 0;
  uint64_t tokens_recomputed = 0;  // the engine computed, or began to, but loads came first
  bool cancelled = false;
  // The prefix cannot be restored.  If the engine may compute: for some chunk neither the KV nor
  // the activations that its stage starts from are available, so the engine must compute the prefix
  // itself, from the first stage on.  If it may not (SchedulerOptions::computes is false): a block
  // cannot be loaded, or the deadline has passed.
  bool lost = false;
};

}  // namespace larder
