#include "client/restore/stage/stage_aim.h"

#include <algorithm>
#include <utility>

#include "client/restore/stage/endgame.h"
#include "client/restore/stage/stage_pieces.h"

namespace larder {
namespace {

constexpr double kUnknown = 0.1;  // a larger doubt means that costs are not measured yet

bool MayAim(const StageClaims& claims, const StageSweep& sweep, uint32_t first, uint32_t end) {
  if (claims.complete() || claims.HasHolesAhead() || sweep.begun() || first >= end) return false;
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    if (claims.IsPartial(chunk)) return false;
  }
  return IsEndgame(end - first, claims.shape().layers);
}

Endgame::Chunk ChunkLeft(const StageClaims& claims, const CostModel& costs, uint32_t chunk) {
  const StageShape& shape = claims.shape();
  const uint16_t layers = shape.layers;
  const uint32_t begin = shape.ChunkBegin(chunk), end = shape.ChunkEnd(chunk);
  Endgame::Chunk left;
  left.low = claims.ComputeClaim(begin);
  left.high = std::max(left.low, claims.OpenTop(chunk));
  left.above_low_is_there = true;
  for (uint32_t b = begin; b < end; ++b) {
    if (!claims.Present(b).Contains(LayerSet({left.low, layers}))) left.above_low_is_there = false;
  }
  left.layer_s = costs.ComputeSeconds(shape.ChunkTokens(chunk),
                                      shape.ModelLayers(shape.all_layers()), shape.chunk_tokens) /
                 layers;
  const std::vector<StageLane>& lanes = claims.lanes();
  for (uint16_t depth = left.low; depth <= left.high; ++depth) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      uint32_t open = 0;
      for (uint32_t b = begin; b < end; ++b) {
        if (lanes[lane].Has(b)) open += (claims.Loadable(lane, b) - LayerSet({0, depth})).count();
      }
      const double bytes = claims.BlockBytes(lane) * open / layers;
      left.loads_s.push_back(costs.LoadSeconds(lanes[lane].channel, bytes));
    }
  }
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    const auto piece = TopPiece(claims, lane, begin, end - 1, {.layers_max = 1});
    left.piece_top.push_back(piece.has_value() ? piece->layers.end : uint16_t{0});
    left.piece_s.push_back(
        costs.LoadSeconds(lanes[lane].channel, claims.BlockBytes(lane) / layers));
  }
  return left;
}

}  // namespace

uint16_t StageAim::DepthFor(const StageClaims& claims, uint32_t chunk) const {
  return depths.empty() || claims.HasHole(chunk) ? claims.shape().layers : depths[chunk];
}

bool StageAim::DepthsMet(const StageClaims& claims) const {
  if (depths.empty()) return true;
  const StageShape& shape = claims.shape();
  for (uint32_t chunk = shape.ChunkOf(claims.head()); chunk < shape.chunks; ++chunk) {
    const uint16_t depth = std::min(DepthFor(claims, chunk), claims.OpenTop(chunk));
    if (depth > claims.DepthOf(chunk)) return false;
  }
  return true;
}

StageAim AimOf(const StageClaims& claims, const StageSweep& sweep, const CostModel& costs,
               std::vector<double> busy_s, double doubt) {
  const StageShape& shape = claims.shape();
  const uint32_t open_end = claims.OpenEnd(), first = shape.ChunkOf(claims.head());
  const uint32_t end = open_end == 0 ? 0 : shape.ChunkOf(open_end - 1) + 1;
  StageAim aim;
  if (!MayAim(claims, sweep, first, end)) return aim;
  const size_t lanes = claims.lanes().size();
  Endgame game{shape.layers, lanes, {}, std::move(busy_s), doubt};
  for (uint32_t chunk = first; chunk < end; ++chunk)
    game.chunks.push_back(ChunkLeft(claims, costs, chunk));
  const EndgameAim solved = Solve(game);
  aim.depths.assign(shape.chunks, 0);
  std::copy(solved.depths.begin(), solved.depths.end(), aim.depths.begin() + first);
  const auto absolute = [&](const std::optional<size_t>& chunk) {
    return chunk.has_value() ? std::optional(first + static_cast<uint32_t>(*chunk)) : std::nullopt;
  };
  aim.compute = absolute(solved.compute);
  for (const auto& chunk : solved.loads) aim.loads.push_back(absolute(chunk));
  aim.waits = solved.waits;
  // An idle channel for which Solve chose no load gets one anyway while the costs are uncertain, so
  // that its rate is measured.
  for (size_t lane = 0; lane < lanes; ++lane)
    aim.tries.push_back(!solved.loads[lane].has_value() && game.busy_s[lane + 1] <= 0 &&
                        game.doubt > kUnknown);
  return aim;
}

}  // namespace larder
