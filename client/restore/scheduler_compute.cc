// What an idle engine computes next.
#include <algorithm>
#include <cmath>

#include "client/restore/scheduler.h"

namespace larder {
namespace {

constexpr double kSparesMin = 0.05;  // seconds of loading per second of computing
constexpr double kGuess = 0.01;      // what such estimates are wrong by, at least
constexpr double kSure = 2;          // standard deviations that a step's budget is kept by
constexpr double kSwayed = 0.4;      // of the doubt about costs, in them
constexpr double kBearable = 0.03;   // of computing everything: to wait for what is overdue

}  // namespace

std::optional<ComputeStep> Scheduler::NextCompute(uint16_t stage, uint32_t token_budget,
                                                  double now_s) {
  return ComputeWithin(stage, Budget{token_budget}, now_s);
}

std::optional<ComputeStep> Scheduler::ComputeWithin(uint16_t stage, const Budget& budget,
                                                    double now_s) {
  if (budget.tokens == 0 || budget.seconds <= 0) return std::nullopt;
  Rank(Resource::kCompute, ChannelId::kNowhere, now_s);
  // Prefill behind a prefix first, then what nobody has claimed, then what is contested.
  for (size_t i = 0; i < ranked_.size(); ++i) {
    if (stage > 0) break;
    if (auto step = SuffixStep(*requests_[i], budget, now_s)) return step;
  }
  if (!options_.computes) return std::nullopt;
  for (size_t i = 0; i < ranked_.size(); ++i) {
    RequestState& request = Nth(i);
    if (stage >= request.stages.size()) continue;
    if (auto step = RestoreStep(request, stage, budget, now_s)) return step;
  }
  for (size_t i = 0; options_.hedges && i < ranked_.size(); ++i) {
    RequestState& request = *requests_[ranked_[i].index];  // in order by now
    if (stage >= request.stages.size()) continue;
    if (auto step = HedgeStep(request, stage, budget, now_s)) return step;
  }
  return std::nullopt;
}

std::optional<ComputeStep> Scheduler::SuffixStep(RequestState& request, const Budget& budget,
                                                 double now_s) {
  const StageState& stage = request.stages[0];
  if (request.spec.suffix_tokens == 0 || request.suffix_running || stage.busy())
    return std::nullopt;
  ComputeStep step;
  step.kind = StepKind::kSuffix;
  const TokenRange suffix{request.spec.tokens, request.spec.tokens + request.spec.suffix_tokens};
  if (stage.complete() && request.suffix_layers % stage.layers() == 0) {
    step.tokens = {suffix.begin + request.suffix_tokens, suffix.end};
    step.tokens.end = std::min(suffix.end, step.tokens.begin + Tokens(budget, step.tokens.begin));
    step.layers = {0, stage.layers()};
    if (step.tokens.begin >= step.tokens.end) return std::nullopt;
  } else {
    step.tokens = suffix;
    step.layers = {request.suffix_layers, stage.LayersThere()};
    if (!stage.sweeps() || step.layers.empty()) return std::nullopt;
    // What has begun layer by layer cannot go on otherwise.
    const bool begins = request.suffix_layers == 0;
    if (!options_.engine.overlaps_suffix || (begins && budget.seconds < kNoDeadline))
      return std::nullopt;
    const uint64_t layers_max =
        uint64_t{budget.tokens} * stage.layers() / request.spec.suffix_tokens;
    step.layers.end = static_cast<uint16_t>(
        std::min<uint64_t>(step.layers.end, step.layers.begin + std::max<uint64_t>(1, layers_max)));
  }
  step.id = StepId{++last_step_};
  step.request = request.spec.id;
  step.began_s = now_s;
  step.estimate_s = costs_.ComputeSeconds(step.tokens, stage.model_layers(step.layers));
  request.suffix_running = true;
  steps_.push_back(step);
  Note(DecisionKind::kCompute, step, now_s, step.estimate_s, 0);
  return step;
}

// Where little is left, as many layers as fit into a part of it.
uint16_t Scheduler::LayersPerStep(RequestState& request, uint16_t stage, double whole_s) {
  const uint16_t layers = request.stages[stage].layers();
  if (!options_.engine.splits_layers) return layers;
  const double part_s = request.Outlook(costs_, stage).both_s * options_.finest;
  if (whole_s <= part_s) return layers;
  return static_cast<uint16_t>(std::max(1.0, std::floor(layers * part_s / whole_s)));
}

// Of an engine that cuts chunks: until loading, if it has the rest, would be through as well; at
// least up to something that no load has claimed.
uint32_t Scheduler::TokensToMeet(RequestState& request, uint16_t stage,
                                 const StageState::Work& work, double now_s) {
  const StageState& state = request.stages[stage];
  const double loads_s = LoadsAhead(request, state, now_s);
  const bool overdue = IsOverdue(request, stage, std::nullopt, now_s);
  const double compute_s = request.Outlook(costs_, stage).compute_s;
  if (loads_s == kNoDeadline || overdue || compute_s <= 0) return request.spec.chunk_tokens;
  double unclaimed_s = 0;  // by loading alone
  for (const StageState::Lane& lane : state.lanes())
    unclaimed_s = std::max(unclaimed_s, state.LaneSeconds(costs_, lane.channel));
  // Both leave the same part of it, each in its own seconds; `loads_s` has what is under way, too.
  const double meet_s = loads_s * compute_s / (compute_s + unclaimed_s);
  const uint32_t cut = state.cut_tokens();
  const uint32_t tokens = TokenBudget(meet_s, 0, work.tokens.begin, 1);
  const uint32_t least = work.unclaimed_from - work.tokens.begin + cut;
  return std::max(least, (tokens + cut / 2) / cut * cut);
}

// Whether loads bring what would only be computed for what is behind it before it could be.
bool Scheduler::AwaitsLoads(const RequestState& request, uint16_t stage,
                            const StageState::Work& work, double now_s) const {
  const StageState& state = request.stages[stage];
  if (state.cut_tokens() == 0 || !options_.falls_back) return false;
  const TokenRange claimed{work.tokens.begin, std::min(work.unclaimed_from, work.tokens.end)};
  if (claimed.begin >= claimed.end) return false;
  if (IsOverdue(request, stage, work.chunk, now_s)) return false;
  return LandsIn(request, stage, claimed, 0, /*doubts=*/1, now_s) < costs_.ComputeSeconds(claimed);
}

std::optional<ComputeStep> Scheduler::RestoreStep(RequestState& request, uint16_t stage,
                                                  const Budget& budget, double now_s) {
  StageState& state = request.stages[stage];
  Aim(request, now_s);
  auto work = WorkWithin(state, state.layers(), budget);
  if (!work.has_value() || request.suffix_running) return std::nullopt;
  if (AwaitsLoads(request, stage, *work, now_s)) return std::nullopt;
  if (state.cut_tokens() > 0) {
    Budget meets = budget;
    meets.tokens = std::min(budget.tokens, TokensToMeet(request, stage, *work, now_s));
    work = WorkWithin(state, state.layers(), meets);
    if (!work.has_value()) return std::nullopt;
  }
  const uint16_t layers = LayersPerStep(request, stage, state.WorkSeconds(costs_, *work));
  if (layers < state.layers() && !state.sweeps()) work = WorkWithin(state, layers, budget);
  if (!work.has_value() || work->waits_for_boundary) return std::nullopt;
  const bool pays = Pays(request, stage, *work, now_s);
  if (SweepBegins(request, stage, *work, pays, now_s)) {
    if (auto step = SuffixStep(request, budget, now_s)) return step;
    work = WorkWithin(state, state.layers(), budget);
    if (!work.has_value() || work->waits_for_boundary) return std::nullopt;
  } else if (!pays) {
    return std::nullopt;
  }
  return BeginStep(request, stage, *work, now_s);
}

std::optional<ComputeStep> Scheduler::HedgeStep(RequestState& request, uint16_t stage,
                                                const Budget& budget, double now_s) {
  StageState& state = request.stages[stage];
  if (request.suffix_running) return std::nullopt;
  auto work = state.NextHedge(state.layers(), budget.tokens);
  if (!work.has_value()) return std::nullopt;
  const bool overdue = IsOverdue(request, stage, work->chunk, now_s);
  uint32_t tokens = Tokens(budget, work->tokens.begin);
  if (state.cut_tokens() > 0) {
    if (!overdue) tokens = std::min(tokens, state.cut_tokens());
    work = state.NextHedge(state.layers(), tokens);
    if (!work.has_value()) return std::nullopt;
  } else if (work->tokens.end - work->tokens.begin > tokens) {
    return std::nullopt;
  }
  // What was begun through these layers goes on through them.
  const bool splits = options_.engine.splits_layers && !state.IsPartial(work->chunk);
  if (Tries(request, stage) || overdue) {
    if (splits) work->layers.end = static_cast<uint16_t>(work->layers.begin + 1);
    return BeginStep(request, stage, *work, now_s);
  }
  const double sure = 1 + costs_.ComputeDoubt(work->tokens);
  const double layer_s = state.WorkSeconds(costs_, *work) / work->layers.count() * sure;
  // A step that turns out needless can be dropped; a load that is late cannot be hurried.
  const double doubts = options_.engine.abandons_steps ? 1 : 0;
  const TokenRange chunk = state.ChunkTokens(work->chunk);
  const double lands_s = LandsIn(request, stage, chunk, 0, doubts, now_s);
  // Loads come from the top: the lowest layers may be worth computing where all of them are not.
  for (uint16_t top = splits ? static_cast<uint16_t>(work->layers.begin + 1) : work->layers.end;
       top <= work->layers.end; ++top) {
    const double compute_s = layer_s * (top - work->layers.begin);
    if (std::max(compute_s, LandsIn(request, stage, chunk, top, doubts, now_s)) >= lands_s)
      continue;
    if (splits) work->layers.end = static_cast<uint16_t>(work->layers.begin + 1);
    return BeginStep(request, stage, *work, now_s);
  }
  return std::nullopt;
}

ComputeStep Scheduler::BeginStep(RequestState& request, uint16_t stage,
                                 const StageState::Work& work, double now_s) {
  StageState& state = request.stages[stage];
  state.Begin(work);
  ComputeStep step;
  step.id = StepId{++last_step_};
  step.request = request.spec.id;
  step.stage = stage;
  step.kind = StepKind::kRestore;
  step.tokens = work.tokens;
  step.layers = work.layers;
  step.hedge = work.hedge;
  step.began_s = now_s;
  step.estimate_s = state.WorkSeconds(costs_, work);
  request.computed_turn = ++turns_;
  request.stale = true;
  request.aimed = false;
  steps_.push_back(step);
  Note(work.hedge ? DecisionKind::kHedgeCompute : DecisionKind::kCompute, step, now_s,
       step.estimate_s, 0);
  return step;
}

// Seconds until loading alone would have all that an engine waits for: up to the first hole, if it
// can use what is before one as soon as that is there.  Infinity: computing does not wait.
double Scheduler::LoadsAhead(const RequestState& request, const StageState& stage,
                             double now_s) const {
  if (!stage.HasHolesAhead()) return LoadsEnd(request, stage, now_s, /*hole=*/0);
  const uint32_t hole = options_.engine.splits_layers ? 0 : stage.LoadsToHole(costs_);
  if (hole == 0) return kNoDeadline;
  const double all_s = LoadsEnd(request, stage, now_s, /*hole=*/0);
  if (all_s == kNoDeadline) return kNoDeadline;
  const double to_hole_s = LoadsEnd(request, stage, now_s, hole);
  // Where loading takes longer than that and the holes, an engine that waits is missed later.
  return all_s <= to_hole_s + stage.HoleSeconds(costs_) ? to_hole_s : kNoDeadline;
}

// Seconds until loading alone would have all of the stage, or what is before `hole`, a block of the
// first; infinity where that is too late, or the channels serve somebody else.
double Scheduler::LoadsEnd(const RequestState& request, const StageState& stage, double now_s,
                           uint32_t hole) const {
  if (!options_.loads || stage.lanes().empty()) return kNoDeadline;
  double end_s = 0;
  for (const StageState::Lane& lane : stage.lanes()) {
    const auto channel = static_cast<size_t>(lane.channel);
    double lane_s = stage.LaneSeconds(costs_, lane.channel, hole > 0);
    if (hole > 0 && lane_s == 0) {  // what is under way is all
      const LoadId last = LastBefore(request, lane.channel, hole);
      if (last) end_s = std::max(end_s, queues_[channel].BacklogSeconds(costs_, now_s, last));
      continue;
    }
    if (channel < queues_.size()) {
      if (served_[channel] && served_[channel] != request.spec.id &&
          !queues_[channel].loads().empty()) {
        return kNoDeadline;
      }
      lane_s += queues_[channel].BacklogSeconds(costs_, now_s);
    }
    end_s = std::max(end_s, lane_s);
  }
  return now_s + end_s > request.spec.deadline_s ? kNoDeadline : end_s;
}

// The last load of the request under way on a channel whose block is before this; none: 0.
LoadId Scheduler::LastBefore(const RequestState& request, ChannelId channel, uint32_t block) const {
  LoadId last = {};
  if (static_cast<size_t>(channel) >= queues_.size()) return last;
  for (const Load& load : queues_[static_cast<size_t>(channel)].loads()) {
    if (load.request == request.spec.id && !load.boundary && load.block < block) last = load.id;
  }
  return last;
}

// Seconds until the loads of these tokens have arrived, but for those below layer `from`; `doubts`:
// so many standard deviations later.
double Scheduler::LandsIn(const RequestState& request, uint16_t stage, TokenRange tokens,
                          uint16_t from, double doubts, double now_s) const {
  double last_s = 0;
  for (const ChannelQueue& queue : queues_) {
    for (const Load& load : queue.loads()) {
      if (load.request != request.spec.id || load.stage != stage || load.boundary) continue;
      if (load.layers.end <= from) continue;
      const uint32_t token = request.stages[stage].TokensOf(load.block).begin;
      if (token < tokens.begin || token >= tokens.end) continue;
      const double late_s = doubts * costs_.LoadDoubt(load.channel) *
                            costs_.LoadSeconds(load.channel, queue.BytesThrough(load.id));
      last_s = std::max(last_s, queue.BacklogSeconds(costs_, now_s, load.id) + late_s);
    }
  }
  return last_s;
}

// An engine that has nothing to do behind this, and can stop, loses nothing by computing what may
// be loaded sooner.
bool Scheduler::Tries(const RequestState& request, uint16_t stage) const {
  return options_.engine.abandons_steps && options_.hedges && request.spec.suffix_tokens == 0 &&
         !request.stages[stage].HasHolesAhead();
}

// Then a load is late by more than may be waited for: nothing says that it comes at all, and what
// was not computed meanwhile would come on top of computing everything.
double Scheduler::OverdueFrom(const ChannelQueue& queue, const RequestState& request,
                              uint16_t stage) const {
  const TokenRange all{0, request.spec.tokens};
  const StageLayers layers{0, request.stages[stage].layers()};
  const double due_s = queue.FirstSeconds(costs_) * (1 + costs_.LoadDoubt(queue.id()));
  const double alone_s = costs_.ComputeSeconds(all, request.stages[stage].model_layers(layers));
  return queue.busy_since_s() + due_s + kBearable * alone_s;
}

// `chunk`: of a channel that has loads of it.
bool Scheduler::IsOverdue(const RequestState& request, uint16_t stage,
                          std::optional<uint32_t> chunk, double now_s) const {
  const StageState& state = request.stages[stage];
  return std::ranges::any_of(queues_, [&](const ChannelQueue& queue) {
    const auto concerns = [&](const Load& load) {
      return load.request == request.spec.id && load.stage == stage && !load.boundary &&
             (!chunk || state.ChunkOf(load.block) == *chunk);
    };
    return std::ranges::any_of(queue.loads(), concerns) &&
           now_s >= OverdueFrom(queue, request, stage);
  });
}

// Whether computing this ends before loading all that is left would.
bool Scheduler::Pays(RequestState& request, uint16_t stage, const StageState::Work& work,
                     double now_s) {
  if (!options_.falls_back) return true;
  const StageState& state = request.stages[stage];
  if (!request.spec.depths.empty() || state.IsPartial(work.chunk)) return true;
  if (requests_.size() == 1 && Tries(request, stage) && !state.BoundaryCostsMore()) return true;
  const double loads_s = LoadsAhead(request, state, now_s);
  if (loads_s == kNoDeadline || loads_s <= 0) return true;
  if (IsOverdue(request, stage, std::nullopt, now_s)) return true;
  double compute_s = state.WorkSeconds(costs_, work);
  if (!options_.engine.splits_layers) compute_s = state.ChunkSeconds(costs_, work);
  if (compute_s * (1 + costs_.ComputeDoubt(work.tokens)) <= loads_s && !state.BoundaryCostsMore())
    return true;
  trace_.Add({now_s, DecisionKind::kHold, request.spec.id, stage, 0, ChannelId::kNowhere,
              work.tokens, work.layers, loads_s, compute_s});
  return false;
}

// How far computing and loading may be off against each other.
double Scheduler::Doubt(const RequestState& request, uint16_t stage) const {
  double load = 0;
  for (const StageState::Lane& lane : request.stages[stage].lanes())
    load = std::max(load, costs_.LoadDoubt(lane.channel));
  return load + costs_.ComputeDoubt({0, request.spec.chunk_tokens});
}

bool Scheduler::MaySweep(const RequestState& request, const StageState& state) const {
  const bool overlaps = options_.engine.overlaps_suffix && request.spec.suffix_tokens > 0;
  return options_.engine.splits_layers && request.spec.depths.empty() &&
         (overlaps || state.HolesFollowLoads());
}

// What must be computed behind loads can follow them layer by layer: the suffix, and chunks with
// holes.
bool Scheduler::SweepBegins(RequestState& request, uint16_t stage, const StageState::Work& work,
                            bool pays, double now_s) {
  StageState& state = request.stages[stage];
  if (!MaySweep(request, state) || state.sweeps() || state.IsPartial(work.chunk)) return false;
  const bool overlaps = options_.engine.overlaps_suffix && request.spec.suffix_tokens > 0;
  const double loads_s = LoadsEnd(request, state, now_s, /*hole=*/0);
  if (loads_s == kNoDeadline) return false;
  const TokenRange suffix{request.spec.tokens, request.spec.tokens + request.spec.suffix_tokens};
  const double behind_s =
      state.HoleSeconds(costs_) + (overlaps ? costs_.ComputeSeconds(suffix) : 0);
  const double compute_s = state.WorkSeconds(costs_, work), layers = state.layers();
  const auto& outlook = request.Outlook(costs_, stage);
  const double spared_s =
      outlook.compute_s > 0 ? outlook.lanes_s * compute_s / outlook.compute_s : 0;
  // It waits for the lowest layer that is left to load, and what is above the highest follows the
  // last load; a hole does not wait for what is behind it.
  const double tail_s = overlaps ? 0 : state.TailSeconds(costs_);
  const auto end = [&](double left_s, StageLayers missing) {
    const double before_s = std::max(0.0, left_s - tail_s);
    const double first_s = std::min(before_s, behind_s) / std::max(1.0, 1.0 * missing.count());
    const double below = missing.begin / layers, above = (layers - missing.end + 1) / layers;
    return std::max({left_s, first_s + behind_s * (1 - below), before_s + behind_s * above});
  };
  const StageLayers all{0, state.layers()};
  const double later_end = compute_s + end(std::max(0.0, loads_s - compute_s - spared_s), all);
  double now_end = end(loads_s, all);
  if (now_end <= later_end) now_end = end(loads_s, state.Missing());
  // Where computing spares next to nothing, a step begun only keeps the engine from what follows.
  pays = pays && spared_s > kSparesMin * compute_s;
  // A hole that is waited for stops everything, so the gain has to be more than a guess.
  const double doubt = std::max(kGuess, kSwayed * Doubt(request, stage));
  if (pays && now_end > (overlaps ? 1 : 1 - doubt) * later_end) return false;
  trace_.Add({now_s, DecisionKind::kBeginSweep, request.spec.id, stage, 0, ChannelId::kNowhere,
              work.tokens, work.layers, now_end, later_end});
  state.BeginSweep(overlaps);
  request.stale = true;
  return true;
}

// ---- steps that others have a part in

std::vector<ComputeStep> Scheduler::NextStep(uint16_t stage, const StepRoom& room, double now_s) {
  const ComputeCost cost = costs_.compute();
  const double sure = 1 + kSure * costs_.ComputeDoubt({0, std::max(room.tokens, 1u)});
  Budget budget{room.tokens - std::min(room.tokens, room.decode_tokens),
                room.seconds / sure - cost.fixed_s - cost.linear_s * room.decode_tokens,
                room.granule};
  std::vector<ComputeStep> steps;
  while (const auto step = ComputeWithin(stage, budget, now_s)) {
    budget.tokens -= std::min(budget.tokens, step->tokens.end - step->tokens.begin);
    budget.seconds -= step->estimate_s - cost.fixed_s;
    steps.push_back(*step);
  }
  return steps;
}

void Scheduler::OnStepComputed(const std::vector<ComputeStep>& steps, uint32_t decode_tokens,
                               double now_s, double took_s) {
  std::vector<TokenRange> ranges;
  for (const ComputeStep& step : steps) ranges.push_back(step.tokens);
  costs_.ObserveStep(ranges, decode_tokens, took_s);
  for (const ComputeStep& step : steps) OnComputed(step.id, now_s, 0);
}

uint32_t Scheduler::Tokens(const Budget& budget, uint32_t position) const {
  if (budget.seconds == kNoDeadline) return budget.tokens;
  const double step_s = budget.seconds + costs_.compute().fixed_s;
  return std::min(budget.tokens, TokenBudget(step_s, 0, position, budget.granule));
}

std::optional<StageState::Work> Scheduler::WorkWithin(const StageState& state, uint16_t layers_max,
                                                      const Budget& budget) const {
  const auto work = state.NextWork(layers_max, budget.tokens);
  if (!work.has_value()) return std::nullopt;
  const uint32_t tokens = Tokens(budget, work->tokens.begin);
  if (work->tokens.end - work->tokens.begin <= tokens) return work;
  return state.NextWork(layers_max, tokens);
}

uint32_t Scheduler::TokenBudget(double step_s, uint32_t decode_tokens, uint32_t position,
                                uint32_t granule) const {
  const ComputeCost cost = costs_.compute();
  const double room_s = step_s - cost.fixed_s - cost.linear_s * decode_tokens;
  if (room_s <= 0) return 0;
  // quadratic / 2 * n^2 + (linear + quadratic * position) * n = room
  const double slope = cost.linear_s + cost.quadratic_s * position;
  const double tokens =
      2 * room_s / (slope + std::sqrt(slope * slope + 2 * cost.quadratic_s * room_s));
  const double most = std::min(tokens, 1e9);
  return static_cast<uint32_t>(most) / granule * granule;
}

}  // namespace larder
