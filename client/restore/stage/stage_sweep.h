// Loads layer by layer, from the lowest up, while something must be computed behind the loads and
// can follow them layer by layer: the suffix, or chunks with holes.  In this file, a cell is a
// layer of a block.
//
// The last region (StageClaims::Region) is loaded after all others; in each of these two parts,
// within a layer, from the first block on.
// The sweep keeps what the claims do not: for each lane, where the next unclaimed cell can be and
// how many cells are unclaimed; for each layer, how many blocks lack it.
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
  // Makes loads come bottom-up from now on, to the end if `for_suffix`, otherwise until the head
  // has passed the last region in front of a hole.
  void Begin(const StageClaims& claims, bool for_suffix);
  [[nodiscard]] bool begun() const { return begun_; }
  // Returns true if loads come bottom-up now.
  [[nodiscard]] bool goes_on(const StageClaims& claims) const {
    return begun_ && (for_suffix_ || claims.HolesFollowLoads());
  }
  // Returns the largest n for which layers [0, n) of the whole prefix are present; 0 before a sweep
  // has begun, unless the prefix is complete.
  [[nodiscard]] uint16_t LayersThere(const StageClaims& claims) const;
  // Returns how many blocks of a lane were unclaimed when the sweep began, or when a block last
  // became a hole, and have not been asked for since.  Part of a block counts as that part; what
  // computing has claimed since is not subtracted.
  // REQUIRES: begun().
  [[nodiscard]] double OpenBlocks(const StageClaims& claims, size_t lane) const;
  // Returns the next piece of a lane that no one has claimed, one layer of a block, and moves the
  // lane's position past cells that need no load unless one of the lane fails.  Returns nullopt if
  // there is none.
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
