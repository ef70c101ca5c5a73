// Which piece of a block a channel could load: consecutive layers that are unclaimed.
//
// Functions of a stage's StageClaims, without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "client/restore/stage/stage_claims.h"

namespace larder {

// How blocks are cut into pieces.
struct PieceCut {
  uint16_t layers_max = kStageLayersMax;
  bool bottom_up = false;  // take the lowest layers first, where possible
  uint16_t floor = 0;      // no piece has layers below this
};

// Returns a piece of the StageLane's block in [first, last] that has the highest unclaimed layer
// (of several, the last block): from that layer down, unclaimed layers as `cut` allows.  Returns
// nullopt if there is none.
[[nodiscard]] std::optional<StagePiece> TopPiece(const StageClaims& claims, size_t lane,
                                                 uint32_t first, uint32_t last,
                                                 const PieceCut& cut);
// Returns a piece of the StageLane's last block in [first, last] with an unclaimed layer from
// cut.floor on: from the lowest such layer up, as `cut` allows.  Returns nullopt if there is none.
[[nodiscard]] std::optional<StagePiece> BottomPiece(const StageClaims& claims, size_t lane,
                                                    uint32_t first, uint32_t last,
                                                    const PieceCut& cut);

}  // namespace larder
