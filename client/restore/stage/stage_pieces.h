// Which piece of a block a channel could load: consecutive layers that no one has claimed.
//
// Functions of a stage's claims, without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/restore/stage/stage_claims.h"

namespace larder {

// How blocks are cut into pieces.
struct PieceCut {
  uint16_t layers_max = kStageLayersMax;
  bool bottom_up = false;  // computing follows the loads layer by layer
  uint16_t floor = 0;      // layers below this are left alone
};

// Of blocks [first, last], takes the one of which the least is claimed, from its top layer down.
[[nodiscard]] std::optional<StagePiece> TopPiece(const StageClaims& claims, size_t lane,
                                                 uint32_t first, uint32_t last,
                                                 const PieceCut& cut);
// Of blocks [first, last], takes the last one that is not all claimed, from its lowest layer up.
[[nodiscard]] std::optional<StagePiece> BottomPiece(const StageClaims& claims, size_t lane,
                                                    uint32_t first, uint32_t last,
                                                    const PieceCut& cut);

}  // namespace larder
