// One request in the scheduler's hands: its stages, its suffix, and what it will be reported as.
//
// Ownership: by the scheduler.  Thread-safety: none.
#pragma once

#include <vector>

#include "client/restore/policy.h"
#include "client/restore/request.h"
#include "client/restore/stage_state.h"

namespace larder {

struct RequestState {
  RequestState(RequestSpec request, double now_s) : spec(std::move(request)) {
    for (const StageSpec& stage : spec.stages) stages.emplace_back(spec, stage, spec.depths);
    outlooks.resize(stages.size());
    outcome.request = spec.id;
    outcome.arrived_s = now_s;
  }

  [[nodiscard]] bool complete() const {
    for (const StageState& stage : stages) {
      if (!stage.complete()) return false;
    }
    return true;
  }
  // Of its stages the one that takes longest, with everything to itself.
  [[nodiscard]] const StageState::Outlook& Outlook(const CostModel& costs, size_t stage) {
    if (stale) {
      for (size_t i = 0; i < stages.size(); ++i) outlooks[i] = stages[i].Estimate(costs);
      stale = false;
    }
    return outlooks[stage];
  }
  [[nodiscard]] double RemainingSeconds(const CostModel& costs) {
    double longest = 0;
    for (size_t i = 0; i < stages.size(); ++i) {
      const StageState::Outlook& left = Outlook(costs, i);
      // Where nothing is left to load there may be holes to compute.
      longest = std::max(longest, left.both_s > 0 ? left.both_s : left.compute_s);
    }
    return longest;
  }

  RequestSpec spec;
  std::vector<StageState> stages;
  std::vector<StageState::Outlook> outlooks;  // when they were last asked for
  bool stale = true;
  bool aimed = false;  // nothing has changed since StageState::Aim

  bool suffix_running = false;
  uint16_t suffix_layers = 0;  // computed, of all its tokens
  uint32_t suffix_tokens = 0;  // computed, of all layers
  uint64_t computed_turn = 0, loaded_turn = 0;
  Outcome outcome;
};

}  // namespace larder
