// Decides what an engine computes and what its channels load, for many restores at once.  A pure
// state machine.
//
//   Scheduler scheduler(options, costs, FinishFirst());
//   scheduler.Add(spec, now);
//   an idle engine:          if (auto step = scheduler.NextCompute(stage, budget, now)) run it,
//                            then OnComputed(step->id)
//   a channel with capacity: scheduler.NextLoads(channel, bytes, now, &loads), begin them in this
//                            order, then OnLoaded or OnLoadFailed for each
//   after any of these:      drop TakeCancelledLoads and TakeAbandonedSteps, report TakeOutcomes,
//                            ask idle engines and channels again, call OnTime at NextWakeup
//
// It promises: a layer of a block is given to the engine or to a channel and not to both, except in
// a hedge, or if what is behind it in its chunk cannot be computed without it; computing never
// depends on a load that is still under way; a load that is late or has failed becomes a compute,
// or is tried again while there is time; all ranks of a stage share one meeting point.
// The policy orders requests.  Within a request the rules are those of compute_choice.h and
// load_choice.h; this class asks them for the requests in order, claims what they choose, and does
// what follows from each report.
// It does not move bytes and does not decode: the `budget` of NextCompute is what decoding leaves
// of a step's tokens.  An engine that computes several ranges in one step, beside what it decodes,
// asks for them by NextStep.  Prefill behind a prefix comes before any restore.
// Ownership: a value; owns policy and costs.  Thread-safety: none: a driver with threads holds one
// lock.
// Lifecycle: Add -> (steps, loads) -> an Outcome, once.  Steps and loads of a request that is gone
// may still be reported; OnLoaded answers kDrop.
// Limits: see EngineTraits, kStageLayersMax, kRequestsMax.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/restore/channel_queues.h"
#include "client/restore/compute_choice.h"
#include "client/restore/costs/cost_model.h"
#include "client/restore/forecast.h"
#include "client/restore/load_choice.h"
#include "client/restore/policy.h"
#include "client/restore/request/options.h"
#include "client/restore/request/request.h"
#include "client/restore/request_state.h"
#include "client/restore/trace.h"

namespace larder {

inline constexpr size_t kRequestsMax = 4096;

// What a step of an engine that decodes meanwhile may hold.
struct StepRoom {
  uint32_t tokens = 0;           // of all, those that are decoded among them
  uint32_t decode_tokens = 0;    // come first, and are the engine's own
  double seconds = kNoDeadline;  // that the step may last
  // What is cut for `seconds` is a multiple of it, or of a request's cut_tokens.
  uint32_t granule = 16;
};

class Scheduler {
 public:
  Scheduler(SchedulerOptions options, CostModel costs, std::unique_ptr<Policy> policy);

  // INVALID_ARGUMENT (see Validate), ALREADY_EXISTS, RESOURCE_EXHAUSTED.
  [[nodiscard]] absl::Status Add(RequestSpec spec, double now_s);
  // Its loads and steps are cancelled; its outcome says so.
  void Cancel(RequestId request, double now_s);

  // What an idle stage computes next, of `token_budget` tokens at most (but see
  // RequestSpec::cut_tokens); nullopt: nothing that would help now.  A suffix that follows the
  // loads is computed whole through so few layers that this is no more work than the budget through
  // all of them, but at least through one.
  [[nodiscard]] std::optional<ComputeStep> NextCompute(uint16_t stage, uint32_t token_budget,
                                                       double now_s);
  // The same for one step of many ranges: prefill first, restores in what is left, as much of each
  // as fits, the doubt about costs included.  Empty: the step decodes alone.
  [[nodiscard]] std::vector<ComputeStep> NextStep(uint16_t stage, const StepRoom& room,
                                                  double now_s);
  // All of it is through, and what was decoded beside it; it took so long together.
  void OnStepComputed(const std::vector<ComputeStep>& steps, uint32_t decode_tokens, double now_s,
                      double took_s);
  // `took_s`: what it took, where that is not the time since it was given; 0: nothing to learn
  // from, as when several steps run as one.
  void OnComputed(StepId step, double now_s, std::optional<double> took_s = std::nullopt);
  // Appends to `loads` at least one, if there is any and `bytes` > 0, and more until they have
  // `bytes`.
  void NextLoads(ChannelId channel, double bytes, double now_s, std::vector<Load>* loads);
  [[nodiscard]] Landing OnLoaded(LoadId load, double now_s);
  void OnLoadFailed(LoadId load, LoadFailure why, double now_s);
  void OnRateChange(ChannelId channel, double bytes_per_s) { costs_.SetRate(channel, bytes_per_s); }
  // Takes loads that passed their deadline for lost.
  void OnTime(double now_s);
  // When OnTime has something to do, or something is so overdue that an idle engine or channel
  // should ask again; infinity: never.
  [[nodiscard]] double NextWakeup(double now_s) const;
  // The earliest deadline of a load that is under way; infinity: there is none.
  [[nodiscard]] double NextDeadline() const { return queues_.Deadline(); }
  // Of this load: later than it was when the load was given, where those ahead of it on its channel
  // took longer than was thought; infinity: it is not under way.
  [[nodiscard]] double DeadlineOf(LoadId load) const { return queues_.DeadlineOf(load); }

  // Loads that nobody needs any more, steps that the engine may drop.  Not to be reported.
  [[nodiscard]] std::vector<LoadId> TakeCancelledLoads() {
    return std::exchange(cancelled_loads_, {});
  }
  [[nodiscard]] std::vector<StepId> TakeAbandonedSteps() {
    return std::exchange(abandoned_steps_, {});
  }
  [[nodiscard]] std::vector<Outcome> TakeOutcomes() { return std::exchange(outcomes_, {}); }

  // Tokens of a step that lasts `step_s` at most, behind `position` and beside `decode_tokens`; for
  // engines that decode meanwhile.  A multiple of `granule`.
  [[nodiscard]] uint32_t TokenBudget(double step_s, uint32_t decode_tokens, uint32_t position,
                                     uint32_t granule) const;

  [[nodiscard]] const CostModel& costs() const { return costs_; }
  [[nodiscard]] const Trace& trace() const { return trace_; }
  [[nodiscard]] size_t requests() const { return requests_.size(); }
  void CheckInvariants() const;  // O(blocks); for tests

 private:
  using Requests = std::vector<std::unique_ptr<RequestState>>;

  [[nodiscard]] Forecast At(double now_s) const {
    return {options_, costs_, queues_, steps_, requests_.size(), now_s};
  }
  [[nodiscard]] RequestState* Find(RequestId id);
  [[nodiscard]] const RequestState* Find(RequestId id) const;
  // Weighs all requests for an engine or a channel.  Then Nth(0) is the request to serve first,
  // Nth(1) the next.  They are asked for in this order; each is found only when asked for.
  void Rank(std::optional<ChannelId> channel, double now_s);
  [[nodiscard]] RequestState& Nth(size_t i);
  // Chooses which of the last few cells of a request to give out, if anything has changed since.
  void Aim(RequestState& request, double now_s);

  // ---- giving out
  [[nodiscard]] std::optional<ComputeStep> ComputeWithin(uint16_t stage, const StepBudget& budget,
                                                         double now_s);
  ComputeStep BeginSuffix(RequestState& request, const SuffixChoice& choice, double now_s);
  ComputeStep BeginRestore(RequestState& request, uint16_t stage, const StageWork& work,
                           double now_s);
  [[nodiscard]] std::optional<Load> NextLoad(ChannelId channel, double now_s);
  Load BeginLoad(RequestState& request, ChannelId channel, const LoadChoice& choice, double now_s);

  // ---- what follows from reports
  void Fail(const Load& load, LoadFailure why, double now_s);
  // If nothing may be computed: loses requests of which something is not there and will not come.
  void LoseHopeless(double now_s);
  void Lose(RequestState& request, uint16_t stage, double now_s);
  // Drops what the other resource has made needless, and reports a request that is complete.
  void Settle(RequestState& request, double now_s);
  void DropOvertaken(RequestState& request, double now_s);
  void DropLoads(RequestId request, double now_s);
  void Finish(RequestState& request, double now_s);
  // Asks for the deadline of every load of the queue again, after the removal of a load that had
  // `ahead` loads in front of it.
  void Postpone(ChannelQueue& queue, size_t ahead, double now_s);
  void Note(DecisionKind kind, const ComputeStep& step, double now_s, double chosen_s);
  void Note(DecisionKind kind, const Load& load, double now_s, double chosen_s);

  const SchedulerOptions options_;
  CostModel costs_;
  const std::unique_ptr<Policy> policy_;
  Requests requests_;  // in order of arrival
  ChannelQueues queues_;
  std::vector<ComputeStep> steps_;  // under way
  std::vector<LoadId> cancelled_loads_;
  std::vector<StepId> abandoned_steps_;
  std::vector<Outcome> outcomes_;
  Trace trace_;
  uint64_t last_step_ = 0, last_load_ = 0, turns_ = 0;

  struct Ranked {
    double key = 0;
    uint32_t index = 0;  // in requests_
  };
  std::vector<Ranked> ranked_;
};

}  // namespace larder
