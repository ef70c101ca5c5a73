#include "client/restore/stage/stage_cuts.h"

#include <algorithm>

namespace larder {

ChunkRest RestOf(const StageClaims& claims, uint32_t chunk) {
  const StageShape& shape = claims.shape();
  const TokenRange all = shape.ChunkTokens(chunk);
  if (!shape.cuts()) return {all, all.begin};
  ChunkRest rest{{all.end, all.begin}, all.end};
  for (uint32_t b = shape.ChunkBegin(chunk); b < shape.ChunkEnd(chunk); ++b) {
    const LayerSet computed({0, claims.ComputeClaim(b)});
    if ((claims.Full() - claims.Present(b) - computed).empty()) continue;
    const TokenRange cut = shape.CutOf(b);
    rest.tokens = {std::min(rest.tokens.begin, cut.begin), cut.end};
    if (claims.IsOpen(b)) rest.unclaimed_from = std::min(rest.unclaimed_from, cut.begin);
  }
  if (rest.tokens.begin > rest.tokens.end) rest.tokens.end = rest.tokens.begin;
  return rest;
}

TokenRange UpToHole(const StageClaims& claims, TokenRange tokens) {
  if (!claims.shape().cuts()) return tokens;
  for (const StageClaims::Region& region : claims.regions()) {
    const uint32_t behind = region.begin * claims.shape().block_tokens;
    if (behind > tokens.begin) return {tokens.begin, std::min(tokens.end, behind)};
  }
  return tokens;
}

TokenRange Trimmed(const StageClaims& claims, TokenRange tokens) {
  const StageShape& shape = claims.shape();
  if (!shape.cuts()) return tokens;
  for (uint32_t b = tokens.end / shape.block_tokens; b-- > tokens.begin / shape.block_tokens;) {
    if (claims.IsOpen(b)) return {tokens.begin, shape.CutOf(b).end};
  }
  return tokens;
}

}  // namespace larder
