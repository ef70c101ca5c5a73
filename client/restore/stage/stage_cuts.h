// Which tokens of a chunk are left to compute.  If a request has cut_tokens, its chunks are cut:
// the engine computes whole cuts, and mostly leaves out those at the end of a chunk that loads have
// claimed.
//
// Functions of a stage's StageClaims, without state.
#pragma once

#include <cstdint>

#include "client/restore/stage/stage_claims.h"

namespace larder {

struct ChunkRest {
  TokenRange tokens = {};       // including tokens that loads have claimed
  uint32_t unclaimed_from = 0;  // StageWork::unclaimed_from
};
// Returns the whole chunk, or, if the request has cut_tokens, the tokens from the first to the last
// cut in which a layer is neither present nor claimed by computing (none if there is no such cut).
[[nodiscard]] ChunkRest RestOf(const StageClaims& claims, uint32_t chunk);
// If the request has cut_tokens, returns the tokens up to the end of the first hole among them, or
// of several holes in a row: the tokens behind may be loaded meanwhile.  Returns all tokens if
// there is no cut_tokens or no hole.
[[nodiscard]] TokenRange UpToHole(const StageClaims& claims, TokenRange tokens);
// If the request has cut_tokens, returns the tokens without the cuts at their end that are claimed
// or present.  Returns all tokens if there is no cut_tokens, or if all cuts are claimed or present.
[[nodiscard]] TokenRange Trimmed(const StageClaims& claims, TokenRange tokens);

}  // namespace larder
