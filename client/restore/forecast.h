// Predicts when steps and loads that are under way end, and when loading or computing alone would
// finish the rest.  The scheduler's choices compare these times.
//
// A view of the scheduler's state at one moment.  A parameter `doubts` makes a predicted time later
// by that many standard deviations of the cost model.
// Ownership: refers to the scheduler's state; it is made for one call of the scheduler.
// Thread-safety: none.
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
  // Seconds until the step of this request that is under way on the stage ends; 0 if there is none.
  [[nodiscard]] double ComputeEnd(const RequestState& request, uint16_t stage, double doubts) const;
  // Returns the most tokens, a multiple of `granule`, that a step can compute from `position` on in
  // `step_s` seconds if it also decodes `decode_tokens`.
  [[nodiscard]] uint32_t TokenBudget(double step_s, uint32_t decode_tokens, uint32_t position,
                                     uint32_t granule) const;
  // Returns how many layers a step or a load may have that would take `whole_s` seconds through all
  // layers: as many as fit into SchedulerOptions::finest of the time that is left of the stage, at
  // least 1, and all if the engine does not split layers.
  [[nodiscard]] uint16_t LayersPerStep(RequestState& request, uint16_t stage, double whole_s) const;

  // ---- loading
  // Seconds until loading alone would have everything that computing waits for: all of the stage if
  // no hole is ahead, otherwise the blocks before the next hole.  kNoDeadline: computing should not
  // wait for loads.  That is always so if a hole is ahead and the engine splits layers.
  [[nodiscard]] double LoadsAhead(const RequestState& request, const StageState& stage) const;
  // Seconds until loading alone would have what computing has not claimed of the stage, or, if
  // `hole` is not 0, of the blocks before block `hole`.  kNoDeadline: nothing can be loaded, the
  // loads would end after the request's deadline, or a channel serves another request.
  [[nodiscard]] double LoadsEnd(const RequestState& request, const StageState& stage,
                                uint32_t hole) const;
  // Seconds until the loads of these tokens that are under way have arrived, except loads that have
  // only layers below `from`; 0 if there are no such loads.
  [[nodiscard]] double LandsIn(const RequestState& request, uint16_t stage, TokenRange tokens,
                               uint16_t from, double doubts) const;
  // Returns when a request with loads on this channel stops waiting for the channel's first load.
  // That load may never arrive, and then the engine would have lost the time for which it waited.
  [[nodiscard]] double OverdueFrom(const ChannelQueue& queue, const RequestState& request,
                                   uint16_t stage) const;
  // Returns true if OverdueFrom has passed on a channel that has loads of this request and stage
  // (and chunk, if `chunk` is given).
  [[nodiscard]] bool IsOverdue(const RequestState& request, uint16_t stage,
                               std::optional<uint32_t> chunk) const;
  // Returns the deadline of a load that is under way: when SchedulerOptions::patience ends, but at
  // the latest the request's deadline, or now if that has passed.
  [[nodiscard]] double DeadlineOf(const RequestState& request, const Load& load) const;

  // ---- both
  // Returns the relative uncertainty of computing compared with loading: the sum of both doubts.
  [[nodiscard]] double Doubt(const RequestState& request, uint16_t stage) const;
  // Returns true if the suffix or holes can be computed layer by layer behind the loads.
  [[nodiscard]] bool MaySweep(const RequestState& request, const StageState& state) const;
  [[nodiscard]] bool OverlapsSuffix(const RequestState& request) const {
    return options.engine.overlaps_suffix && request.spec.suffix_tokens > 0;
  }
};

}  // namespace larder
