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
  // Per chunk: computing first claims layers [0, depth), and loads first claim the layers above.
  // Empty: computing and loading claim layers until they meet.
  std::vector<uint16_t> depths = {};
  // The chunk whose next layer to compute.  Chunks are counted from the first of the request.
  std::optional<uint32_t> compute = {};
  // Per lane, the chunk whose next piece to load.  An empty vector: the stage does not aim.
  std::vector<std::optional<uint32_t>> loads = {};
  // Per lane; empty if `loads` is.  waits: load nothing for now.  tries: load the next piece,
  // although the lane has no aim, to learn the channel's rate.
  std::vector<bool> waits = {}, tries = {};

  [[nodiscard]] bool aims() const { return !loads.empty(); }
  // Returns the depth of a chunk, or all layers if `depths` is empty or the chunk has a hole.
  [[nodiscard]] uint16_t DepthFor(const StageClaims& claims, uint32_t chunk) const;
  // Returns true if, from the chunk of the head on, every chunk is computed up to its depth, except
  // for layers that are present or that loads have claimed.
  [[nodiscard]] bool DepthsMet(const StageClaims& claims) const;
};

// Returns the aim that Solve (endgame.h) finds for the last few cells (layers of chunks).  Returns
// an empty aim where Solve does not apply, for example because more cells are left or a hole is
// ahead.  `busy_s` and `doubt` are those of Endgame.
[[nodiscard]] StageAim AimOf(const StageClaims& claims, const StageSweep& sweep,
                             const CostModel& costs, std::vector<double> busy_s, double doubt);

}  // namespace larder
