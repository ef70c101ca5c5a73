// What is left of a stage, in seconds, with the engine and all channels to itself.  Few chunks are
// added up one by one; many are taken as one stretch of tokens.
//
// Functions of a stage's claims, without state.
#pragma once

#include <cstdint>

#include "client/restore/costs/cost_model.h"
#include "client/restore/stage/stage_claims.h"

namespace larder {

struct StageOutlook {
  double compute_s = 0;  // of all that no one has claimed, by computing alone
  double lanes_s = 0;    // by loading alone, without holes
  double both_s = 0;
};
[[nodiscard]] StageOutlook Estimate(const StageClaims& claims, const CostModel& costs);

[[nodiscard]] double WorkSeconds(const StageClaims& claims, const CostModel& costs,
                                 const StageWork& work);
// Returns the seconds of computing that are left in the chunk of `work`, from its first layer on.
[[nodiscard]] double ChunkSeconds(const StageClaims& claims, const CostModel& costs,
                                  const StageWork& work);
// Returns the seconds of computing that loads cannot spare: of chunks with holes.
[[nodiscard]] double HoleSeconds(const StageClaims& claims, const CostModel& costs);
// Returns the seconds of loading what no one has claimed behind the last hole.
[[nodiscard]] double TailSeconds(const StageClaims& claims, const CostModel& costs);
// Returns the seconds in which a channel loads what no one has claimed.  `to_hole`: of that, what
// is before the first hole.
[[nodiscard]] double LaneSeconds(const StageClaims& claims, const CostModel& costs,
                                 ChannelId channel, bool to_hole);
// Returns the seconds in which a channel loads its activations for all chunks that no one has
// claimed, as if computing needed all of them.
[[nodiscard]] double BoundarySeconds(const StageClaims& claims, const CostModel& costs,
                                     ChannelId channel);

// Returns the region to load first: the last one that computing reaches while it, and what is
// behind it, is loaded.  0 if there are none.
[[nodiscard]] size_t UrgentRegion(const StageClaims& claims, const CostModel& costs);
// Returns the first block of the chunk (or cut) with the hole ahead, if what is before it is loaded
// first; otherwise 0.
[[nodiscard]] uint32_t LoadsToHole(const StageClaims& claims, const CostModel& costs);

}  // namespace larder
