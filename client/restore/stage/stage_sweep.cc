#include "client/restore/stage/stage_sweep.h"

#include <algorithm>

namespace larder {
namespace {

StageLayers One(uint16_t layer) { return {layer, static_cast<uint16_t>(layer + 1)}; }

}  // namespace

void StageSweep::Begin(const StageClaims& claims, bool for_suffix) {
  const StageShape& shape = claims.shape();
  begun_ = true;
  for_suffix_ = for_suffix;
  missing_.assign(shape.layers, 0);
  lanes_.resize(claims.lanes().size());
  Count(claims);
  for (uint32_t b = claims.head(); b < shape.blocks; ++b) {
    const LayerSet lacks = claims.Full() - claims.Present(b);
    for (uint16_t l = 0; l < shape.layers; ++l) {
      if (lacks.Contains(LayerSet(One(l)))) ++missing_[l];
    }
  }
}

// Moves each lane back to its first layer of a block, and counts what is unclaimed now.
void StageSweep::Count(const StageClaims& claims) {
  const StageShape& shape = claims.shape();
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane] = {};
    for (uint32_t b = claims.head(); b < shape.blocks; ++b) {
      if (!claims.lanes()[lane].Has(b) || claims.HasHole(shape.ChunkOf(b))) continue;
      lanes_[lane].unclaimed += claims.Loadable(lane, b).count();
    }
  }
}

uint16_t StageSweep::LayersThere(const StageClaims& claims) const {
  if (claims.complete()) return claims.shape().layers;
  if (!begun_) return 0;
  const auto missing =
      std::find_if(missing_.begin(), missing_.end(), [](uint32_t blocks) { return blocks > 0; });
  return static_cast<uint16_t>(missing - missing_.begin());
}

double StageSweep::OpenBlocks(const StageClaims& claims, size_t lane) const {
  return std::max(0.0, static_cast<double>(lanes_[lane].unclaimed)) / claims.shape().layers;
}

std::optional<StagePiece> StageSweep::Next(const StageClaims& claims, size_t lane) {
  const StageShape& shape = claims.shape();
  const auto& regions = claims.regions();
  const uint32_t behind = regions.empty() ? shape.blocks : regions.back().begin;
  const uint64_t cells = uint64_t{shape.blocks} * shape.layers;
  bool passes = true;
  for (uint64_t at = lanes_[lane].at; at < 2 * cells; ++at) {
    if (passes) lanes_[lane].at = at;
    const auto block = static_cast<uint32_t>(at % shape.blocks);
    const auto layer = static_cast<uint16_t>(at / shape.blocks % shape.layers);
    const bool elsewhere = !claims.lanes()[lane].Has(block) || claims.HasHole(shape.ChunkOf(block));
    if (elsewhere || (block >= behind) != (at >= cells)) continue;
    if (!claims.Loadable(lane, block).Contains(LayerSet(One(layer)))) {
      // The lane must not pass a layer that is being computed: if the engine drops its step, loads
      // may have to bring it.
      passes = passes && (claims.ComputedTo(block) > layer || claims.ComputeClaim(block) <= layer);
      continue;
    }
    return StagePiece{block, One(layer), claims.PieceBytes(lane, One(layer))};
  }
  return std::nullopt;
}

void StageSweep::OnAsked(size_t lane, StageLayers layers) {
  if (begun_) lanes_[lane].unclaimed -= layers.count();
}

void StageSweep::OnFailed(size_t lane, StageLayers layers) {
  if (begun_) lanes_[lane] = {0, lanes_[lane].unclaimed + layers.count()};
}

void StageSweep::OnHole(const StageClaims& claims) {
  // A new hole may be the last one, so that other blocks are before it, and its chunk is not
  // loaded.
  if (begun_) Count(claims);
}

void StageSweep::OnPresent(const StageClaims& claims, uint32_t block, LayerSet before) {
  if (!begun_) return;
  const LayerSet now = claims.Present(block) - before;
  for (uint16_t l = 0; l < claims.shape().layers; ++l) {
    if (now.Contains(LayerSet(One(l)))) --missing_[l];
  }
}

}  // namespace larder
