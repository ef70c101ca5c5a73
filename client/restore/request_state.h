// One request that the Scheduler works on: its stages, its suffix (the tokens behind the prefix),
// and the outcome to report.
//
// Ownership: the scheduler owns it.  Thread-safety: none.
#pragma once

#include <vector>

#include "client/restore/policy.h"
#include "client/restore/request/request.h"
#include "client/restore/stage/stage_estimate.h"
#include "client/restore/stage/stage_state.h"

namespace larder {

struct RequestState {
  RequestState(RequestSpec request, double now_s) : spec(std::move(request)) {
    for (const StageSpec& stage : spec.stages) stages.emplace_back(spec, stage);
    outlooks.resize(stages.size());
    outcome.request = spec.id;
    outcome.arrived_s = now_s;
  }

  [[nodiscard]] bool complete() const {
    for (const StageState& stage : stages) {
      if (!stage.claims().complete()) return false;
    }
    return true;
  }
  // Returns an estimate of what is left of a stage.  It is made again only if `stale` is set, not
  // if only the costs have changed.
  [[nodiscard]] const StageOutlook& Outlook(const CostModel& costs, size_t stage) {
    if (stale) {
      for (size_t i = 0; i < stages.size(); ++i) outlooks[i] = Estimate(stages[i].claims(), costs);
      stale = false;
    }
    return outlooks[stage];
  }
  // About the seconds that the slowest stage needs for what is unclaimed, if the request has the
  // engine and its channels to itself.
  [[nodiscard]] double RemainingSeconds(const CostModel& costs) {
    double longest = 0;
    for (size_t i = 0; i < stages.size(); ++i) {
      const StageOutlook& left = Outlook(costs, i);
      // If nothing is left to load, there may still be holes to compute.
      longest = std::max(longest, left.both_s > 0 ? left.both_s : left.compute_s);
    }
    return longest;
  }

  RequestSpec spec;
  std::vector<StageState> stages;
  std::vector<StageOutlook> outlooks;  // per stage, unless `stale`
  bool stale = true;                   // estimates must be made again
  bool aimed = false;                  // Scheduler::Aim need not choose again

  bool suffix_running = false;
  uint16_t suffix_layers = 0;  // where the layers of the last computed step of the suffix end
  uint32_t suffix_tokens = 0;  // tokens of the suffix computed by steps through all layers
  uint64_t computed_turn = 0, loaded_turn = 0;
  Outcome outcome;
};

}  // namespace larder
