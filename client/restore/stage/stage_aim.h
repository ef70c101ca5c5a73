// What a stage aims at when few cells are left: which chunk to compute next and which to load next,
// and up to which layer each chunk is to be computed (endgame.h).
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
  // Per chunk: computing claims the layers below this first, and loads those above it.  Empty: the
  // resources meet where they meet.
  std::vector<uint16_t> depths = {};
  // Of the last few cells, chunks counted from the first of the request.
  std::optional<uint32_t> compute = {};
  std::vector<std::optional<uint32_t>> loads = {};  // per lane; empty: nothing is aimed at
  // Per lane, with `loads`.  waits: load nothing for now.  tries: load the next piece anyway, to
  // learn the channel's rate.
  std::vector<bool> waits = {}, tries = {};

  [[nodiscard]] bool aims() const { return !loads.empty(); }
  // Returns the depth of a chunk, or all layers if it has none or has a hole.
  [[nodiscard]] uint16_t DepthFor(const StageClaims& claims, uint32_t chunk) const;
  // Returns true if computing has claimed all that the depths give to it.
  [[nodiscard]] bool DepthsMet(const StageClaims& claims) const;
};

// Returns what Solve (endgame.h) says, if few cells without holes are left; otherwise nothing.
// `busy_s` and `doubt`: as there.
[[nodiscard]] StageAim AimOf(const StageClaims& claims, const StageSweep& sweep,
                             const CostModel& costs, std::vector<double> busy_s, double doubt);

}  // namespace larder
