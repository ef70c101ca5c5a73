// The last few cells of a stage, as endgame.h wants them, and back.
#include <algorithm>

#include "client/restore/stage_state.h"

namespace larder {
namespace {

constexpr double kUnknown = 0.1;  // doubt of costs that were not measured yet

}  // namespace

bool StageState::MayAim(uint32_t first, uint32_t end) const {
  if (complete() || HasHolesAhead() || sweeps_ || first >= end) return false;
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    if (IsPartial(chunk)) return false;
  }
  return IsEndgame(end - first, layers_);
}

Endgame::Chunk StageState::ChunkLeft(const CostModel& costs, uint32_t chunk) const {
  const uint32_t begin = chunk * chunk_blocks_, end = ChunkEnd(chunk);
  Endgame::Chunk left;
  left.low = ComputeClaim(begin);
  left.high = std::max(left.low, OpenTop(chunk));
  left.above_low_is_there = true;
  for (uint32_t b = begin; b < end; ++b) {
    if (!Present(b).Contains(LayerSet({left.low, layers_}))) left.above_low_is_there = false;
  }
  left.layer_s =
      costs.ComputeSeconds(ChunkTokens(chunk), model_layers({0, layers_}), chunk_tokens_) / layers_;
  for (uint16_t depth = left.low; depth <= left.high; ++depth) {
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      uint32_t layers = 0;
      for (uint32_t b = begin; b < end; ++b) {
        const bool mine = lanes_[lane].count[b + 1] != lanes_[lane].count[b];
        if (mine) layers += (Loadable(lane, b) - LayerSet({0, depth})).count();
      }
      const double bytes = BlockBytes(lane) * layers / layers_;
      left.loads_s.push_back(costs.LoadSeconds(lanes_[lane].channel, bytes));
    }
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto piece = TopPiece(lane, begin, end - 1, {.layers_max = 1});
    left.piece_top.push_back(piece.has_value() ? piece->layers.end : uint16_t{0});
    left.piece_s.push_back(costs.LoadSeconds(lanes_[lane].channel, BlockBytes(lane) / layers_));
  }
  return left;
}

void StageState::Aim(const CostModel& costs, std::vector<double> busy_s, double doubt) {
  AimAtNothing();
  const uint32_t open_end = OpenEnd(), first = ChunkOf(head_);
  const uint32_t end = open_end == 0 ? 0 : ChunkOf(open_end - 1) + 1;
  if (!MayAim(first, end)) return;
  Endgame game{layers_, lanes_.size(), {}, std::move(busy_s), doubt};
  for (uint32_t chunk = first; chunk < end; ++chunk) game.chunks.push_back(ChunkLeft(costs, chunk));
  const EndgameAim aim = Solve(game);
  targets_.assign(depth_.size(), 0);
  std::copy(aim.depths.begin(), aim.depths.end(), targets_.begin() + first);
  const auto absolute = [&](const std::optional<size_t>& chunk) {
    return chunk.has_value() ? std::optional(first + static_cast<uint32_t>(*chunk)) : std::nullopt;
  };
  aim_compute_ = absolute(aim.compute);
  for (const auto& chunk : aim.loads) aim_loads_.push_back(absolute(chunk));
  lane_waits_ = aim.waits;
  // A channel that nothing is known of, and that has nothing to do, is tried in any case.
  for (size_t lane = 0; lane < lanes_.size(); ++lane)
    lane_tries_.push_back(!aim.loads[lane].has_value() && game.busy_s[lane + 1] <= 0 &&
                          game.doubt > kUnknown);
}

void StageState::AimAtNothing() {
  targets_.clear();
  aim_compute_.reset();
  aim_loads_.clear();
  lane_waits_.clear();
  lane_tries_.clear();
}

std::optional<StageState::Piece> StageState::AimedPiece(size_t lane, Cut cut) const {
  if (lane_waits_[lane] || !aim_loads_[lane].has_value()) return std::nullopt;
  const uint32_t chunk = *aim_loads_[lane], begin = chunk * chunk_blocks_;
  auto piece = TopPiece(lane, begin, ChunkEnd(chunk) - 1, {.layers_max = 1});
  if (!piece.has_value()) return std::nullopt;
  // As much as the costs as they seem allow, a layer in any case.
  cut.floor = std::min(targets_[chunk], static_cast<uint16_t>(piece->layers.end - 1));
  piece = TopPiece(lane, begin, ChunkEnd(chunk) - 1, cut);
  piece->bytes = BlockBytes(lane) * piece->layers.count() / layers_;
  return piece;
}

}  // namespace larder
