// Decides what an engine computes and what its channels load, for many restores at once.  A pure
// state machine.
//
//   Scheduler scheduler(options, costs, FinishFirst());
//   scheduler.Add(spec, now);
//   an idle engine:          if (auto step = scheduler.NextCompute(stage, budget, now)) run it,
//                            then OnComputed(step->id)
//   a channel with room:     scheduler.NextLoads(channel, room, now, &loads), begin them in this
//                            order, then OnLoaded or OnLoadFailed of each
//   after any of these:      drop TakeCancelledLoads and TakeAbandonedSteps, report TakeOutcomes,
//                            ask idle engines and channels again, call OnTime at NextWakeup
//
// Promises: a layer of a block is given to the engine or to a channel, not to both, but in a hedge,
// or where what is behind it in its chunk cannot be computed without it; computing never depends on
// a load that is still under way; a load that is late or failed becomes a compute, or is tried
// again while there is time; all ranks of a stage share one meet.  The order among requests is the
// policy's; within one, loading comes from the tail and computing from the head, neither begins
// what the other is through with sooner, and what is contested at the end is split between layers
// or within a chunk where the engine can, or hedged.
// Does not move bytes, does not decode: what is left of a step's tokens after decoding is the
// `budget` of NextCompute; an engine that computes several ranges in one step, beside what it
// decodes, asks for them by NextStep.  Prefill behind a prefix comes before any restore.
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
#include "client/restore/channel_queue.h"
#include "client/restore/cost_model.h"
#include "client/restore/options.h"
#include "client/restore/policy.h"
#include "client/restore/request.h"
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
  // Appends to `loads` at least one, if there is any and room > 0, and more while they fit into
  // `room_bytes`.
  void NextLoads(ChannelId channel, double room_bytes, double now_s, std::vector<Load>* loads);
  [[nodiscard]] Landing OnLoaded(LoadId load, double now_s);
  void OnLoadFailed(LoadId load, LoadFailure why, double now_s);
  void OnRateChange(ChannelId channel, double bytes_per_s) { costs_.SetRate(channel, bytes_per_s); }
  // Takes loads that passed their deadline for lost.
  void OnTime(double now_s);
  // When OnTime has something to do, or something is so overdue that an idle engine or channel
  // should ask again; infinity: never.
  [[nodiscard]] double NextWakeup(double now_s) const;
  // The earliest deadline of a load that is under way; infinity: there is none.
  [[nodiscard]] double NextDeadline() const;
  // Of this load: later than it was when the load was given, where those ahead of it on its channel
  // took longer than was thought; infinity: it is not under way.
  [[nodiscard]] double DeadlineOf(LoadId load) const;

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
  enum class Resource : uint8_t { kCompute, kLoad };

  void Aim(RequestState& request, double now_s);
  // Tokens and seconds that a step has left.
  struct Budget {
    uint32_t tokens = 0;
    double seconds = kNoDeadline;
    uint32_t granule = 1;
  };
  [[nodiscard]] std::optional<ComputeStep> ComputeWithin(uint16_t stage, const Budget& budget,
                                                         double now_s);
  // Of them, tokens behind `position`.
  [[nodiscard]] uint32_t Tokens(const Budget& budget, uint32_t position) const;
  [[nodiscard]] std::optional<StageState::Work> WorkWithin(const StageState& state,
                                                           uint16_t layers_max,
                                                           const Budget& budget) const;
  [[nodiscard]] RequestState* Find(RequestId id);
  [[nodiscard]] const RequestState* Find(RequestId id) const;
  ChannelQueue& Queue(ChannelId channel);
  // Weighs all requests; then Nth(0), Nth(1), ... are they, the first served first, each found when
  // asked for.
  void Rank(Resource resource, ChannelId channel, double now_s);
  [[nodiscard]] RequestState& Nth(size_t i);

  [[nodiscard]] std::optional<ComputeStep> SuffixStep(RequestState& request, const Budget& budget,
                                                      double now_s);
  [[nodiscard]] std::optional<ComputeStep> RestoreStep(RequestState& request, uint16_t stage,
                                                       const Budget& budget, double now_s);
  [[nodiscard]] std::optional<ComputeStep> HedgeStep(RequestState& request, uint16_t stage,
                                                     const Budget& budget, double now_s);
  ComputeStep BeginStep(RequestState& request, uint16_t stage, const StageState::Work& work,
                        double now_s);
  [[nodiscard]] bool IsOverdue(const RequestState& request, uint16_t stage,
                               std::optional<uint32_t> chunk, double now_s) const;
  // When the first load of a channel is too late for this request, which has some there.
  [[nodiscard]] double OverdueFrom(const ChannelQueue& queue, const RequestState& request,
                                   uint16_t stage) const;
  [[nodiscard]] bool Tries(const RequestState& request, uint16_t stage) const;
  [[nodiscard]] bool Pays(RequestState& request, uint16_t stage, const StageState::Work& work,
                          double now_s);
  [[nodiscard]] double Doubt(const RequestState& request, uint16_t stage) const;
  // Something is computed behind the loads that can follow them layer by layer.
  [[nodiscard]] bool MaySweep(const RequestState& request, const StageState& state) const;
  // Has the rest loaded bottom-up, where what must be computed behind it is through sooner that
  // way.
  // Where computing does not pay, at once.
  [[nodiscard]] bool SweepBegins(RequestState& request, uint16_t stage,
                                 const StageState::Work& work, bool pays, double now_s);
  [[nodiscard]] double LoadsAhead(const RequestState& request, const StageState& stage,
                                  double now_s) const;
  [[nodiscard]] double LoadsEnd(const RequestState& request, const StageState& stage, double now_s,
                                uint32_t hole) const;
  [[nodiscard]] LoadId LastBefore(const RequestState& request, ChannelId channel,
                                  uint32_t block) const;
  [[nodiscard]] bool AwaitsLoads(const RequestState& request, uint16_t stage,
                                 const StageState::Work& work, double now_s) const;
  [[nodiscard]] double LandsIn(const RequestState& request, uint16_t stage, TokenRange tokens,
                               uint16_t from, double doubts, double now_s) const;
  [[nodiscard]] uint32_t TokensToMeet(RequestState& request, uint16_t stage,
                                      const StageState::Work& work, double now_s);
  [[nodiscard]] uint16_t LayersPerStep(RequestState& request, uint16_t stage, double whole_s);

  [[nodiscard]] std::optional<Load> NextLoad(ChannelId channel, double now_s);
  [[nodiscard]] std::optional<Load> LoadOf(RequestState& request, ChannelId channel, double now_s);
  [[nodiscard]] std::optional<Load> HedgeLoad(RequestState& request, ChannelId channel,
                                              double now_s);
  [[nodiscard]] bool BoundaryBound(RequestState& request, ChannelId channel);
  [[nodiscard]] std::optional<Load> BoundaryLoad(RequestState& request, ChannelId channel,
                                                 double now_s);
  Load BeginLoad(RequestState& request, uint16_t stage, uint16_t rank, ChannelId channel,
                 const StageState::Piece& piece, double now_s);
  [[nodiscard]] bool Leaves(RequestState& request, uint16_t stage, ChannelId channel, double bytes,
                            double now_s);
  [[nodiscard]] double DeadlineOf(const RequestState& request, const Load& load,
                                  double now_s) const;
  [[nodiscard]] double ComputeEnd(const RequestState& request, uint16_t stage, double now_s,
                                  double doubts) const;

  void Fail(const Load& load, LoadFailure why, double now_s);
  void LoseHopeless(double now_s);
  void Lose(RequestState& request, uint16_t stage, double now_s);
  void DropOvertaken(RequestState& request, double now_s);
  void DropLoads(RequestId request, double now_s);
  void Settle(RequestState& request, double now_s);
  void Finish(RequestState& request, double now_s);
  void Note(DecisionKind kind, const ComputeStep& step, double now_s, double chosen_s,
            double other_s);
  void Note(DecisionKind kind, const Load& load, double now_s, double chosen_s, double other_s);

  const SchedulerOptions options_;
  CostModel costs_;
  const std::unique_ptr<Policy> policy_;
  Requests requests_;  // in order of arrival
  std::vector<ChannelQueue> queues_;
  std::vector<RequestId> served_;   // per channel: whom it loads for
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
