// Chooses loads layer by layer, from the lowest up, while something must be computed behind the
// loads and can follow them layer by layer: the suffix (the tokens behind the prefix), or chunks
// with holes.  In this file, a cell is a layer of a block.
//
// The last region (StageClaims::Region) is loaded after all others.  Within a layer, blocks are
// loaded from the first on.
// Ownership: a value inside a StageState, which reports changes of its StageClaims to it.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/restore/stage/stage_claims.h"

namespace larder {

class StageSweep {
 public:
  // Makes loads come bottom-up from now on: to the end if `for_suffix`, otherwise while
  // StageClaims::HolesFollowLoads returns true.
  void Begin(const StageClaims& claims, bool for_suffix);
  [[nodiscard]] bool begun() const { return begun_; }
  // Returns true if loads come bottom-up now.
  [[nodiscard]] bool goes_on(const StageClaims& claims) const {
    return begun_ && (for_suffix_ || claims.HolesFollowLoads());
  }
  // Returns the largest n for which layers [0, n) of the whole prefix are present; 0 before a sweep
  // has begun, unless the prefix is complete.
  [[nodiscard]] uint16_t LayersThere(const StageClaims& claims) const;
  // Returns about how many blocks of a StageLane no load has claimed, counting parts as parts; what
  // was given to the engine since Begin is mostly not subtracted.  REQUIRES: begun().
  [[nodiscard]] double OpenBlocks(const StageClaims& claims, size_t lane) const;
  // Returns the next unclaimed piece of a StageLane, one layer of a block; nullopt if there is
  // none.  Moves the lane's position past cells that need no load unless a load fails.
  // REQUIRES: begun().
  [[nodiscard]] std::optional<StagePiece> Next(const StageClaims& claims, size_t lane);

  // Reports of changes, which do nothing before Begin.  OnAsked, OnHole and OnPresent are called
  // after the claims have changed; OnFailed is called before, while the lane still has the block.
  void OnAsked(size_t lane, StageLayers layers);
  void OnFailed(size_t lane, StageLayers layers);
  void OnHole(const StageClaims& claims);
  void OnPresent(const StageClaims& claims, uint32_t block, LayerSet before);

 private:
  struct Lane {
    uint64_t at = 0;        // the next cell: pass * blocks * layers + layer * blocks + block
    int64_t unclaimed = 0;  // layers of blocks
  };
  void Count(const StageClaims& claims);

  bool begun_ = false, for_suffix_ = false;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> missing_;  // per layer: blocks without it
};

}  // namespace larder
