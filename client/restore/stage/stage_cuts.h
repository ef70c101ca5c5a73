// Which tokens of a chunk are left to compute.  An engine that cuts chunks between tokens computes
// whole cuts, and mostly leaves out the tokens at the end of a chunk that loads have claimed.
//
// Functions of a stage's claims, without state.
#pragma once

#include <cstdint>

#include "client/restore/stage/stage_claims.h"

namespace larder {

struct ChunkRest {
  TokenRange tokens = {};       // including tokens that loads have claimed
  uint32_t unclaimed_from = 0;  // StageWork::unclaimed_from
};
// Returns the whole chunk, or, if chunks are cut, the tokens from the first to the last cut in
// which a layer is neither present nor claimed by computing (no tokens if there is none).
[[nodiscard]] ChunkRest RestOf(const StageClaims& claims, uint32_t chunk);
// If chunks are cut, returns the tokens up to the end of the first hole among them, or of several
// holes that follow one another: the tokens behind it may be loaded meanwhile.  Returns all tokens
// if chunks are not cut or there is no hole.
[[nodiscard]] TokenRange UpToHole(const StageClaims& claims, TokenRange tokens);
// If chunks are cut, returns the tokens without the cuts at their end that are claimed or present.
// Returns all tokens if chunks are not cut, or if all cuts are claimed or present.
[[nodiscard]] TokenRange Trimmed(const StageClaims& claims, TokenRange tokens);

}  // namespace larder
