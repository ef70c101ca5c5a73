#include "client/restore/scheduler.h"

#include <algorithm>

#include "client/restore/stage/stage_estimate.h"
#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// NextWakeup considers the times at which a step, or the first load of a channel, has taken
// kOverdue, kOverdue^2, kOverdue^3, ... times as long as predicted, below kOverdueMax.
constexpr double kOverdue = 1.1;
constexpr double kOverdueMax = 1000;
constexpr double kSure = 2;  // standard deviations that NextStep adds to predicted times

}  // namespace

const char* ToString(DecisionKind kind) {
  constexpr const char* kNames[] = {
      "unspecified", "compute",     "load",           "hold", "leave",  "hedge compute",
      "hedge load",  "cancel load", "abandon step",   "late", "failed", "begin sweep",
      "restored",    "finished",    "cancel request", "lost"};
  return kNames[static_cast<size_t>(kind)];
}

Scheduler::Scheduler(SchedulerOptions options, CostModel costs, std::unique_ptr<Policy> policy)
    : options_(options),
      costs_(std::move(costs)),
      policy_(std::move(policy)),
      trace_(options.trace_capacity) {}

absl::Status Scheduler::Add(RequestSpec spec, double now_s) {
  LARDER_RETURN_IF_ERROR(Validate(spec, costs_.layers()));
  if (spec.cut_tokens > 0 && options_.engine.splits_layers)
    return absl::InvalidArgumentError("restore: an engine that splits layers cuts no chunks");
  if (Find(spec.id) != nullptr)
    return absl::AlreadyExistsError("restore: a request of this id is under way");
  if (requests_.size() >= kRequestsMax)
    return absl::ResourceExhaustedError("restore: 4096 requests are under way");
  requests_.push_back(std::make_unique<RequestState>(std::move(spec), now_s));
  for (const auto& request : requests_) request->aimed = false;
  return absl::OkStatus();
}

void Scheduler::Cancel(RequestId id, double now_s) {
  RequestState* request = Find(id);
  if (request == nullptr) return;
  trace_.Add({now_s, DecisionKind::kCancelRequest, id});
  request->outcome.cancelled = true;
  Finish(*request, now_s);
}

const RequestState* Scheduler::Find(RequestId id) const {
  for (const auto& request : requests_) {
    if (request->spec.id == id) return request.get();
  }
  return nullptr;
}

RequestState* Scheduler::Find(RequestId id) {
  return const_cast<RequestState*>(std::as_const(*this).Find(id));
}

void Scheduler::Rank(std::optional<ChannelId> channel, double now_s) {
  ranked_.clear();
  for (uint32_t i = 0; i < requests_.size(); ++i) {
    RequestState& request = *requests_[i];
    RequestView view{request.outcome.arrived_s, now_s - request.outcome.arrived_s};
    view.remaining_s = request.RemainingSeconds(costs_);
    view.computed_turn = request.computed_turn;
    view.loaded_turn = request.loaded_turn;
    if (!channel) {
      ranked_.push_back({policy_->ComputeKey(view), i});
      continue;
    }
    if (policy_->weighs_loads()) {
      for (const StageState& stage : request.stages)
        view.remaining_load_s += stage.LaneSeconds(costs_, *channel);
    }
    ranked_.push_back({policy_->LoadKey(view), i});
  }
}

RequestState& Scheduler::Nth(size_t i) {
  const auto at = ranked_.begin() + static_cast<std::ptrdiff_t>(i);
  std::iter_swap(at, std::min_element(at, ranked_.end(), [](const Ranked& a, const Ranked& b) {
                   return a.key != b.key ? a.key < b.key : a.index < b.index;
                 }));
  return *requests_[at->index];
}

void Scheduler::Aim(RequestState& request, double now_s) {
  const bool plain = request.spec.depths.empty() && request.stages.size() == 1 &&
                     request.spec.suffix_tokens == 0 && options_.computes && options_.loads;
  if (!options_.engine.splits_layers || !plain || request.aimed) return;
  request.aimed = true;
  StageState& stage = request.stages[0];
  if (requests_.size() > 1) return stage.AimAtNothing();  // others may use the engine, or a channel
  std::vector<double> busy_s = {At(now_s).ComputeEnd(request, 0, /*doubts=*/0)};
  double doubt = costs_.ComputeDoubt({0, request.spec.chunk_tokens});
  for (const StageLane& lane : stage.claims().lanes()) {
    busy_s.push_back(queues_.BacklogSeconds(lane.channel, costs_, now_s));
    doubt = std::max(doubt, costs_.LoadDoubt(lane.channel));
  }
  stage.Aim(costs_, std::move(busy_s), doubt);
}

// ---- what an idle engine computes

std::optional<ComputeStep> Scheduler::NextCompute(uint16_t stage, uint32_t token_budget,
                                                  double now_s) {
  return ComputeWithin(stage, StepBudget{token_budget}, now_s);
}

std::vector<ComputeStep> Scheduler::NextStep(uint16_t stage, const StepRoom& room, double now_s) {
  const ComputeCost cost = costs_.compute();
  const double sure = 1 + kSure * costs_.ComputeDoubt({0, std::max(room.tokens, 1u)});
  StepBudget budget{room.tokens - std::min(room.tokens, room.decode_tokens),
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

uint32_t Scheduler::TokenBudget(double step_s, uint32_t decode_tokens, uint32_t position,
                                uint32_t granule) const {
  return At(/*now_s=*/0).TokenBudget(step_s, decode_tokens, position, granule);
}

// Tries suffixes first (on stage 0), then work of the prefixes, then hedges.
std::optional<ComputeStep> Scheduler::ComputeWithin(uint16_t stage, const StepBudget& budget,
                                                    double now_s) {
  if (budget.tokens == 0 || budget.seconds <= 0) return std::nullopt;
  Rank(std::nullopt, now_s);
  const Forecast forecast = At(now_s);
  for (size_t i = 0; stage == 0 && i < ranked_.size(); ++i) {
    RequestState& request = *requests_[i];
    if (const auto suffix = ChooseSuffix(forecast, request, budget))
      return BeginSuffix(request, *suffix, now_s);
  }
  if (!options_.computes) return std::nullopt;
  for (size_t i = 0; i < ranked_.size(); ++i) {
    RequestState& request = Nth(i);
    if (stage >= request.stages.size()) continue;
    Aim(request, now_s);
    const RestoreChoice choice = ChooseRestore(forecast, request, stage, budget, &trace_);
    if (choice.suffix) return BeginSuffix(request, *choice.suffix, now_s);
    if (choice.work) return BeginRestore(request, stage, *choice.work, now_s);
  }
  for (size_t i = 0; options_.hedges && i < ranked_.size(); ++i) {
    RequestState& request = *requests_[ranked_[i].index];  // the calls of Nth sorted ranked_
    if (stage >= request.stages.size()) continue;
    if (const auto work = ChooseHedge(forecast, request, stage, budget))
      return BeginRestore(request, stage, *work, now_s);
  }
  return std::nullopt;
}

ComputeStep Scheduler::BeginSuffix(RequestState& request, const SuffixChoice& choice,
                                   double now_s) {
  ComputeStep step;
  step.id = StepId{++last_step_};
  step.request = request.spec.id;
  step.kind = StepKind::kSuffix;
  step.tokens = choice.tokens;
  step.layers = choice.layers;
  step.began_s = now_s;
  step.estimate_s =
      costs_.ComputeSeconds(step.tokens, request.stages[0].shape().ModelLayers(step.layers));
  request.suffix_running = true;
  steps_.push_back(step);
  Note(DecisionKind::kCompute, step, now_s, step.estimate_s);
  return step;
}

ComputeStep Scheduler::BeginRestore(RequestState& request, uint16_t stage, const StageWork& work,
                                    double now_s) {
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
  step.estimate_s = WorkSeconds(state.claims(), costs_, work);
  request.computed_turn = ++turns_;
  request.stale = true;
  request.aimed = false;
  steps_.push_back(step);
  Note(work.hedge ? DecisionKind::kHedgeCompute : DecisionKind::kCompute, step, now_s,
       step.estimate_s);
  return step;
}

// ---- what a channel loads

void Scheduler::NextLoads(ChannelId channel, double bytes, double now_s, std::vector<Load>* loads) {
  while (options_.loads && bytes > 0) {
    const std::optional<Load> load = NextLoad(channel, now_s);
    if (!load.has_value()) return;
    bytes -= load->bytes;
    loads->push_back(*load);
  }
}

std::optional<Load> Scheduler::NextLoad(ChannelId channel, double now_s) {
  Rank(channel, now_s);
  const Forecast forecast = At(now_s);
  for (size_t i = 0; i < ranked_.size(); ++i) {
    RequestState& request = Nth(i);
    auto choice = ChooseBoundary(forecast, request, channel);
    if (!choice) {
      Aim(request, now_s);
      choice = ChooseLoad(forecast, request, channel, &trace_);
    }
    if (choice) return BeginLoad(request, channel, *choice, now_s);
  }
  const bool hedges = options_.hedges && options_.engine.abandons_steps;
  for (size_t i = 0; hedges && i < ranked_.size(); ++i) {
    RequestState& request = *requests_[ranked_[i].index];  // the calls of Nth sorted ranked_
    if (const auto choice = ChooseHedgeLoad(forecast, request, channel))
      return BeginLoad(request, channel, *choice, now_s);
  }
  return std::nullopt;
}

Load Scheduler::BeginLoad(RequestState& request, ChannelId channel, const LoadChoice& choice,
                          double now_s) {
  StageState& state = request.stages[choice.stage];
  const StagePiece& piece = choice.piece;
  if (piece.boundary) {
    state.AskBoundary(piece);
  } else {
    state.Ask(choice.lane, piece);
  }
  Load load;
  load.id = LoadId{++last_load_};
  load.request = request.spec.id;
  load.stage = choice.stage;
  load.rank = piece.boundary ? uint16_t{0} : state.claims().lanes()[choice.lane].rank;
  load.channel = channel;
  load.boundary = piece.boundary;
  load.hedge = piece.hedge;
  load.block = piece.block;
  load.layers = piece.layers;
  load.bytes = piece.bytes;
  load.began_s = now_s;
  ChannelQueue& queue = queues_.Of(channel);
  queue.Push(load, now_s);
  load.deadline_s = At(now_s).DeadlineOf(request, load);
  queue.SetDeadline(load.id, load.deadline_s);
  queues_.SetServed(channel, request.spec.id);
  request.loaded_turn = ++turns_;
  request.stale = true;
  request.aimed = false;
  Note(piece.hedge ? DecisionKind::kHedgeLoad : DecisionKind::kLoad, load, now_s,
       queue.BacklogSeconds(costs_, now_s));
  return load;
}

// ---- reports

void Scheduler::OnStepComputed(const std::vector<ComputeStep>& steps, uint32_t decode_tokens,
                               double now_s, double took_s) {
  std::vector<TokenRange> ranges;
  for (const ComputeStep& step : steps) ranges.push_back(step.tokens);
  costs_.ObserveStep(ranges, decode_tokens, took_s);
  for (const ComputeStep& step : steps) OnComputed(step.id, now_s, 0);
}

void Scheduler::OnComputed(StepId id, double now_s, std::optional<double> took_s) {
  const auto at = std::find_if(steps_.begin(), steps_.end(),
                               [&](const ComputeStep& step) { return step.id == id; });
  if (at == steps_.end()) return;  // the step was abandoned, or its request has ended
  const ComputeStep step = *at;
  steps_.erase(at);
  RequestState* request = Find(step.request);
  LARDER_CHECK(request != nullptr);
  StageState& stage = request->stages[step.stage];
  const StageShape& shape = stage.shape();
  costs_.ObserveCompute(step.tokens, shape.ModelLayers(step.layers),
                        took_s.value_or(now_s - step.began_s));
  if (step.kind == StepKind::kSuffix) {
    request->suffix_running = false;
    if (step.layers.count() == shape.layers)
      request->suffix_tokens = step.tokens.end - request->spec.tokens;
    request->suffix_layers = step.layers.end;
    return Settle(*request, now_s);
  }
  const uint32_t chunk = shape.ChunkOf(step.tokens.begin / request->spec.block_tokens);
  request->outcome.tokens_recomputed += stage.Computed();
  // If the engine hands over activations, a chunk that is computed through all layers of a stage
  // needs no load of activations at the next stage.
  const size_t next = step.stage + 1u;
  const bool through = step.layers.end == shape.layers && !stage.claims().IsPartial(chunk);
  const bool hands_over = options_.engine.hands_over && through;
  if (hands_over && next < request->stages.size()) {
    request->stages[next].BoundaryIsHere(chunk);
  }
  Settle(*request, now_s);
}

void Scheduler::OnAbandoned(StepId id, double now_s) {
  const auto at = std::ranges::find(steps_, id, &ComputeStep::id);
  if (at == steps_.end()) return;  // the scheduler has abandoned it, too, or its request has ended
  const ComputeStep step = *at;
  steps_.erase(at);
  RequestState* request = Find(step.request);
  LARDER_CHECK(request != nullptr);
  if (step.kind == StepKind::kSuffix) {
    request->suffix_running = false;
  } else {
    request->stages[step.stage].Abandoned();
  }
  Note(DecisionKind::kAbandonStep, step, now_s, 0);
  Settle(*request, now_s);
}

Landing Scheduler::OnLoaded(LoadId id, double now_s) {
  for (ChannelQueue& queue : queues_.all()) {
    const auto taken = queue.Take(id, now_s);
    if (!taken) continue;
    const Load& load = taken->load;
    costs_.ObserveLoad(load.channel, load.bytes, taken->service_s);
    // The other loads will now end sooner or later than predicted, so their deadlines change.
    Postpone(queue, taken->ahead, now_s);
    RequestState* request = Find(load.request);
    LARDER_CHECK(request != nullptr);
    StageState& stage = request->stages[load.stage];
    request->outcome.bytes_loaded += load.bytes;
    bool useful = true;
    if (load.boundary) {
      useful = stage.BoundaryIsHere(stage.shape().ChunkOf(load.block));
    } else {
      useful = stage.Landed(load.rank, load.block, load.layers);
    }
    if (!useful) request->outcome.bytes_dropped += load.bytes;
    Settle(*request, now_s);
    return useful ? Landing::kPlace : Landing::kDrop;
  }
  return Landing::kDrop;
}

void Scheduler::OnLoadFailed(LoadId id, LoadFailure why, double now_s) {
  for (ChannelQueue& queue : queues_.all()) {
    if (const auto taken = queue.Take(id, now_s)) {
      Note(DecisionKind::kFailed, taken->load, now_s, 0);
      return Fail(taken->load, why, now_s);
    }
  }
}

void Scheduler::Fail(const Load& load, LoadFailure why, double now_s) {
  RequestState* request = Find(load.request);
  LARDER_CHECK(request != nullptr);
  StageState& stage = request->stages[load.stage];
  if (load.boundary) {
    stage.BoundaryFailed(stage.shape().ChunkOf(load.block), why == LoadFailure::kGone);
  } else {
    stage.Failed(load.rank, load.block, load.layers, why);
  }
  if (stage.claims().Lost()) return Lose(*request, load.stage, now_s);
  Settle(*request, now_s);
}

void Scheduler::LoseHopeless(double now_s) {
  for (size_t i = requests_.size(); i-- > 0;) {
    RequestState& request = *requests_[i];
    const bool late = now_s > request.spec.deadline_s && !queues_.HasLoadsOf(request.spec.id);
    for (uint16_t stage = 0; stage < request.stages.size(); ++stage) {
      const bool holes = request.spec.tokens > 0 && request.stages[stage].claims().HasHolesAhead();
      if (!late && !holes) continue;
      Lose(request, stage, now_s);
      break;
    }
  }
}

void Scheduler::Lose(RequestState& request, uint16_t stage, double now_s) {
  trace_.Add({now_s, DecisionKind::kLost, request.spec.id, stage});
  request.outcome.lost = true;
  Finish(request, now_s);
}

void Scheduler::OnTime(double now_s) {
  for (const auto& request : requests_) request->aimed = false;
  for (ChannelQueue& queue : queues_.all()) {
    while (queue.Deadline() <= now_s) {
      const auto late = std::find_if(queue.loads().begin(), queue.loads().end(),
                                     [&](const Load& load) { return load.deadline_s <= now_s; });
      const bool first = late == queue.loads().begin();
      const auto taken = queue.Take(late->id, now_s);
      Note(DecisionKind::kLate, taken->load, now_s, now_s - taken->load.began_s);
      cancelled_loads_.push_back(taken->load.id);
      if (first) {
        // The load took at least this long, and the channel begins to serve the loads behind it
        // only now.
        costs_.ObserveLoad(taken->load.channel, taken->load.bytes, taken->service_s);
        Postpone(queue, 0, now_s);
      }
      Fail(taken->load, LoadFailure::kTransient, now_s);
    }
  }
  if (!options_.computes) LoseHopeless(now_s);
}

void Scheduler::Postpone(ChannelQueue& queue, size_t ahead, double now_s) {
  const Forecast forecast = At(now_s);
  queue.Postpone(ahead,
                 [&](const Load& load) { return forecast.DeadlineOf(*Find(load.request), load); });
}

double Scheduler::NextWakeup(double now_s) const {
  const Forecast forecast = At(now_s);
  double next_s = NextDeadline();
  // The later a step or a load is, the longer are the intervals between its wake-ups.
  const auto consider = [&](double began_s, double takes_s) {
    for (double times = kOverdue; times < kOverdueMax; times *= kOverdue) {
      const double at_s = began_s + times * takes_s;
      if (at_s <= now_s) continue;
      next_s = std::min(next_s, at_s);
      return;
    }
  };
  for (const ChannelQueue& queue : queues_.all()) {
    if (queue.loads().empty()) continue;
    consider(queue.busy_since_s(), queue.FirstSeconds(costs_));
    const Load* last = nullptr;
    for (const Load& load : queue.loads()) {
      if (load.boundary) continue;
      // OverdueFrom is the same for all loads of one request and stage in a queue, and such loads
      // mostly follow one another, so only the first of several in a row is considered.
      if (last != nullptr && last->request == load.request && last->stage == load.stage) continue;
      last = &load;
      const double overdue_s = forecast.OverdueFrom(queue, *Find(load.request), load.stage);
      if (overdue_s > now_s) next_s = std::min(next_s, overdue_s);
    }
  }
  for (const ComputeStep& step : steps_) consider(step.began_s, step.estimate_s);
  return next_s;
}

// ---- what follows from reports

void Scheduler::Settle(RequestState& request, double now_s) {
  request.stale = true;
  request.aimed = false;
  DropOvertaken(request, now_s);
  if (!request.complete()) return;
  if (request.outcome.restored_s == 0) {
    request.outcome.restored_s = now_s;
    trace_.Add({now_s, DecisionKind::kRestored, request.spec.id});
    DropLoads(request.spec.id, now_s);
  }
  const bool prefilled =
      request.suffix_layers == request.stages[0].shape().layers &&
      (request.suffix_tokens == 0 || request.suffix_tokens == request.spec.suffix_tokens);
  if (request.spec.suffix_tokens == 0 || prefilled) Finish(request, now_s);
}

void Scheduler::DropOvertaken(RequestState& request, double now_s) {
  for (ChannelQueue& queue : queues_.all()) {
    for (size_t i = 0; i < queue.loads().size();) {
      const Load load = queue.loads()[i];
      const bool mine = load.request == request.spec.id && !load.boundary;
      if (!mine || !request.stages[load.stage].claims().IsComputed(load.block, load.layers)) {
        ++i;
        continue;
      }
      Note(DecisionKind::kCancelLoad, load, now_s, 0);
      request.stages[load.stage].Unask(load.rank, load.block, load.layers);
      cancelled_loads_.push_back(load.id);
      (void)queue.Take(load.id, now_s);
    }
  }
  if (!options_.engine.abandons_steps) return;
  for (size_t i = 0; i < steps_.size();) {
    const ComputeStep step = steps_[i];
    const bool mine = step.request == request.spec.id && step.kind == StepKind::kRestore;
    if (!mine || !request.stages[step.stage].Overtaken()) {
      ++i;
      continue;
    }
    Note(DecisionKind::kAbandonStep, step, now_s, 0);
    request.stages[step.stage].Abandoned();
    request.outcome.tokens_recomputed += step.tokens.end - step.tokens.begin;
    abandoned_steps_.push_back(step.id);
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Scheduler::DropLoads(RequestId request, double now_s) {
  for (ChannelQueue& queue : queues_.all()) {
    for (size_t i = queue.loads().size(); i-- > 0;) {
      const Load load = queue.loads()[i];
      if (load.request != request) continue;
      Note(DecisionKind::kCancelLoad, load, now_s, 0);
      cancelled_loads_.push_back(load.id);
      (void)queue.Take(load.id, now_s);
    }
  }
}

void Scheduler::Finish(RequestState& request, double now_s) {
  const RequestId id = request.spec.id;
  DropLoads(id, now_s);
  for (const ComputeStep& step : steps_) {
    if (step.request == id) abandoned_steps_.push_back(step.id);
  }
  std::erase_if(steps_, [&](const ComputeStep& step) { return step.request == id; });
  Outcome& outcome = request.outcome;
  outcome.first_token_s = now_s;
  if (outcome.restored_s == 0) outcome.restored_s = now_s;
  for (const StageState& stage : request.stages)
    outcome.stages.push_back({stage.claims().depths()});
  trace_.Add({now_s, DecisionKind::kFinished, id});
  outcomes_.push_back(std::move(outcome));
  std::erase_if(requests_, [&](const auto& each) { return each.get() == &request; });
}

void Scheduler::Note(DecisionKind kind, const ComputeStep& step, double now_s, double chosen_s) {
  trace_.Add({now_s, kind, step.request, step.stage, 0, ChannelId::kNowhere, step.tokens,
              step.layers, chosen_s, 0});
}

void Scheduler::Note(DecisionKind kind, const Load& load, double now_s, double chosen_s) {
  const RequestState* request = Find(load.request);
  const TokenRange tokens =
      request == nullptr ? TokenRange{} : request->stages[load.stage].shape().TokensOf(load.block);
  trace_.Add({now_s, kind, load.request, load.stage, load.rank, load.channel, tokens, load.layers,
              chosen_s, 0});
}

void Scheduler::CheckInvariants() const {
  for (const auto& request : requests_) {
    for (const StageState& stage : request->stages) stage.claims().CheckInvariants();
  }
  for (const ChannelQueue& queue : queues_.all()) {
    for (const Load& load : queue.loads()) {
      const auto mine = [&](const auto& request) { return request->spec.id == load.request; };
      LARDER_CHECK(std::any_of(requests_.begin(), requests_.end(), mine));
    }
  }
  for (const ComputeStep& step : steps_) {
    const auto mine = [&](const auto& request) { return request->spec.id == step.request; };
    LARDER_CHECK(std::any_of(requests_.begin(), requests_.end(), mine));
  }
}

}  // namespace larder
