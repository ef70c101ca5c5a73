// What an idle engine computes next of one request.
//
// The rules, in the order in which they win:
//   1. The suffix, once its prefix is restored, or layer by layer behind a sweep.
//   2. Work that no one has claimed, unless
//      a. the activations that it starts from are not here yet;
//      b. loads bring what is before it sooner than it could be computed (an engine that cuts
//         chunks must compute that, too);
//      c. loading has the rest of the prefix sooner than this work ends.
//      Where something can follow loads layer by layer, loading sweeps bottom-up instead, if what
//      follows ends sooner that way.
//   3. A hedge: work that is being loaded, if the load is overdue, if computing it ends first, or
//      if the engine can drop steps and has nothing else to do.
// Steps are small near the end, so that both resources finish together: between layers if the
// engine divides them, otherwise between cuts.
// Functions of a forecast and a request; what is chosen is claimed by the scheduler.
#pragma once

#include <cstdint>
#include <optional>

#include "client/restore/forecast.h"
#include "client/restore/trace.h"

namespace larder {

// What a step may still hold.
struct StepBudget {
  uint32_t tokens = 0;
  double seconds = kNoDeadline;
  uint32_t granule = 1;  // tokens that are cut for `seconds` are a multiple of this
};

struct SuffixChoice {
  TokenRange tokens = {};
  StageLayers layers = {};
};
[[nodiscard]] std::optional<SuffixChoice> ChooseSuffix(const Forecast& forecast,
                                                       const RequestState& request,
                                                       const StepBudget& budget);

// One of them, or none.
struct RestoreChoice {
  std::optional<SuffixChoice> suffix = {};
  std::optional<StageWork> work = {};
};
// May begin a sweep.  Why it holds the engine back is noted in *trace.
[[nodiscard]] RestoreChoice ChooseRestore(const Forecast& forecast, RequestState& request,
                                          uint16_t stage, const StepBudget& budget, Trace* trace);

[[nodiscard]] std::optional<StageWork> ChooseHedge(const Forecast& forecast,
                                                   const RequestState& request, uint16_t stage,
                                                   const StepBudget& budget);

}  // namespace larder
