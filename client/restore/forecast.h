// Predicts when steps and loads that are under way end, and how long loading the rest takes.  The
// scheduler's choices compare these times.
//
// A view of the scheduler's state at one moment.  With a parameter `doubts`, the step or the loads
// are assumed to take that many standard deviations of the cost model longer.
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
  // layers: as many as fit into SchedulerOptions::finest of StageOutlook::both_s, but at least 1;
  // all if the engine does not split layers.
  [[nodiscard]] uint16_t LayersPerStep(RequestState& request, uint16_t stage, double whole_s) const;

  // ---- loading
  // Seconds until loading alone would have what computing waits for: the rest of the stage if no
  // hole is ahead, otherwise the blocks before the next hole.  kNoDeadline means that computing
  // should not wait for loads.
  [[nodiscard]] double LoadsAhead(const RequestState& request, const StageState& stage) const;
  // Seconds until loading alone would have what computing has not claimed, except holes: of the
  // stage, or, if `hole` is not 0, of the blocks before block `hole`.  kNoDeadline means that
  // loading should not be counted on, for example because the loads would end after the request's
  // deadline.
  [[nodiscard]] double LoadsEnd(const RequestState& request, const StageState& stage,
                                uint32_t hole) const;
  // Seconds until the loads of KV of these tokens that are under way have arrived, except loads
  // that have only layers below `from`; 0 if there are no such loads.
  [[nodiscard]] double LandsIn(const RequestState& request, uint16_t stage, TokenRange tokens,
                               uint16_t from, double doubts) const;
  // Returns when the first load of the queue becomes overdue for a request with loads in the queue.
  [[nodiscard]] double OverdueFrom(const ChannelQueue& queue, const RequestState& request,
                                   uint16_t stage) const;
  // Returns true if OverdueFrom has passed on a channel with KV loads of this request and stage
  // (and chunk, if `chunk` is given).
  [[nodiscard]] bool IsOverdue(const RequestState& request, uint16_t stage,
                               std::optional<uint32_t> chunk) const;
  // Returns the deadline of a load that is under way: when SchedulerOptions::patience ends, but at
  // the latest the request's deadline, or now if that has passed.
  [[nodiscard]] double DeadlineOf(const RequestState& request, const Load& load) const;

  // ---- both
  // Returns the relative uncertainty of computing compared with loading.
  [[nodiscard]] double Doubt(const RequestState& request, uint16_t stage) const;
  // Returns true if the suffix (the tokens behind the prefix) or holes may be computed layer by
  // layer behind the loads.
  [[nodiscard]] bool MaySweep(const RequestState& request, const StageState& state) const;
  [[nodiscard]] bool OverlapsSuffix(const RequestState& request) const {
    return options.engine.overlaps_suffix && request.spec.suffix_tokens > 0;
  }
};

}  // namespace larder
