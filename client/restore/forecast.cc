#include "client/restore/forecast.h"

#include <algorithm>
#include <cmath>

#include "client/restore/stage/stage_estimate.h"

namespace larder {
namespace {

// Loads count as overdue this much later than predicted (with doubt added): a part of the time of
// computing the whole prefix on the stage.
constexpr double kBearable = 0.03;

// Returns the request's last load of KV in the queue whose block is before `block`; 0 if there is
// none.
LoadId LastBefore(const ChannelQueue& queue, RequestId request, uint32_t block) {
  LoadId last = {};
  for (const Load& load : queue.loads()) {
    if (load.request == request && !load.boundary && load.block < block) last = load.id;
  }
  return last;
}

}  // namespace

double Forecast::ComputeEnd(const RequestState& request, uint16_t stage, double doubts) const {
  for (const ComputeStep& step : steps) {
    if (step.request != request.spec.id || step.stage != stage) continue;
    const double ran_s = now_s - step.began_s;
    const double takes_s = step.estimate_s * (1 + doubts * costs.ComputeDoubt(step.tokens));
    // A step that is late by t seconds is taken to end in t seconds.
    return ran_s < takes_s ? takes_s - ran_s : ran_s - takes_s;
  }
  return 0;
}

uint32_t Forecast::TokenBudget(double step_s, uint32_t decode_tokens, uint32_t position,
                               uint32_t granule) const {
  const ComputeCost cost = costs.compute();
  const double left_s = step_s - cost.fixed_s - cost.linear_s * decode_tokens;
  if (left_s <= 0) return 0;
  // Solves quadratic_s / 2 * n^2 + (linear_s + quadratic_s * position) * n = left_s for n tokens.
  const double slope = cost.linear_s + cost.quadratic_s * position;
  const double tokens =
      2 * left_s / (slope + std::sqrt(slope * slope + 2 * cost.quadratic_s * left_s));
  const double most = std::min(tokens, 1e9);
  return static_cast<uint32_t>(most) / granule * granule;
}

uint16_t Forecast::LayersPerStep(RequestState& request, uint16_t stage, double whole_s) const {
  const uint16_t layers = request.stages[stage].shape().layers;
  if (!options.engine.splits_layers) return layers;
  const double part_s = request.Outlook(costs, stage).both_s * options.finest;
  if (whole_s <= part_s) return layers;
  return static_cast<uint16_t>(std::max(1.0, std::floor(layers * part_s / whole_s)));
}

double Forecast::LoadsAhead(const RequestState& request, const StageState& stage) const {
  if (!stage.claims().HasHolesAhead()) return LoadsEnd(request, stage, /*hole=*/0);
  const uint32_t hole = options.engine.splits_layers ? 0 : LoadsToHole(stage.claims(), costs);
  if (hole == 0) return kNoDeadline;
  const double all_s = LoadsEnd(request, stage, /*hole=*/0);
  if (all_s == kNoDeadline) return kNoDeadline;
  const double to_hole_s = LoadsEnd(request, stage, hole);
  // If loading everything takes longer than loading to the hole and computing the holes, waiting
  // now would delay the end.
  return all_s <= to_hole_s + HoleSeconds(stage.claims(), costs) ? to_hole_s : kNoDeadline;
}

double Forecast::LoadsEnd(const RequestState& request, const StageState& stage,
                          uint32_t hole) const {
  if (!options.loads || stage.claims().lanes().empty()) return kNoDeadline;
  double end_s = 0;
  for (const StageLane& lane : stage.claims().lanes()) {
    const ChannelQueue* queue = queues.Find(lane.channel);
    double lane_s = stage.LaneSeconds(costs, lane.channel, hole > 0);
    if (hole > 0 && lane_s == 0) {  // the lane has nothing left to claim before the hole
      const LoadId last = queue == nullptr ? LoadId{} : LastBefore(*queue, request.spec.id, hole);
      if (last) end_s = std::max(end_s, queue->BacklogSeconds(costs, now_s, last));
      continue;
    }
    if (queues.ServesAnother(lane.channel, request.spec.id)) return kNoDeadline;
    if (queue != nullptr) lane_s += queue->BacklogSeconds(costs, now_s);
    end_s = std::max(end_s, lane_s);
  }
  return now_s + end_s > request.spec.deadline_s ? kNoDeadline : end_s;
}

double Forecast::LandsIn(const RequestState& request, uint16_t stage, TokenRange tokens,
                         uint16_t from, double doubts) const {
  double last_s = 0;
  for (const ChannelQueue& queue : queues.all()) {
    for (const Load& load : queue.loads()) {
      if (load.request != request.spec.id || load.stage != stage || load.boundary) continue;
      if (load.layers.end <= from) continue;
      const uint32_t token = request.stages[stage].shape().TokensOf(load.block).begin;
      if (token < tokens.begin || token >= tokens.end) continue;
      const double late_s = doubts * costs.LoadDoubt(load.channel) *
                            costs.LoadSeconds(load.channel, queue.BytesThrough(load.id));
      last_s = std::max(last_s, queue.BacklogSeconds(costs, now_s, load.id) + late_s);
    }
  }
  return last_s;
}

double Forecast::OverdueFrom(const ChannelQueue& queue, const RequestState& request,
                             uint16_t stage) const {
  const StageShape& shape = request.stages[stage].shape();
  const TokenRange all{0, request.spec.tokens};
  const double due_s = queue.FirstSeconds(costs) * (1 + costs.LoadDoubt(queue.id()));
  const double alone_s = costs.ComputeSeconds(all, shape.ModelLayers(shape.all_layers()));
  return queue.busy_since_s() + due_s + kBearable * alone_s;
}

bool Forecast::IsOverdue(const RequestState& request, uint16_t stage,
                         std::optional<uint32_t> chunk) const {
  const StageShape& shape = request.stages[stage].shape();
  return std::ranges::any_of(queues.all(), [&](const ChannelQueue& queue) {
    const auto concerns = [&](const Load& load) {
      return load.request == request.spec.id && load.stage == stage && !load.boundary &&
             (!chunk || shape.ChunkOf(load.block) == *chunk);
    };
    return std::ranges::any_of(queue.loads(), concerns) &&
           now_s >= OverdueFrom(queue, request, stage);
  });
}

double Forecast::DeadlineOf(const RequestState& request, const Load& load) const {
  const ChannelQueue& queue = *queues.Find(load.channel);
  const double own_s = costs.LoadSeconds(load.channel, load.bytes);
  const double ahead_s = queue.BacklogSeconds(costs, now_s, load.id) - own_s;
  const double patient_s = ahead_s + std::max(options.patience * own_s, options.patience_s_min);
  return std::min(now_s + patient_s, std::max(request.spec.deadline_s, now_s));
}

double Forecast::Doubt(const RequestState& request, uint16_t stage) const {
  double load = 0;
  for (const StageLane& lane : request.stages[stage].claims().lanes())
    load = std::max(load, costs.LoadDoubt(lane.channel));
  return load + costs.ComputeDoubt({0, request.spec.chunk_tokens});
}

bool Forecast::MaySweep(const RequestState& request, const StageState& state) const {
  return options.engine.splits_layers && request.spec.depths.empty() &&
         (OverlapsSuffix(request) || state.claims().HolesFollowLoads());
}

}  // namespace larder
