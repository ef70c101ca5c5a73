#include "client/restore/stage/stage_state.h"

#include <algorithm>

#include "client/restore/stage/stage_cuts.h"
#include "client/restore/stage/stage_estimate.h"
#include "storage/check.h"

namespace larder {

// ---- what to compute

// `limit`: layers [0, limit) of all chunks before this one are present.  `past_depth`: the work may
// have layers above the depth that StageAim has for the chunk.
std::optional<StageWork> StageState::WorkIn(uint32_t chunk, uint16_t limit, uint16_t layers_max,
                                            uint32_t tokens_max, bool past_depth) const {
  const uint16_t depth = claims_.DepthOf(chunk), wanted = aim_.DepthFor(claims_, chunk);
  uint16_t top = std::min(limit, claims_.OpenTop(chunk));
  const bool goes_on = claims_.IsPartial(chunk);
  const StageClaims::Partial& partial = claims_.partial(chunk);
  if (!past_depth && !goes_on) top = std::min(top, wanted);
  if (top <= depth || (goes_on && limit < partial.layers_end)) return std::nullopt;
  const ChunkRest rest = RestOf(claims_, chunk);
  StageWork work{.chunk = chunk, .tokens = rest.tokens, .unclaimed_from = rest.unclaimed_from};
  if (goes_on) work.tokens.begin += partial.tokens;
  const uint32_t end = work.tokens.end;
  tokens_max = std::min(tokens_max, shape().chunk_tokens);
  work.tokens = Trimmed(claims_, shape().Within(UpToHole(claims_, work.tokens), tokens_max));
  if (work.tokens.begin == work.tokens.end) return std::nullopt;
  const bool whole = work.tokens.end == end && !goes_on;
  // Work that is not divided between layers has all layers up to `reach`, even if loads have
  // claimed the upper ones.
  const bool splits = whole && layers_max < shape().layers;
  const uint16_t reach = std::min(limit, past_depth ? shape().layers : wanted);
  work.layers = {
      depth, splits ? std::min<uint16_t>(top, static_cast<uint16_t>(depth + layers_max)) : reach};
  if (goes_on) work.layers.end = partial.layers_end;
  work.waits_for_boundary = claims_.AwaitsBoundary(chunk);
  return work;
}

std::optional<StageWork> StageState::NextWork(uint16_t layers_max, uint32_t tokens_max) const {
  if (claims_.busy() || claims_.complete() || tokens_max == 0) return std::nullopt;
  const uint32_t first = shape().ChunkOf(claims_.head());
  const bool past_depth = aim_.DepthsMet(claims_), sweeping = sweeps();
  if (aim_.compute.has_value()) {
    const uint32_t aimed = *aim_.compute;
    const bool beyond = aim_.depths[aimed] <= claims_.DepthOf(aimed);
    uint16_t limit = shape().layers;
    for (uint32_t chunk = first; chunk < aimed; ++chunk)
      limit = std::min(limit, claims_.PresentTo(chunk));
    const uint16_t layers = beyond ? uint16_t{1} : layers_max;
    if (auto work = WorkIn(aimed, limit, layers, tokens_max, beyond)) return work;
  }
  uint16_t limit = shape().layers;
  const uint32_t open_end = claims_.OpenEnd();
  for (uint32_t chunk = first; limit > 0 && shape().ChunkBegin(chunk) < open_end; ++chunk) {
    // During a sweep (loading bottom-up), computing begins no chunk that loads will bring.
    if (!sweeping || claims_.HasHole(chunk) || claims_.IsPartial(chunk)) {
      if (auto work = WorkIn(chunk, limit, layers_max, tokens_max, past_depth)) return work;
    }
    limit = std::min(limit, claims_.PresentTo(chunk));
  }
  return std::nullopt;
}

std::optional<StageWork> StageState::NextHedge(uint16_t layers_max, uint32_t tokens_max) const {
  if (claims_.busy() || claims_.complete()) return std::nullopt;
  const uint32_t chunk = shape().ChunkOf(claims_.head());
  const uint16_t depth = claims_.DepthOf(chunk);
  if (claims_.OpenTop(chunk) > depth) return std::nullopt;  // not all of it is being loaded
  StageWork work{.chunk = chunk, .tokens = RestOf(claims_, chunk).tokens};
  const bool goes_on = claims_.IsPartial(chunk);
  if (goes_on) work.tokens.begin += claims_.partial(chunk).tokens;
  const TokenRange fits = shape().Within(work.tokens, std::min(tokens_max, shape().chunk_tokens));
  if (shape().cuts()) work.tokens = fits;
  if (work.tokens != fits || fits.begin == fits.end) return std::nullopt;
  uint16_t top = 0;
  for (uint32_t b = work.tokens.begin / shape().block_tokens; b < shape().ChunkEnd(chunk); ++b)
    top = std::max(top, (claims_.Full() - claims_.Present(b)).Top());
  if (layers_max >= shape().layers) layers_max = top;
  work.layers = {depth, static_cast<uint16_t>(std::min<int>(top, depth + layers_max))};
  if (goes_on && top > depth) work.layers.end = claims_.partial(chunk).layers_end;
  if (work.layers.empty() || claims_.AwaitsBoundary(chunk)) return std::nullopt;
  work.hedge = true;
  return work;
}

// ---- what to load

std::optional<StagePiece> StageState::NextPiece(const CostModel& costs, size_t lane,
                                                const PieceCut& cut) {
  if (claims_.complete()) return std::nullopt;
  if (sweeps()) return sweep_.Next(claims_, lane);
  if (aim_.aims() && !aim_.tries[lane]) return AimedPiece(lane, cut);
  for (const bool past_depth : {false, true}) {
    if (aim_.depths.empty() && !past_depth) continue;
    const size_t regions = claims_.regions().size();
    const size_t urgent = regions > 1 ? UrgentRegion(claims_, costs) : 0;
    for (size_t i = urgent; i < regions; ++i) {
      if (auto piece = PieceIn(i, lane, cut, past_depth)) return piece;
    }
    for (size_t i = std::min(urgent, regions); i-- > 0;) {
      if (auto piece = PieceIn(i, lane, cut, past_depth)) return piece;
    }
  }
  return std::nullopt;
}

// Searches the region backwards, from the last block that the lane may still load.  If
// cut.bottom_up, pieces come bottom-up, except in the first chunk that is not complete and in a
// chunk that is being computed.
std::optional<StagePiece> StageState::PieceIn(size_t region, size_t lane, PieceCut cut,
                                              bool past_depth) {
  const StageClaims::Region& of = claims_.regions()[region];
  int64_t next = of.next[lane];
  const int64_t begin = std::max<int64_t>(of.begin, claims_.head());
  bool passes = true;
  while (next >= begin) {
    const auto last = static_cast<uint32_t>(next);
    const uint32_t chunk = shape().ChunkOf(last);
    const uint32_t first = std::max(static_cast<uint32_t>(begin), shape().ChunkBegin(chunk));
    const bool computing =
        claims_.IsPartial(chunk) || (claims_.busy() && claims_.work()->chunk == chunk);
    cut.floor = past_depth ? uint16_t{0} : aim_.DepthFor(claims_, chunk);
    const bool bottom_up = cut.bottom_up && !computing && chunk != shape().ChunkOf(claims_.head());
    auto piece = bottom_up ? BottomPiece(claims_, lane, first, last, cut)
                           : TopPiece(claims_, lane, first, last, cut);
    if (piece.has_value()) return piece;
    // PassTo is not called for a chunk that is being computed: the engine may drop its step, and
    // then loads may have to bring the chunk.
    passes = passes && past_depth && !computing;
    next = int64_t{shape().ChunkBegin(chunk)} - 1;
    if (passes) claims_.PassTo(region, lane, next);
  }
  return std::nullopt;
}

std::optional<StagePiece> StageState::AimedPiece(size_t lane, PieceCut cut) const {
  if (aim_.waits[lane] || !aim_.loads[lane].has_value()) return std::nullopt;
  const uint32_t chunk = *aim_.loads[lane];
  const uint32_t begin = shape().ChunkBegin(chunk), last = shape().ChunkEnd(chunk) - 1;
  const auto one = TopPiece(claims_, lane, begin, last, {.layers_max = 1});
  if (!one.has_value()) return std::nullopt;
  // The piece is above the depth that is best for the predicted costs, but at least one layer.
  cut.floor = std::min(aim_.depths[chunk], static_cast<uint16_t>(one->layers.end - 1));
  return TopPiece(claims_, lane, begin, last, cut);
}

std::optional<StagePiece> StageState::NextHedgePiece(size_t lane) const {
  const std::optional<StageWork>& work = claims_.work();
  if (!work || (!shape().cuts() && claims_.HasHole(work->chunk))) return std::nullopt;
  for (uint32_t b = shape().ChunkEnd(work->chunk); b-- > shape().ChunkBegin(work->chunk);) {
    if (!claims_.lanes()[lane].Has(b)) continue;
    const uint16_t claim = shape().cuts() ? claims_.ComputeClaim(b) : work->layers.end;
    const LayerSet open = claims_.Hedgeable(lane, b, claim);
    if (open.empty() || open.count() != open.Top() - open.Lowest()) continue;
    const StageLayers layers{open.Lowest(), open.Top()};
    return StagePiece{b, layers, claims_.PieceBytes(lane, layers), false, true};
  }
  return std::nullopt;
}

std::optional<StagePiece> StageState::NextBoundary(ChannelId channel, uint32_t ahead) const {
  if (!claims_.needs_boundaries() || claims_.complete()) return std::nullopt;
  uint32_t chunk = claims_.busy() ? claims_.work()->chunk + 1 : shape().ChunkOf(claims_.head());
  for (; ahead > 0 && chunk < shape().chunks; ++chunk) {
    if (claims_.OpenTop(chunk) <= claims_.DepthOf(chunk)) continue;
    --ahead;
    if (claims_.BoundaryOf(chunk) != StageClaims::Boundary::kNotAsked) continue;
    if (claims_.BoundaryChannel(chunk) != channel) continue;
    return StagePiece{shape().ChunkBegin(chunk), {}, claims_.BoundaryBytes(chunk), true};
  }
  return std::nullopt;
}

// ---- what became of it

uint32_t StageState::Computed() {
  LARDER_CHECK(claims_.busy());
  const TokenRange tokens = claims_.work()->tokens;
  // The blocks that end within the step.
  const uint32_t first = tokens.begin / shape().block_tokens;
  const uint32_t end = tokens.end / shape().block_tokens;
  std::vector<LayerSet> before;
  for (uint32_t b = first; b < end; ++b) before.push_back(claims_.Present(b));
  const StageWork work = claims_.Computed();
  uint32_t wasted = 0;
  for (uint32_t b = first; b < end; ++b) {
    if (before[b - first].Contains(LayerSet(work.layers))) wasted += shape().block_tokens;
    sweep_.OnPresent(claims_, b, before[b - first]);
  }
  return wasted;
}

bool StageState::Overtaken() const {
  return claims_.busy() && claims_.Overtaken(aim_.DepthFor(claims_, claims_.work()->chunk));
}

void StageState::Ask(size_t lane, const StagePiece& piece) {
  claims_.Ask(lane, piece);
  sweep_.OnAsked(lane, piece.layers);
}

bool StageState::Landed(uint16_t rank, uint32_t block, StageLayers layers) {
  const LayerSet before = claims_.Present(block);
  const bool useful = claims_.Landed(rank, block, layers);
  sweep_.OnPresent(claims_, block, before);
  return useful;
}

void StageState::Failed(uint16_t rank, uint32_t block, StageLayers layers, LoadFailure why) {
  for (size_t lane = 0; lane < claims_.lanes().size(); ++lane) {
    const StageLane& of = claims_.lanes()[lane];
    if (of.rank == rank && of.Has(block)) sweep_.OnFailed(lane, layers);
  }
  if (claims_.Failed(rank, block, layers, why)) sweep_.OnHole(claims_);
}

StageLayers StageState::Missing() const {
  LayerSet missing;
  for (uint32_t b = claims_.head(); b < shape().blocks; ++b) {
    if (!claims_.HasHole(shape().ChunkOf(b)))
      missing = missing | (claims_.Full() - claims_.Present(b));
  }
  return missing.empty() ? StageLayers{} : StageLayers{missing.Lowest(), missing.Top()};
}

double StageState::LaneSeconds(const CostModel& costs, ChannelId channel, bool to_hole) const {
  if (!sweeps()) return larder::LaneSeconds(claims_, costs, channel, to_hole);
  double seconds = 0;
  for (size_t lane = 0; lane < claims_.lanes().size(); ++lane) {
    if (claims_.lanes()[lane].channel != channel) continue;
    const double blocks = sweep_.OpenBlocks(claims_, lane);
    seconds += costs.LoadSeconds(channel, claims_.BlockBytes(lane) * blocks);
  }
  return seconds;
}

}  // namespace larder
