// Requests come and go, reports come in.  What is given out is in scheduler_compute.cc and
// scheduler_load.cc.
#include "client/restore/scheduler.h"

#include <algorithm>

#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr double kOverdue = 1.1;  // times what it should take, and that again
constexpr double kOverdueMax = 1000;

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

ChannelQueue& Scheduler::Queue(ChannelId channel) {
  while (queues_.size() <= static_cast<size_t>(channel)) {
    queues_.emplace_back(static_cast<ChannelId>(queues_.size()));
    served_.emplace_back();
  }
  return queues_[static_cast<size_t>(channel)];
}

void Scheduler::Rank(Resource resource, ChannelId channel, double now_s) {
  ranked_.clear();
  for (uint32_t i = 0; i < requests_.size(); ++i) {
    RequestState& request = *requests_[i];
    RequestView view{request.outcome.arrived_s, now_s - request.outcome.arrived_s};
    view.remaining_s = request.RemainingSeconds(costs_);
    view.computed_turn = request.computed_turn;
    view.loaded_turn = request.loaded_turn;
    if (resource == Resource::kCompute) {
      ranked_.push_back({policy_->ComputeKey(view), i});
      continue;
    }
    if (policy_->weighs_loads()) {
      for (const StageState& stage : request.stages) {
        view.remaining_load_s += stage.LaneSeconds(costs_, channel);
      }
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

// Which of the last few cells are given out is asked anew whenever anything has changed.
void Scheduler::Aim(RequestState& request, double now_s) {
  const bool plain = request.spec.depths.empty() && request.stages.size() == 1 &&
                     request.spec.suffix_tokens == 0 && options_.computes && options_.loads;
  if (!options_.engine.splits_layers || !plain || request.aimed) return;
  request.aimed = true;
  StageState& stage = request.stages[0];
  if (requests_.size() > 1) return stage.AimAtNothing();  // others have the engine, or a channel
  std::vector<double> busy_s = {ComputeEnd(request, 0, now_s, 0)};
  double doubt = costs_.ComputeDoubt({0, request.spec.chunk_tokens});
  for (const StageState::Lane& lane : stage.lanes()) {
    busy_s.push_back(Queue(lane.channel).BacklogSeconds(costs_, now_s));
    doubt = std::max(doubt, costs_.LoadDoubt(lane.channel));
  }
  stage.Aim(costs_, std::move(busy_s), doubt);
}

// ---- reports

void Scheduler::OnComputed(StepId id, double now_s, std::optional<double> took_s) {
  const auto at = std::find_if(steps_.begin(), steps_.end(),
                               [&](const ComputeStep& step) { return step.id == id; });
  if (at == steps_.end()) return;  // abandoned, or of a request that is gone
  const ComputeStep step = *at;
  steps_.erase(at);
  RequestState* request = Find(step.request);
  LARDER_CHECK(request != nullptr);
  const StageState& stage = request->stages[step.stage];
  costs_.ObserveCompute(step.tokens, stage.model_layers(step.layers),
                        took_s.value_or(now_s - step.began_s));
  if (step.kind == StepKind::kSuffix) {
    request->suffix_running = false;
    if (step.layers.count() == stage.layers())
      request->suffix_tokens = step.tokens.end - request->spec.tokens;
    request->suffix_layers = step.layers.end;
    return Settle(*request, now_s);
  }
  const uint32_t chunk = stage.ChunkOf(step.tokens.begin / request->spec.block_tokens);
  request->outcome.tokens_recomputed += request->stages[step.stage].Computed();
  // Whoever computes a chunk through has its activations at hand for the stage behind it.
  const size_t next = step.stage + 1u;
  const bool through = step.layers.end == stage.layers() && !stage.IsPartial(chunk);
  const bool hands_over = options_.engine.hands_over && through;
  if (hands_over && next < request->stages.size()) {
    request->stages[next].BoundaryIsHere(chunk);
  }
  Settle(*request, now_s);
}

Landing Scheduler::OnLoaded(LoadId id, double now_s) {
  for (ChannelQueue& queue : queues_) {
    const auto taken = queue.Take(id, now_s);
    if (!taken) continue;
    const Load& load = taken->load;
    costs_.ObserveLoad(load.channel, load.bytes, taken->service_s);
    // Those behind it have come nearer, or are later than they were thought to be.
    queue.Postpone(taken->ahead, [&](const Load& other) {
      return DeadlineOf(*Find(other.request), other, now_s);
    });
    RequestState* request = Find(load.request);
    LARDER_CHECK(request != nullptr);
    StageState& stage = request->stages[load.stage];
    request->outcome.bytes_loaded += load.bytes;
    bool useful = true;
    if (load.boundary) {
      useful = stage.BoundaryIsHere(stage.ChunkOf(load.block));
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
  for (ChannelQueue& queue : queues_) {
    if (const auto taken = queue.Take(id, now_s)) {
      Note(DecisionKind::kFailed, taken->load, now_s, 0, 0);
      return Fail(taken->load, why, now_s);
    }
  }
}

void Scheduler::Fail(const Load& load, LoadFailure why, double now_s) {
  RequestState* request = Find(load.request);
  LARDER_CHECK(request != nullptr);
  StageState& stage = request->stages[load.stage];
  const bool gone = why == LoadFailure::kGone;
  const uint32_t chunk = stage.ChunkOf(load.block);
  if (load.boundary) {
    stage.BoundaryFailed(chunk, gone);
  } else {
    stage.Failed(load.rank, load.block, load.layers, gone);
  }
  if (stage.Lost()) return Lose(*request, load.stage, now_s);
  Settle(*request, now_s);
}

// Where nothing may be computed: what is not there and will not come, now or ever.
void Scheduler::LoseHopeless(double now_s) {
  const auto loads = [this](RequestId id) {
    return std::ranges::any_of(queues_, [id](const ChannelQueue& queue) {
      return std::ranges::any_of(queue.loads(), [id](const Load& l) { return l.request == id; });
    });
  };
  for (size_t i = requests_.size(); i-- > 0;) {
    RequestState& request = *requests_[i];
    const bool late = now_s > request.spec.deadline_s && !loads(request.spec.id);
    for (uint16_t stage = 0; stage < request.stages.size(); ++stage) {
      const bool holes = request.spec.tokens > 0 && request.stages[stage].HasHolesAhead();
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
  for (ChannelQueue& queue : queues_) {
    while (queue.Deadline() <= now_s) {
      const auto late = std::find_if(queue.loads().begin(), queue.loads().end(),
                                     [&](const Load& load) { return load.deadline_s <= now_s; });
      const bool first = late == queue.loads().begin();
      const auto taken = queue.Take(late->id, now_s);
      Note(DecisionKind::kLate, taken->load, now_s, now_s - taken->load.began_s, 0);
      cancelled_loads_.push_back(taken->load.id);
      // It took at least so long; those behind it have only now come to the front.
      if (first) costs_.ObserveLoad(taken->load.channel, taken->load.bytes, taken->service_s);
      if (first)
        queue.Postpone(
            0, [&](const Load& load) { return DeadlineOf(*Find(load.request), load, now_s); });
      Fail(taken->load, LoadFailure::kTransient, now_s);
    }
  }
  if (!options_.computes) LoseHopeless(now_s);
}

double Scheduler::NextDeadline() const {
  double deadline_s = kNoDeadline;
  for (const ChannelQueue& queue : queues_) deadline_s = std::min(deadline_s, queue.Deadline());
  return deadline_s;
}

double Scheduler::DeadlineOf(LoadId id) const {
  for (const ChannelQueue& queue : queues_) {
    for (const Load& load : queue.loads()) {
      if (load.id == id) return load.deadline_s;
    }
  }
  return kNoDeadline;
}

double Scheduler::NextWakeup(double now_s) const {
  double next_s = NextDeadline();
  // The later it is, the more it is taken to be late by.
  const auto consider = [&](double began_s, double takes_s) {
    for (double times = kOverdue; times < kOverdueMax; times *= kOverdue) {
      const double at_s = began_s + times * takes_s;
      if (at_s <= now_s) continue;
      next_s = std::min(next_s, at_s);
      return;
    }
  };
  for (const ChannelQueue& queue : queues_) {
    if (queue.loads().empty()) continue;
    consider(queue.busy_since_s(), queue.FirstSeconds(costs_));
    const Load* last = nullptr;
    for (const Load& load : queue.loads()) {
      if (load.boundary) continue;
      // One after the other they are mostly of the same.
      if (last != nullptr && last->request == load.request && last->stage == load.stage) continue;
      last = &load;
      const double overdue_s = OverdueFrom(queue, *Find(load.request), load.stage);
      if (overdue_s > now_s) next_s = std::min(next_s, overdue_s);
    }
  }
  for (const ComputeStep& step : steps_) consider(step.began_s, step.estimate_s);
  return next_s;
}

// ---- what follows from them

// What the other resource has made needless is dropped; what is complete is reported.
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
      request.suffix_layers == request.stages[0].layers() &&
      (request.suffix_tokens == 0 || request.suffix_tokens == request.spec.suffix_tokens);
  if (request.spec.suffix_tokens == 0 || prefilled) Finish(request, now_s);
}

void Scheduler::DropOvertaken(RequestState& request, double now_s) {
  for (ChannelQueue& queue : queues_) {
    for (size_t i = 0; i < queue.loads().size();) {
      const Load load = queue.loads()[i];
      const bool mine = load.request == request.spec.id && !load.boundary;
      if (!mine || !request.stages[load.stage].IsComputed(load.block, load.layers)) {
        ++i;
        continue;
      }
      Note(DecisionKind::kCancelLoad, load, now_s, 0, 0);
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
    Note(DecisionKind::kAbandonStep, step, now_s, 0, 0);
    request.stages[step.stage].Abandoned();
    request.outcome.tokens_recomputed += step.tokens.end - step.tokens.begin;
    abandoned_steps_.push_back(step.id);
    steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void Scheduler::DropLoads(RequestId request, double now_s) {
  for (ChannelQueue& queue : queues_) {
    for (size_t i = queue.loads().size(); i-- > 0;) {
      const Load load = queue.loads()[i];
      if (load.request != request) continue;
      Note(DecisionKind::kCancelLoad, load, now_s, 0, 0);
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
  for (const StageState& stage : request.stages) outcome.stages.push_back({stage.Depths()});
  trace_.Add({now_s, DecisionKind::kFinished, id});
  outcomes_.push_back(std::move(outcome));
  std::erase_if(requests_, [&](const auto& each) { return each.get() == &request; });
}

void Scheduler::Note(DecisionKind kind, const ComputeStep& step, double now_s, double chosen_s,
                     double other_s) {
  trace_.Add({now_s, kind, step.request, step.stage, 0, ChannelId::kNowhere, step.tokens,
              step.layers, chosen_s, other_s});
}

void Scheduler::Note(DecisionKind kind, const Load& load, double now_s, double chosen_s,
                     double other_s) {
  RequestState* request = Find(load.request);
  const TokenRange tokens =
      request == nullptr ? TokenRange{} : request->stages[load.stage].TokensOf(load.block);
  trace_.Add({now_s, kind, load.request, load.stage, load.rank, load.channel, tokens, load.layers,
              chosen_s, other_s});
}

void Scheduler::CheckInvariants() const {
  for (const auto& request : requests_) {
    for (const StageState& stage : request->stages) stage.CheckInvariants();
  }
  for (const ChannelQueue& queue : queues_) {
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
