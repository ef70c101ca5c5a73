// Chooses what an idle engine computes next of one request.
//
// The rules in outline, in the order in which they win:
//   1. The suffix (the tokens behind the prefix), after the prefix is restored, or layer by layer
//      while a sweep (loading bottom-up) brings the prefix.
//   2. Work that no one has claimed, unless
//      a. the activations from which it is computed have not arrived yet;
//      b. the request has cut_tokens, the step would begin with tokens that loads have claimed, and
//         those loads should arrive before the engine could compute these tokens;
//      c. loading alone may have the rest of the stage, or the blocks before the next hole,
//         before this work ends.
//      Instead, the rule may begin a sweep, if a suffix or holes can be computed layer by layer
//      behind the loads.
//   3. A hedge: work that is being loaded, if the load is overdue, if computing it should end
//      first, or if the engine can drop steps and has no suffix or hole to compute afterwards.
// Steps become smaller near the end, so that the engine and the channels finish together: chunks
// are divided between layers if the engine splits layers, or between cuts if the request has
// cut_tokens.
// These are functions of a Forecast and a request; the Scheduler gives out what they choose.
#pragma once

#include <cstdint>
#include <optional>

#include "client/restore/forecast.h"
#include "client/restore/trace.h"

namespace larder {

// What a step may still compute.
struct StepBudget {
  uint32_t tokens = 0;
  double seconds = kNoDeadline;  // without ComputeCost::fixed_s
  uint32_t granule = 1;          // see StepRoom::granule
};

struct SuffixChoice {
  TokenRange tokens = {};
  StageLayers layers = {};
};
[[nodiscard]] std::optional<SuffixChoice> ChooseSuffix(const Forecast& forecast,
                                                       const RequestState& request,
                                                       const StepBudget& budget);

// At most one of the two is set.
struct RestoreChoice {
  std::optional<SuffixChoice> suffix = {};
  std::optional<StageWork> work = {};
};
// May begin a sweep (StageState::BeginSweep).  Records kHold and kBeginSweep decisions in *trace.
[[nodiscard]] RestoreChoice ChooseRestore(const Forecast& forecast, RequestState& request,
                                          uint16_t stage, const StepBudget& budget, Trace* trace);

[[nodiscard]] std::optional<StageWork> ChooseHedge(const Forecast& forecast,
                                                   const RequestState& request, uint16_t stage,
                                                   const StepBudget& budget);

}  // namespace larder
