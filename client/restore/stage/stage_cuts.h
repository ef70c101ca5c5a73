// Which tokens of a chunk are left to compute.  An engine that cuts chunks between tokens computes
// whole cuts, and leaves to loads what they have claimed at the end of a chunk.
//
// Functions of a stage's claims, without state.
#pragma once

#include <cstdint>

#include "client/restore/stage/stage_claims.h"

namespace larder {

struct ChunkRest {
  TokenRange tokens = {};       // with what loads have claimed
  uint32_t unclaimed_from = 0;  // StageWork::unclaimed_from
};
// Returns the whole chunk, or, if it may be cut, the tokens from the first block that is not there
// to the last.
[[nodiscard]] ChunkRest RestOf(const StageClaims& claims, uint32_t chunk);
// Returns the tokens up to the first hole behind their beginning: what is behind that hole may be
// loaded meanwhile.
[[nodiscard]] TokenRange UpToHole(const StageClaims& claims, TokenRange tokens);
// Returns the tokens without those at their end that loads have claimed, unless loads have claimed
// all of them.
[[nodiscard]] TokenRange Trimmed(const StageClaims& claims, TokenRange tokens);

}  // namespace larder
