// Estimates how many seconds of work are left of a stage, if it has the engine and all its channels
// to itself.  A few chunks are added up one by one; more are treated as one stretch of tokens.
//
// Functions of a stage's StageClaims, without state.
#pragma once

#include <cstdint>

#include "client/restore/costs/cost_model.h"
#include "client/restore/stage/stage_claims.h"

namespace larder {

struct StageOutlook {
  // Of everything that no one has claimed:
  double compute_s = 0;  // by computing alone
  double lanes_s = 0;    // by loading alone, without holes
  double both_s = 0;     // by both at once; without lanes compute_s; 0 if one has nothing to do
};
[[nodiscard]] StageOutlook Estimate(const StageClaims& claims, const CostModel& costs);

[[nodiscard]] double WorkSeconds(const StageClaims& claims, const CostModel& costs,
                                 const StageWork& work);
// Returns the seconds of computing the chunk of `work` to its end, from the first token and layer
// of `work` on; if the request has cut_tokens, the seconds of `work` alone.
[[nodiscard]] double ChunkSeconds(const StageClaims& claims, const CostModel& costs,
                                  const StageWork& work);
// Returns about the seconds of computing what is left of the chunks (or cuts) with holes, which
// loads cannot spare.
[[nodiscard]] double HoleSeconds(const StageClaims& claims, const CostModel& costs);
// Returns about the seconds of loading what is unclaimed (StageClaims) behind the last hole, or, if
// there is no hole, in the whole stage.
[[nodiscard]] double TailSeconds(const StageClaims& claims, const CostModel& costs);
// Returns about the seconds in which a channel loads what is unclaimed (StageClaims), or, if
// `to_hole`, only what is unclaimed before the first hole from StageClaims::head on.
[[nodiscard]] double LaneSeconds(const StageClaims& claims, const CostModel& costs,
                                 ChannelId channel, bool to_hole);
// Returns the seconds in which a channel loads the activations that it has and no load has claimed,
// of all chunks with unclaimed layers, as if computing needed all of them.
[[nodiscard]] double BoundarySeconds(const StageClaims& claims, const CostModel& costs,
                                     ChannelId channel);

// Returns the index of the StageClaims::Region to load first: roughly the last that computing would
// reach before that region and all behind it are loaded.  0 if there are no regions.
[[nodiscard]] size_t UrgentRegion(const StageClaims& claims, const CostModel& costs);
// Returns the first block of the chunk (or cut) with the next hole, if the blocks from
// StageClaims::head to that hole are to be loaded first; otherwise 0.
[[nodiscard]] uint32_t LoadsToHole(const StageClaims& claims, const CostModel& costs);

}  // namespace larder
