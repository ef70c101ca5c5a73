#include "client/restore/compute_choice.h"

#include <algorithm>

#include "client/restore/stage/stage_estimate.h"

namespace larder {
namespace {

// If a step spares fewer seconds of loading than this per second of computing, a sweep (loading
// bottom-up) begins instead, where one is possible.
constexpr double kSparesMin = 0.05;
constexpr double kGuess = 0.01;  // the least relative error of estimates of a sweep
// The part of the doubt about costs that carries over to estimates of a sweep (StageSweep).
constexpr double kSwayed = 0.4;

uint32_t TokensWithin(const Forecast& forecast, const StepBudget& budget, uint32_t position) {
  if (budget.seconds == kNoDeadline) return budget.tokens;
  const double step_s = budget.seconds + forecast.costs.compute().fixed_s;
  return std::min(budget.tokens, forecast.TokenBudget(step_s, 0, position, budget.granule));
}

std::optional<StageWork> WorkWithin(const Forecast& forecast, const StageState& state,
                                    uint16_t layers_max, const StepBudget& budget) {
  const auto work = state.NextWork(layers_max, budget.tokens);
  if (!work.has_value()) return std::nullopt;
  const uint32_t tokens = TokensWithin(forecast, budget, work->tokens.begin);
  if (work->tokens.end - work->tokens.begin <= tokens) return work;
  return state.NextWork(layers_max, tokens);
}

// For a request with cut_tokens: returns about how many tokens the step should have so that it ends
// when the loads of the other tokens end, but at least so many that it includes a cut that no load
// has claimed.  Returns chunk_tokens if the step should not wait for loads.
uint32_t TokensToMeet(const Forecast& forecast, RequestState& request, uint16_t stage,
                      const StageWork& work) {
  const StageState& state = request.stages[stage];
  const double loads_s = forecast.LoadsAhead(request, state);
  const bool overdue = forecast.IsOverdue(request, stage, std::nullopt);
  const double compute_s = request.Outlook(forecast.costs, stage).compute_s;
  if (loads_s == kNoDeadline || overdue || compute_s <= 0) return request.spec.chunk_tokens;
  double unclaimed_s = 0;  // to load what no one has claimed
  for (const StageLane& lane : state.claims().lanes())
    unclaimed_s = std::max(unclaimed_s, state.LaneSeconds(forecast.costs, lane.channel));
  // If a share f of the unclaimed tokens is computed, computing takes f * compute_s, and loading
  // ends after loads_s - f * unclaimed_s (loads_s includes the loads under way).  Both end at
  // meet_s.
  const double meet_s = loads_s * compute_s / (compute_s + unclaimed_s);
  const uint32_t cut = state.shape().cut_tokens;
  const uint32_t tokens = forecast.TokenBudget(meet_s, 0, work.tokens.begin, 1);
  const uint32_t least = work.unclaimed_from - work.tokens.begin + cut;
  return std::max(least, (tokens + cut / 2) / cut * cut);
}

// The step may begin with tokens that loads have claimed, because the tokens behind them cannot be
// computed without them.  Returns true only if those loads should arrive before the engine could
// have computed these tokens, and no load of the chunk is overdue.
bool AwaitsLoads(const Forecast& forecast, const RequestState& request, uint16_t stage,
                 const StageWork& work) {
  if (!request.stages[stage].shape().cuts() || !forecast.options.falls_back) return false;
  const TokenRange claimed{work.tokens.begin, std::min(work.unclaimed_from, work.tokens.end)};
  if (claimed.begin >= claimed.end) return false;
  if (forecast.IsOverdue(request, stage, work.chunk)) return false;
  return forecast.LandsIn(request, stage, claimed, 0, /*doubts=*/1) <
         forecast.costs.ComputeSeconds(claimed);
}

// Returns true if the engine loses nothing by computing what may be loaded sooner: hedges are
// allowed, the engine can drop the step, and the stage has no suffix (tokens behind the prefix) or
// hole to compute afterwards.
bool LosesNothing(const Forecast& forecast, const RequestState& request, uint16_t stage) {
  return forecast.options.engine.abandons_steps && forecast.options.hedges &&
         request.spec.suffix_tokens == 0 && !request.stages[stage].claims().HasHolesAhead();
}

// Returns true if computing `work` is worth it; otherwise adds a kHold decision to *trace.  It
// returns false only if loading alone may have everything that computing waits for sooner, or if
// loading activations costs at least as much as loading the KV.  In several cases it returns true
// without comparing computing with loading, for example if a load is overdue.
bool Pays(const Forecast& forecast, const RequestState& request, uint16_t stage,
          const StageWork& work, Trace* trace) {
  if (!forecast.options.falls_back) return true;
  const StageState& state = request.stages[stage];
  const StageClaims& claims = state.claims();
  if (!request.spec.depths.empty() || claims.IsPartial(work.chunk)) return true;
  const bool alone = forecast.requests == 1;
  if (alone && LosesNothing(forecast, request, stage) && !claims.BoundaryCostsMore()) return true;
  const double loads_s = forecast.LoadsAhead(request, state);
  if (loads_s == kNoDeadline || loads_s <= 0) return true;
  if (forecast.IsOverdue(request, stage, std::nullopt)) return true;
  const double compute_s = forecast.options.engine.splits_layers
                               ? WorkSeconds(claims, forecast.costs, work)
                               : ChunkSeconds(claims, forecast.costs, work);
  const double late_s = compute_s * (1 + forecast.costs.ComputeDoubt(work.tokens));
  if (late_s <= loads_s && !claims.BoundaryCostsMore()) return true;
  trace->Add({forecast.now_s, DecisionKind::kHold, request.spec.id, stage, 0, ChannelId::kNowhere,
              work.tokens, work.layers, loads_s, compute_s});
  return false;
}

// Where a sweep (loading the rest bottom-up) is possible, begins one if that should help the
// computing that follows the loads, or if `work` is not worth computing (`pays` is false, or `work`
// spares almost no loading).  Returns true if a sweep was begun.
bool BeginSweepIfSooner(const Forecast& forecast, RequestState& request, uint16_t stage,
                        const StageWork& work, bool pays, Trace* trace) {
  const CostModel& costs = forecast.costs;
  StageState& state = request.stages[stage];
  const StageClaims& claims = state.claims();
  if (!forecast.MaySweep(request, state) || state.sweeps() || claims.IsPartial(work.chunk))
    return false;
  const bool overlaps = forecast.OverlapsSuffix(request);
  const double loads_s = forecast.LoadsEnd(request, state, /*hole=*/0);
  if (loads_s == kNoDeadline) return false;
  const TokenRange suffix{request.spec.tokens, request.spec.tokens + request.spec.suffix_tokens};
  const double behind_s =
      HoleSeconds(claims, costs) + (overlaps ? costs.ComputeSeconds(suffix) : 0);
  const double compute_s = WorkSeconds(claims, costs, work), layers = state.shape().layers;
  const StageOutlook& outlook = request.Outlook(costs, stage);
  const double spared_s =
      outlook.compute_s > 0 ? outlook.lanes_s * compute_s / outlook.compute_s : 0;
  // The computing behind the loads (holes, and the suffix if it overlaps) waits for the lowest
  // layer that is left to load, and from the highest such layer on it comes after the last load
  // that it waits for.  tail_s is the time of the loads for which it does not wait: those behind
  // the last hole, or none if the suffix overlaps.
  const double tail_s = overlaps ? 0 : TailSeconds(claims, costs);
  const auto end = [&](double left_s, StageLayers missing) {
    const double before_s = std::max(0.0, left_s - tail_s);
    const double first_s = std::min(before_s, behind_s) / std::max(1.0, 1.0 * missing.count());
    const double below = missing.begin / layers, above = (layers - missing.end + 1) / layers;
    return std::max({left_s, first_s + behind_s * (1 - below), before_s + behind_s * above});
  };
  const StageLayers all = state.shape().all_layers();
  const double later_end = compute_s + end(std::max(0.0, loads_s - compute_s - spared_s), all);
  double now_end = end(loads_s, all);
  if (now_end <= later_end) now_end = end(loads_s, state.Missing());
  // If the step spares almost no loading, it only delays the computing behind the loads.
  pays = pays && spared_s > kSparesMin * compute_s;
  // The engine may idle while it waits for the loads before a hole, so without an overlapped suffix
  // the predicted gain must be larger than the error of the prediction.
  const double doubt = std::max(kGuess, kSwayed * forecast.Doubt(request, stage));
  if (pays && now_end > (overlaps ? 1 : 1 - doubt) * later_end) return false;
  trace->Add({forecast.now_s, DecisionKind::kBeginSweep, request.spec.id, stage, 0,
              ChannelId::kNowhere, work.tokens, work.layers, now_end, later_end});
  state.BeginSweep(overlaps);
  request.stale = true;
  return true;
}

}  // namespace

std::optional<SuffixChoice> ChooseSuffix(const Forecast& forecast, const RequestState& request,
                                         const StepBudget& budget) {
  const StageState& stage = request.stages[0];
  const uint16_t layers = stage.shape().layers;
  if (request.spec.suffix_tokens == 0 || request.suffix_running || stage.claims().busy())
    return std::nullopt;
  SuffixChoice choice;
  const TokenRange suffix{request.spec.tokens, request.spec.tokens + request.spec.suffix_tokens};
  if (stage.claims().complete() && request.suffix_layers % layers == 0) {
    choice.tokens = {suffix.begin + request.suffix_tokens, suffix.end};
    const uint32_t tokens = TokensWithin(forecast, budget, choice.tokens.begin);
    choice.tokens.end = std::min(suffix.end, choice.tokens.begin + tokens);
    choice.layers = {0, layers};
    if (choice.tokens.begin >= choice.tokens.end) return std::nullopt;
    return choice;
  }
  choice.tokens = suffix;
  choice.layers = {request.suffix_layers, stage.LayersThere()};
  if (!stage.sweeps() || choice.layers.empty()) return std::nullopt;
  // A suffix that has begun layer by layer can only continue that way, so none begins that way in a
  // step with a time limit.
  const bool begins = request.suffix_layers == 0;
  if (!forecast.options.engine.overlaps_suffix || (begins && budget.seconds < kNoDeadline))
    return std::nullopt;
  const uint64_t layers_max = uint64_t{budget.tokens} * layers / request.spec.suffix_tokens;
  choice.layers.end = static_cast<uint16_t>(std::min<uint64_t>(
      choice.layers.end, choice.layers.begin + std::max<uint64_t>(1, layers_max)));
  return choice;
}

RestoreChoice ChooseRestore(const Forecast& forecast, RequestState& request, uint16_t stage,
                            const StepBudget& budget, Trace* trace) {
  const StageState& state = request.stages[stage];
  const uint16_t all = state.shape().layers;
  auto work = WorkWithin(forecast, state, all, budget);
  if (!work.has_value() || request.suffix_running) return {};
  if (AwaitsLoads(forecast, request, stage, *work)) return {};
  if (state.shape().cuts()) {
    StepBudget meets = budget;
    meets.tokens = std::min(budget.tokens, TokensToMeet(forecast, request, stage, *work));
    work = WorkWithin(forecast, state, all, meets);
    if (!work.has_value()) return {};
  }
  const double work_s = WorkSeconds(state.claims(), forecast.costs, *work);
  const uint16_t layers = forecast.LayersPerStep(request, stage, work_s);
  if (layers < all && !state.sweeps()) work = WorkWithin(forecast, state, layers, budget);
  if (!work.has_value() || work->waits_for_boundary) return {};
  const bool pays = Pays(forecast, request, stage, *work, trace);
  if (BeginSweepIfSooner(forecast, request, stage, *work, pays, trace)) {
    if (auto suffix = ChooseSuffix(forecast, request, budget)) return {.suffix = suffix};
    work = WorkWithin(forecast, state, all, budget);
    if (!work.has_value() || work->waits_for_boundary) return {};
  } else if (!pays) {
    return {};
  }
  return {.work = work};
}

std::optional<StageWork> ChooseHedge(const Forecast& forecast, const RequestState& request,
                                     uint16_t stage, const StepBudget& budget) {
  const StageState& state = request.stages[stage];
  const StageShape& shape = state.shape();
  if (request.suffix_running) return std::nullopt;
  auto work = state.NextHedge(shape.layers, budget.tokens);
  if (!work.has_value()) return std::nullopt;
  const bool overdue = forecast.IsOverdue(request, stage, work->chunk);
  uint32_t tokens = TokensWithin(forecast, budget, work->tokens.begin);
  if (shape.cuts()) {
    if (!overdue) tokens = std::min(tokens, shape.cut_tokens);
    work = state.NextHedge(shape.layers, tokens);
    if (!work.has_value()) return std::nullopt;
  } else if (work->tokens.end - work->tokens.begin > tokens) {
    return std::nullopt;
  }
  // If some tokens of the chunk are computed through the layers of `work`, its other tokens must be
  // computed through all of these layers as well.
  const bool splits =
      forecast.options.engine.splits_layers && !state.claims().IsPartial(work->chunk);
  StageWork chosen = *work;
  if (splits) chosen.layers.end = static_cast<uint16_t>(work->layers.begin + 1);
  if (LosesNothing(forecast, request, stage) || overdue) return chosen;
  const double sure = 1 + forecast.costs.ComputeDoubt(work->tokens);
  const double layer_s =
      WorkSeconds(state.claims(), forecast.costs, *work) / work->layers.count() * sure;
  // If the engine can drop a needless step, assume that loads end later by one standard deviation:
  // hedging too early then costs less than waiting for a late load.
  const double doubts = forecast.options.engine.abandons_steps ? 1 : 0;
  const TokenRange chunk = shape.ChunkTokens(work->chunk);
  const double lands_s = forecast.LandsIn(request, stage, chunk, 0, doubts);
  // Loads mostly bring the top layers first, so computing only the lowest layers may pay even if
  // computing all of them does not.
  for (uint16_t top = chosen.layers.end; top <= work->layers.end; ++top) {
    const double compute_s = layer_s * (top - work->layers.begin);
    const double rest_s = forecast.LandsIn(request, stage, chunk, top, doubts);
    if (std::max(compute_s, rest_s) < lands_s) return chosen;
  }
  return std::nullopt;
}

}  // namespace larder
