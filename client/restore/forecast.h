// When what is under way ends, and when loading or computing alone would have the rest: what the
// choices of the scheduler compare.
//
// A view of the scheduler's state at one moment.  "Doubts" are standard deviations of the cost
// model by which a time is taken to be later.
// Ownership: refers to everything; made for one choice.  Thread-safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/restore/channel_queues.h"
#include "client/restore/costs/cost_model.h"
#include "client/restore/request/options.h"
#include "client/restore/request_state.h"

namespace larder {

struct Forecast {
  const SchedulerOptions& options;
  const CostModel& costs;
  const ChannelQueues& queues;
  const std::vector<ComputeStep>& steps;  // under way
  size_t requests;                        // under way
  double now_s;

  // ---- computing
  // Seconds until the step that is under way on the stage ends; 0 if there is none.
  [[nodiscard]] double ComputeEnd(const RequestState& request, uint16_t stage, double doubts) const;
  // Tokens of a step that lasts at most `step_s`, behind `position` and beside `decode_tokens`; a
  // multiple of `granule`.
  [[nodiscard]] uint32_t TokenBudget(double step_s, uint32_t decode_tokens, uint32_t position,
                                     uint32_t granule) const;
  // How many layers a step or a load has whose whole takes `whole_s`: if little is left of the
  // stage, as many as fit into a part of that.
  [[nodiscard]] uint16_t LayersPerStep(RequestState& request, uint16_t stage, double whole_s) const;

  // ---- loading
  // Seconds until loading alone would have all that an engine waits for: up to the first hole, if
  // the engine can use what is before a hole as soon as it is there.  kNoDeadline: computing does
  // not wait.
  [[nodiscard]] double LoadsAhead(const RequestState& request, const StageState& stage) const;
  // Seconds until loading alone would have all of the stage, or, if `hole` is not 0, what is before
  // that block.  kNoDeadline: that is too late, or the channels serve another request.
  [[nodiscard]] double LoadsEnd(const RequestState& request, const StageState& stage,
                                uint32_t hole) const;
  // Seconds until the loads of these tokens that are under way have arrived, except those below
  // layer `from`.
  [[nodiscard]] double LandsIn(const RequestState& request, uint16_t stage, TokenRange tokens,
                               uint16_t from, double doubts) const;
  // Returns when a request with loads on this channel stops waiting for the channel's first load:
  // it may never come, and what was not computed meanwhile would have to be computed as well.
  [[nodiscard]] double OverdueFrom(const ChannelQueue& queue, const RequestState& request,
                                   uint16_t stage) const;
  // Returns true if a channel is overdue that has loads of the stage; if `chunk` is given, of that
  // chunk.
  [[nodiscard]] bool IsOverdue(const RequestState& request, uint16_t stage,
                               std::optional<uint32_t> chunk) const;
  // The deadline of a load that is under way: the scheduler's patience, and at most the request's.
  [[nodiscard]] double DeadlineOf(const RequestState& request, const Load& load) const;

  // ---- both
  // How far computing and loading may be off against each other.
  [[nodiscard]] double Doubt(const RequestState& request, uint16_t stage) const;
  // Returns true if something is computed behind the loads that can follow them layer by layer.
  [[nodiscard]] bool MaySweep(const RequestState& request, const StageState& state) const;
  [[nodiscard]] bool OverlapsSuffix(const RequestState& request) const {
    return options.engine.overlaps_suffix && request.spec.suffix_tokens > 0;
  }
};

}  // namespace larder
