// Loads layer by layer, from the lowest up, while something must be computed behind the loads and
// can follow them layer by layer: the suffix, or chunks with holes.  A cell is here a layer of a
// block.
//
// What is before the last hole comes first, then what is behind it; each layer from its first block
// on.
// Keeps what the claims do not: for each lane where the next unclaimed cell can be, and how much is
// unclaimed; for each layer how many blocks lack it.
// Ownership: a value inside a StageState, which reports every change of the claims to it.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/restore/stage/stage_claims.h"

namespace larder {

class StageSweep {
 public:
  // From now on loads come bottom-up: until computing has passed the last hole, or, for a suffix,
  // to the end.
  void Begin(const StageClaims& claims, bool for_suffix);
  [[nodiscard]] bool begun() const { return begun_; }
  // Returns true if loads come bottom-up now.
  [[nodiscard]] bool goes_on(const StageClaims& claims) const {
    return begun_ && (for_suffix_ || claims.HolesFollowLoads());
  }
  // Returns n if layers [0, n) of the whole prefix are there; 0 before a sweep has begun, unless
  // the prefix is complete.
  [[nodiscard]] uint16_t LayersThere(const StageClaims& claims) const;
  // Returns how many blocks of a lane loads have not asked for since the sweep began; part of a
  // block counts as that part, and what computing has claimed since then is not subtracted.
  // REQUIRES: begun().
  [[nodiscard]] double OpenBlocks(const StageClaims& claims, size_t lane) const;
  // Returns the next piece of a lane that no one has claimed, and moves the lane's position past
  // cells that will never have to be loaded.
  // REQUIRES: begun().
  [[nodiscard]] std::optional<StagePiece> Next(const StageClaims& claims, size_t lane);

  // Reports, each after the claims have changed, except OnFailed: that comes before, while the lane
  // still has the block.  They do nothing before Begin.
  void OnAsked(size_t lane, StageLayers layers);
  void OnFailed(size_t lane, StageLayers layers);
  void OnHole(const StageClaims& claims);
  void OnPresent(const StageClaims& claims, uint32_t block, LayerSet before);

 private:
  struct Lane {
    uint64_t at = 0;        // a cell: pass * blocks * layers + layer * blocks + block
    int64_t unclaimed = 0;  // layers of blocks
  };
  void Count(const StageClaims& claims);

  bool begun_ = false, for_suffix_ = false;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> missing_;  // per layer: blocks without it
};

}  // namespace larder
