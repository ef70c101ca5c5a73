// What a channel loads next.
#include <algorithm>
#include <cmath>

#include "client/restore/scheduler.h"

namespace larder {
namespace {

constexpr uint32_t kBoundaryAhead =
    2;  // chunks whose activations are loaded before computing gets to them
constexpr double kLeaves = 1.5;  // times the doubt, in favour of a load that costs nobody anything

}  // namespace

void Scheduler::NextLoads(ChannelId channel, double room_bytes, double now_s,
                          std::vector<Load>* loads) {
  while (options_.loads && room_bytes > 0) {
    const std::optional<Load> load = NextLoad(channel, now_s);
    if (!load.has_value()) return;
    room_bytes -= load->bytes;
    loads->push_back(*load);
  }
}

std::optional<Load> Scheduler::NextLoad(ChannelId channel, double now_s) {
  Rank(Resource::kLoad, channel, now_s);
  for (size_t i = 0; i < ranked_.size(); ++i) {
    RequestState& request = Nth(i);
    if (auto load = BoundaryLoad(request, channel, now_s)) return load;
    if (auto load = LoadOf(request, channel, now_s)) return load;
  }
  const bool hedges = options_.hedges && options_.engine.abandons_steps;
  for (size_t i = 0; hedges && i < ranked_.size(); ++i) {
    if (auto load = HedgeLoad(*requests_[ranked_[i].index], channel, now_s)) return load;
  }
  return std::nullopt;
}

// Whether activations alone keep the channel busy until computing is through: KV would only be in
// their way.
bool Scheduler::BoundaryBound(RequestState& request, ChannelId channel) {
  if (request.stages.size() < 2 || !options_.computes) return false;
  double boundary_s = 0, compute_s = 0;
  for (size_t stage = 0; stage < request.stages.size(); ++stage) {
    const StageState& state = request.stages[stage];
    if (state.BoundaryCostsMore()) return false;
    boundary_s += state.BoundarySeconds(costs_, channel);
    compute_s = std::max(compute_s, request.Outlook(costs_, stage).compute_s);
  }
  return boundary_s > 0 && boundary_s >= compute_s;
}

std::optional<Load> Scheduler::BoundaryLoad(RequestState& request, ChannelId channel,
                                            double now_s) {
  if (request.stages.size() < 2) return std::nullopt;
  const uint32_t ahead = BoundaryBound(request, channel) ? UINT32_MAX : kBoundaryAhead;
  // To the stage that has come least far.
  std::optional<StageState::Piece> best;
  uint16_t best_stage = 0;
  for (uint16_t stage = 0; stage < request.stages.size(); ++stage) {
    const StageState& state = request.stages[stage];
    if (!options_.computes || (state.BoundaryCostsMore() && !state.HasHolesAhead())) continue;
    const auto piece = state.NextBoundary(channel, ahead);
    if (!piece.has_value() || (best.has_value() && piece->block >= best->block)) continue;
    best = piece;
    best_stage = stage;
  }
  if (!best.has_value()) return std::nullopt;
  request.stages[best_stage].AskBoundary(*best);
  return BeginLoad(request, best_stage, 0, channel, *best, now_s);
}

// Of its stages the one with the most to do.
std::optional<Load> Scheduler::LoadOf(RequestState& request, ChannelId channel, double now_s) {
  Aim(request, now_s);
  std::optional<StageState::Piece> best;
  size_t best_lane = 0;
  uint16_t best_stage = 0;
  double best_s = -1;
  for (uint16_t stage = 0; stage < request.stages.size(); ++stage) {
    StageState& state = request.stages[stage];
    const double left_s = request.Outlook(costs_, stage).both_s;
    if (left_s <= best_s) continue;
    for (size_t lane = 0; lane < state.lanes().size(); ++lane) {
      if (state.lanes()[lane].channel != channel) continue;
      StageState::Cut cut;
      cut.layers_max =
          LayersPerStep(request, stage, costs_.LoadSeconds(channel, state.BlockBytes(lane)));
      cut.bottom_up = MaySweep(request, state) && !state.HasHolesAhead();
      const auto piece = state.NextPiece(costs_, lane, cut);
      if (!piece.has_value() || Leaves(request, stage, channel, piece->bytes, now_s)) continue;
      best = piece;
      best_lane = lane;
      best_stage = stage;
      best_s = left_s;
      break;
    }
  }
  if (!best.has_value()) return std::nullopt;
  StageState& state = request.stages[best_stage];
  state.Ask(best_lane, *best);
  return BeginLoad(request, best_stage, state.lanes()[best_lane].rank, channel, *best, now_s);
}

// Where the engine is slower than it seemed: what it is computing is loaded as well, if that ends
// first.
std::optional<Load> Scheduler::HedgeLoad(RequestState& request, ChannelId channel, double now_s) {
  for (uint16_t stage = 0; stage < request.stages.size(); ++stage) {
    StageState& state = request.stages[stage];
    for (size_t lane = 0; lane < state.lanes().size(); ++lane) {
      if (state.lanes()[lane].channel != channel) continue;
      if (state.aims() && !Queue(channel).loads().empty()) continue;
      const auto piece = state.NextHedgePiece(lane);
      if (!piece.has_value()) continue;
      const double lands_s =
          Queue(channel).BacklogSeconds(costs_, now_s) + costs_.LoadSeconds(channel, piece->bytes);
      const double soonest_s = lands_s * (1 - std::min(2 * costs_.LoadDoubt(channel), 0.9));
      if (soonest_s >= ComputeEnd(request, stage, now_s, /*doubts=*/2)) continue;
      state.Ask(lane, *piece);
      return BeginLoad(request, stage, state.lanes()[lane].rank, channel, *piece, now_s);
    }
  }
  return std::nullopt;
}

Load Scheduler::BeginLoad(RequestState& request, uint16_t stage, uint16_t rank, ChannelId channel,
                          const StageState::Piece& piece, double now_s) {
  Load load;
  load.id = LoadId{++last_load_};
  load.request = request.spec.id;
  load.stage = stage;
  load.rank = rank;
  load.channel = channel;
  load.boundary = piece.boundary;
  load.hedge = piece.hedge;
  load.block = piece.block;
  load.layers = piece.layers;
  load.bytes = piece.bytes;
  load.began_s = now_s;
  ChannelQueue& queue = Queue(channel);
  queue.Push(load, now_s);
  load.deadline_s = DeadlineOf(request, load, now_s);
  queue.SetDeadline(load.id, load.deadline_s);
  served_[static_cast<size_t>(channel)] = request.spec.id;
  request.loaded_turn = ++turns_;
  request.stale = true;
  request.aimed = false;
  Note(piece.hedge ? DecisionKind::kHedgeLoad : DecisionKind::kLoad, load, now_s,
       queue.BacklogSeconds(costs_, now_s), 0);
  return load;
}

double Scheduler::DeadlineOf(const RequestState& request, const Load& load, double now_s) const {
  const ChannelQueue& queue = queues_[static_cast<size_t>(load.channel)];
  const double own_s = costs_.LoadSeconds(load.channel, load.bytes);
  const double ahead_s = queue.BacklogSeconds(costs_, now_s, load.id) - own_s;
  const double patient_s = ahead_s + std::max(options_.patience * own_s, options_.patience_s_min);
  return std::min(now_s + patient_s, std::max(request.spec.deadline_s, now_s));
}

// Seconds until the step under way on the stage is through; `doubts`: so many standard deviations
// later.
double Scheduler::ComputeEnd(const RequestState& request, uint16_t stage, double now_s,
                             double doubts) const {
  for (const ComputeStep& step : steps_) {
    if (step.request != request.spec.id || step.stage != stage) continue;
    const double ran_s = now_s - step.began_s;
    const double takes_s = step.estimate_s * (1 + doubts * costs_.ComputeDoubt(step.tokens));
    // What is overdue has as long to go as it is late: nobody knows better.
    return ran_s < takes_s ? takes_s - ran_s : ran_s - takes_s;
  }
  return 0;
}

// Whether computing is through with all of it before this load would end, or time is.
bool Scheduler::Leaves(RequestState& request, uint16_t stage, ChannelId channel, double bytes,
                       double now_s) {
  const double lands_s =
      Queue(channel).BacklogSeconds(costs_, now_s) + costs_.LoadSeconds(channel, bytes);
  if (now_s + lands_s > request.spec.deadline_s) return true;
  const StageState& state = request.stages[stage];
  if (!options_.falls_back || !options_.computes || !request.spec.depths.empty() ||
      request.stages[stage].sweeps())
    return false;
  if (!state.busy()) return false;  // the engine may have other plans
  const double compute_s =
      ComputeEnd(request, stage, now_s, 0) + request.Outlook(costs_, stage).compute_s;
  if (lands_s <= compute_s * (1 + kLeaves * Doubt(request, stage))) return false;
  trace_.Add({now_s,
              DecisionKind::kLeave,
              request.spec.id,
              stage,
              0,
              channel,
              {},
              {},
              compute_s,
              lands_s});
  return true;
}

}  // namespace larder
