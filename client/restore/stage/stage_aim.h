// What a stage aims at when few cells (layers of chunks) are left: which chunk to compute next and
// which to load next, and up to which layer each chunk is to be computed (endgame.h).
//
// A request may also come with depths of its own (RequestSpec::depths).
// Ownership: a value inside a StageState.  Thread-safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/restore/costs/cost_model.h"
#include "client/restore/stage/stage_claims.h"
#include "client/restore/stage/stage_sweep.h"

namespace larder {

struct StageAim {
  // Per chunk: the engine first computes layers [0, depth), and the channels first load the layers
  // above.  Empty: computing and loading have no such targets, and go on until they meet.
  std::vector<uint16_t> depths = {};
  // The chunk whose next layer to compute.  Chunks are counted from the first of the request.
  std::optional<uint32_t> compute = {};
  // Per StageLane (the blocks of one rank on one channel), the chunk of which to load a piece next;
  // nullopt: none.  An empty vector: the stage does not aim, and pieces are chosen without an aim.
  std::vector<std::optional<uint32_t>> loads = {};
  // Per StageLane; empty if `loads` is.  waits: load nothing for now.  tries: load something,
  // although `loads` has no chunk for the lane, to learn the channel's rate.
  std::vector<bool> waits = {}, tries = {};

  [[nodiscard]] bool aims() const { return !loads.empty(); }
  // Returns the depth of a chunk, or all layers if `depths` is empty or the chunk has a hole.
  [[nodiscard]] uint16_t DepthFor(const StageClaims& claims, uint32_t chunk) const;
  // Returns true if `depths` is empty.  Otherwise returns true only if no layer below the depth of
  // its chunk is left that is neither present, nor computed, nor claimed by loads.
  [[nodiscard]] bool DepthsMet(const StageClaims& claims) const;
};

// Returns the aim that Solve (endgame.h) finds for the last few cells (layers of chunks).  Returns
// an empty aim where Solve does not apply, for example because more cells are left or a hole is
// ahead.  `busy_s` and `doubt` are those of Endgame.
[[nodiscard]] StageAim AimOf(const StageClaims& claims, const StageSweep& sweep,
                             const CostModel& costs, std::vector<double> busy_s, double doubt);

}  // namespace larder
