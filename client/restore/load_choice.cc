#include "client/restore/load_choice.h"

#include <algorithm>

#include "client/restore/stage/stage_estimate.h"

namespace larder {
namespace {

// Activations are usually loaded for at most this many chunks that the engine computes next.
constexpr uint32_t kBoundaryAhead = 2;
// A channel is still given a load that is predicted to take up to 1 + kLeaves * Forecast::Doubt
// times as long as computing, because a load costs the engine nothing.
constexpr double kLeaves = 1.5;

// Returns true only if activations alone should keep the channel busy until computing ends, so that
// loads of KV would delay them.
bool BoundaryBound(const Forecast& forecast, RequestState& request, ChannelId channel) {
  if (request.stages.size() < 2 || !forecast.options.computes) return false;
  double boundary_s = 0, compute_s = 0;
  for (size_t stage = 0; stage < request.stages.size(); ++stage) {
    const StageClaims& claims = request.stages[stage].claims();
    if (claims.BoundaryCostsMore()) return false;
    boundary_s += BoundarySeconds(claims, forecast.costs, channel);
    compute_s = std::max(compute_s, request.Outlook(forecast.costs, stage).compute_s);
  }
  return boundary_s > 0 && boundary_s >= compute_s;
}

// Returns true if the load should end after the request's deadline; or, where computing is compared
// with loading (not during a sweep, for example), if the engine is computing the stage and should
// have everything that is left clearly sooner (kLeaves).
bool Leaves(const Forecast& forecast, RequestState& request, uint16_t stage, ChannelId channel,
            double bytes, Trace* trace) {
  const double lands_s = forecast.queues.BacklogSeconds(channel, forecast.costs, forecast.now_s) +
                         forecast.costs.LoadSeconds(channel, bytes);
  if (forecast.now_s + lands_s > request.spec.deadline_s) return true;
  const StageState& state = request.stages[stage];
  if (!forecast.options.falls_back || !forecast.options.computes || !request.spec.depths.empty() ||
      state.sweeps())
    return false;
  if (!state.claims().busy()) return false;  // the engine may compute another request
  const double compute_s = forecast.ComputeEnd(request, stage, /*doubts=*/0) +
                           request.Outlook(forecast.costs, stage).compute_s;
  if (lands_s <= compute_s * (1 + kLeaves * forecast.Doubt(request, stage))) return false;
  trace->Add({forecast.now_s,
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

}  // namespace

std::optional<LoadChoice> ChooseBoundary(const Forecast& forecast, RequestState& request,
                                         ChannelId channel) {
  if (request.stages.size() < 2 || !forecast.options.computes) return std::nullopt;
  const uint32_t ahead = BoundaryBound(forecast, request, channel) ? UINT32_MAX : kBoundaryAhead;
  std::optional<LoadChoice> best;
  for (uint16_t stage = 0; stage < request.stages.size(); ++stage) {
    const StageState& state = request.stages[stage];
    if (state.claims().BoundaryCostsMore() && !state.claims().HasHolesAhead()) continue;
    const auto piece = state.NextBoundary(channel, ahead);
    if (piece.has_value() && (!best.has_value() || piece->block < best->piece.block))
      best = {.stage = stage, .piece = *piece};
  }
  return best;
}

std::optional<LoadChoice> ChooseLoad(const Forecast& forecast, RequestState& request,
                                     ChannelId channel, Trace* trace) {
  std::optional<LoadChoice> best;
  double best_s = -1;
  for (uint16_t stage = 0; stage < request.stages.size(); ++stage) {
    StageState& state = request.stages[stage];
    const StageClaims& claims = state.claims();
    const double left_s = request.Outlook(forecast.costs, stage).both_s;
    if (left_s <= best_s) continue;
    for (size_t lane = 0; lane < claims.lanes().size(); ++lane) {
      if (claims.lanes()[lane].channel != channel) continue;
      const double block_s = forecast.costs.LoadSeconds(channel, claims.BlockBytes(lane));
      PieceCut cut;
      cut.layers_max = forecast.LayersPerStep(request, stage, block_s);
      cut.bottom_up = forecast.MaySweep(request, state) && !claims.HasHolesAhead();
      const auto piece = state.NextPiece(forecast.costs, lane, cut);
      if (!piece || Leaves(forecast, request, stage, channel, piece->bytes, trace)) continue;
      best = {.stage = stage, .lane = lane, .piece = *piece};
      best_s = left_s;
      break;
    }
  }
  return best;
}

std::optional<LoadChoice> ChooseHedgeLoad(const Forecast& forecast, const RequestState& request,
                                          ChannelId channel) {
  const double backlog_s = forecast.queues.BacklogSeconds(channel, forecast.costs, forecast.now_s);
  const ChannelQueue* queue = forecast.queues.Find(channel);
  const bool idle = queue == nullptr || queue->loads().empty();
  for (uint16_t stage = 0; stage < request.stages.size(); ++stage) {
    const StageState& state = request.stages[stage];
    for (size_t lane = 0; lane < state.claims().lanes().size(); ++lane) {
      if (state.claims().lanes()[lane].channel != channel) continue;
      if (state.aims() && !idle) continue;
      const auto piece = state.NextHedgePiece(lane);
      if (!piece.has_value()) continue;
      const double lands_s = backlog_s + forecast.costs.LoadSeconds(channel, piece->bytes);
      const double soonest_s = lands_s * (1 - std::min(2 * forecast.costs.LoadDoubt(channel), 0.9));
      // The step may take longer than predicted.
      if (soonest_s < forecast.ComputeEnd(request, stage, /*doubts=*/2))
        return LoadChoice{.stage = stage, .lane = lane, .piece = *piece};
    }
  }
  return std::nullopt;
}

}  // namespace larder
