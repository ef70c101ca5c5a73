// Decides what an engine computes and what its channels load, for many restores at once.  A pure
// state machine; the program that calls it is its driver.
//
//   Scheduler scheduler(options, costs, FinishFirst());
//   scheduler.Add(spec, now);
//   an idle engine:          if (auto step = scheduler.NextCompute(stage, budget, now)) run it,
//                            then OnComputed
//   a channel with capacity: scheduler.NextLoads(channel, bytes, now, &loads), begin them in this
//                            order, then OnLoaded or OnLoadFailed for each
//   after any of these:      drop TakeCancelledLoads and TakeAbandonedSteps, report TakeOutcomes,
//                            ask idle engines and channels again, call OnTime at NextWakeup
//
// The scheduler promises: it gives a layer of a block either to the engine or to channels, and to
// both only in a hedge, or where a step of the engine cannot leave the layer out; computing never
// depends on a load that is still under way; if a load is late or has failed, its layers are
// computed or loaded again, or the request ends without them (Outcome::lost or cancelled); on all
// ranks of a stage, computing and loading meet at the same point.
// The policy orders restores; suffixes (the tokens behind the prefixes) mostly come first, in order
// of arrival.  Within a request the rules are those of compute_choice.h and load_choice.h.  This
// class asks them about one request after the other, gives out what they choose, and updates its
// state after each report.
// The scheduler does not move bytes and does not decode: the token budget of NextCompute is what
// decoding leaves of a step's tokens.  An engine that computes several ranges in one step, together
// with the tokens that it decodes, calls NextStep.
// Ownership: a value; owns policy and costs.
// Thread-safety: none; a driver with several threads holds one lock during every call.
// Lifecycle: Add -> (steps, loads) -> exactly one Outcome.  A driver may still report steps and
// loads of a request that has ended; OnLoaded returns kDrop for such loads.
// Limits: kStageLayersMax layers in a stage, kRequestsMax requests under way.
#pragma once

#include <memory>
#include <optional>
#include <span>
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

// The limits of one step of an engine that also decodes in that step.
struct StepRoom {
  uint32_t tokens = 0;           // in all, decode_tokens included
  uint32_t decode_tokens = 0;    // of these, what the engine decodes itself
  double seconds = kNoDeadline;  // the step may last this long, as predicted
  // If `seconds` limits the tokens of a range, they are a multiple of this, or whole cuts if the
  // request has cut_tokens.
  uint32_t granule = 16;
};

class Scheduler {
 public:
  Scheduler(SchedulerOptions options, CostModel costs, std::unique_ptr<Policy> policy);

  // Returns InvalidArgument if Validate refuses `spec`, or if `spec` has cut_tokens and the engine
  // splits layers; AlreadyExists if a request of this id is under way; ResourceExhausted if
  // kRequestsMax requests are under way.
  [[nodiscard]] absl::Status Add(RequestSpec spec, double now_s);
  // Ends the request: its loads and steps are cancelled, and its Outcome has `cancelled` set.  Does
  // nothing if the request is not under way.
  void Cancel(RequestId request, double now_s);

  // Returns the next step of an idle stage, or nullopt if there is none now.  A step has at most
  // `token_budget` tokens, with two exceptions: if the prefix ends with less than a cut, its last
  // step may exceed the budget by less than a cut (RequestSpec::cut_tokens); and a suffix that is
  // computed layer by layer behind the loads has all of its tokens but only some layers in each
  // step.
  [[nodiscard]] std::optional<ComputeStep> NextCompute(uint16_t stage, uint32_t token_budget,
                                                       double now_s);
  // Returns the ranges of one step that also decodes, at most one of each request: suffixes first,
  // then restores, then hedges, while they fit into `room`.  Empty: the step should only decode.
  // The ranges are chosen so that the predicted time of the step, increased by twice the doubt
  // about costs, is at most room.seconds, which the last cut of a prefix and a suffix that is
  // computed layer by layer may exceed.
  [[nodiscard]] std::vector<ComputeStep> NextStep(uint16_t stage, const StepRoom& room,
                                                  double now_s);
  // Reports that one step of `took_s` seconds computed all of `steps` and decoded `decode_tokens`.
  void OnStepComputed(const std::vector<ComputeStep>& steps, uint32_t decode_tokens, double now_s,
                      double took_s);
  // Reports that a step is computed.  `took_s` is how long it took; if it is nullopt, that is the
  // time since the scheduler returned the step.  0: the costs learn nothing from the step.
  void OnComputed(StepId step, double now_s, std::optional<double> took_s = std::nullopt);
  // Reports that the engine does not compute a step, and has computed nothing of it.
  void OnAbandoned(StepId step, double now_s);
  // Learns from a step whose ranges were reported by OnComputed with `took_s` 0.
  void ObserveStep(std::span<const TokenRange> ranges, uint32_t decode_tokens, double took_s) {
    costs_.ObserveStep(ranges, decode_tokens, took_s);
  }
  // Learns from a load that no NextLoads returned.
  void ObserveLoad(ChannelId channel, double bytes, double took_s) {
    costs_.ObserveLoad(channel, bytes, took_s);
  }
  // Appends loads for the channel to `loads` until the appended ones have at least `bytes` bytes in
  // all, or until no further load would help.
  void NextLoads(ChannelId channel, double bytes, double now_s, std::vector<Load>* loads);
  [[nodiscard]] Landing OnLoaded(LoadId load, double now_s);
  void OnLoadFailed(LoadId load, LoadFailure why, double now_s);
  void OnRateChange(ChannelId channel, double bytes_per_s) { costs_.SetRate(channel, bytes_per_s); }
  // Treats loads whose deadline has passed as failed.  If nothing may be computed
  // (SchedulerOptions::computes is false), also ends as lost the requests that have a hole or whose
  // deadline has passed.
  void OnTime(double now_s);
  // Returns when to call OnTime, and to ask idle engines and channels again, at the latest;
  // infinity if no step or load is under way.
  [[nodiscard]] double NextWakeup(double now_s) const;
  // Returns the earliest deadline of a load that is under way; infinity if there is none.
  [[nodiscard]] double NextDeadline() const { return queues_.Deadline(); }
  // Returns the deadline of this load; infinity if it is not under way.  The deadline may differ
  // from Load::deadline_s, because it is predicted again when other loads of the channel end.
  [[nodiscard]] double DeadlineOf(LoadId load) const { return queues_.DeadlineOf(load); }

  // Returns the loads that the driver may drop, because they are late or no longer needed, and
  // forgets them.  The driver need not report them.
  [[nodiscard]] std::vector<LoadId> TakeCancelledLoads() {
    return std::exchange(cancelled_loads_, {});
  }
  // Returns the steps that the engine may drop, and forgets them.  The driver need not report
  // them.
  [[nodiscard]] std::vector<StepId> TakeAbandonedSteps() {
    return std::exchange(abandoned_steps_, {});
  }
  [[nodiscard]] std::vector<Outcome> TakeOutcomes() { return std::exchange(outcomes_, {}); }

  // For engines that decode in the same step: returns the most tokens, a multiple of `granule`,
  // that a step can compute from `position` on in `step_s` seconds, as predicted, if it also
  // decodes `decode_tokens`.  REQUIRES: `step_s` is finite; `granule` is above 0.
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
  // Computes the policy's keys of all requests for the channel, or for the engine if `channel` is
  // nullopt.  Afterwards Nth(0) is the request to serve first, Nth(1) the next.  REQUIRES: Nth is
  // called for 0, 1, 2, ... in this order, because each call selects the lowest of the remaining
  // keys.
  void Rank(std::optional<ChannelId> channel, double now_s);
  [[nodiscard]] RequestState& Nth(size_t i);
  // Chooses which of the last few layers of chunks of a request to compute or load next, if
  // RequestState::aimed is not set.  Only for engines that split layers and for simple requests;
  // chooses none while other requests are under way.
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
  // For schedulers that may not compute: ends as lost every request that has a hole, or whose
  // deadline has passed and of which no load is under way.
  void LoseHopeless(double now_s);
  void Lose(RequestState& request, uint16_t stage, double now_s);
  // Cancels the request's loads and steps that are no longer needed.  Ends the request once prefix
  // and suffix are complete.
  void Settle(RequestState& request, double now_s);
  void DropOvertaken(RequestState& request, double now_s);
  void DropLoads(RequestId request, double now_s);
  void Finish(RequestState& request, double now_s);
  // Computes the deadline of every load of the queue again, after the removal of a load that had
  // `ahead` loads in front of it.  The deadlines of those `ahead` loads do not become later.
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
