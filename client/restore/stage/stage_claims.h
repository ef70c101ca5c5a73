// Who has, or is about to have, which layers of which blocks of one stage.
//
// A layer of a block is claimed by computing or by a load; a hedge claims it for both.  Computing
// claims the lowest layers of a chunk, and of chunks from the first on; loads claim the rest.  What
// was loaded on every rank, or computed, is there.  The head is the first block that is not there
// in all layers.
// A hole is a block that is stored nowhere, or could not be loaded.  Its chunk, or the cut of it,
// must be computed.  Holes divide the blocks that can be loaded into regions.
//
// Invariants (CheckInvariants): a layer that has landed on a rank is not asked for on it; a layer
// is in here_ exactly if it has landed on all ranks; blocks before the head are there in all
// layers; a chunk that is under way continues at its depth. This class decides nothing: StageState
// does. Ownership: a value inside a StageState.  Thread-safety: none. Limits: kStageLayersMax
// layers; memory about 40 B per block and rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "client/restore/stage/stage_shape.h"

namespace larder {

// The blocks of one rank that lie on one channel.
struct StageLane {
  uint16_t rank = 0;
  ChannelId channel = ChannelId::kNowhere;
  std::vector<uint32_t> count = {};  // count[b]: its blocks below b
  [[nodiscard]] bool Has(uint32_t block) const { return count[block + 1] != count[block]; }
};

// What an engine computes in one step.
struct StageWork {
  uint32_t chunk = 0;
  TokenRange tokens = {};
  StageLayers layers = {};
  bool hedge = false;               // a load of the same is under way
  bool waits_for_boundary = false;  // the activations that it starts from are not here yet
  // Loads have claimed everything before this token.  The step computes that too, because what is
  // behind it cannot be computed without it.
  uint32_t unclaimed_from = 0;
};

// What a channel loads in one go.
struct StagePiece {
  uint32_t block = 0;
  StageLayers layers = {};
  double bytes = 0;
  bool boundary = false;  // activations, and no KV
  bool hedge = false;     // the engine computes the same
};

class StageClaims {
 public:
  // Consecutive blocks outside the chunks (or cuts) that have a hole.
  struct Region {
    uint32_t begin = 0, end = 0;
    // Per lane: the last block that may be unclaimed.  Failed moves it up; PassTo and a new hole
    // move it down.
    std::vector<int64_t> next = {};
  };
  // A chunk that takes several steps: the engine has claimed its layers below layers_end, and its
  // first `tokens` are computed through them.
  struct Partial {
    uint32_t tokens = 0;
    uint16_t layers_end = 0;  // 0: the chunk has not begun, or is not divided
  };
  enum class Boundary : uint8_t { kNotAsked, kAsked, kHere, kGone };

  // REQUIRES: Validate(request) is OK; `stage` is one of its stages.
  StageClaims(const RequestSpec& request, const StageSpec& stage);

  // ---- what there is
  [[nodiscard]] const StageShape& shape() const { return shape_; }
  [[nodiscard]] uint32_t head() const { return head_; }
  [[nodiscard]] bool complete() const { return head_ == shape_.blocks; }
  [[nodiscard]] const std::vector<StageLane>& lanes() const { return lanes_; }
  [[nodiscard]] const std::vector<Region>& regions() const { return regions_; }
  [[nodiscard]] LayerSet Full() const { return LayerSet({0, shape_.layers}); }
  [[nodiscard]] LayerSet Present(uint32_t block) const {
    return here_[block] | LayerSet({0, computed_[block]});
  }
  [[nodiscard]] uint16_t ComputedTo(uint32_t block) const { return computed_[block]; }
  [[nodiscard]] bool IsComputed(uint32_t block, StageLayers layers) const {
    return computed_[block] >= layers.end;
  }
  // Returns n if layers [0, n) of the chunk are there.
  [[nodiscard]] uint16_t PresentTo(uint32_t chunk) const;
  [[nodiscard]] bool HasHole(uint32_t chunk) const { return hole_[chunk]; }
  [[nodiscard]] bool HasHolesAhead() const;
  // Returns true if a hole is ahead behind blocks that can be loaded and are not there yet.
  [[nodiscard]] bool HolesFollowLoads() const;
  // Returns the chunk's depth: its activations are known up to this layer.
  [[nodiscard]] uint16_t DepthOf(uint32_t chunk) const { return depth_[chunk]; }
  [[nodiscard]] bool IsPartial(uint32_t chunk) const { return partial_[chunk].layers_end > 0; }
  [[nodiscard]] const Partial& partial(uint32_t chunk) const { return partial_[chunk]; }
  [[nodiscard]] double BlockBytes(size_t lane) const {
    return ranks_[lanes_[lane].rank].block_bytes;
  }
  [[nodiscard]] double PieceBytes(size_t lane, StageLayers layers) const {
    return BlockBytes(lane) * layers.count() / shape_.layers;
  }

  // ---- what is claimed
  [[nodiscard]] bool busy() const { return work_.has_value(); }
  [[nodiscard]] const std::optional<StageWork>& work() const { return work_; }
  // Returns the layer below which a block is the engine's: computed, or about to be.
  [[nodiscard]] uint16_t ComputeClaim(uint32_t block) const;
  // Returns the layers of a lane's block that no one has claimed.
  [[nodiscard]] LayerSet Loadable(size_t lane, uint32_t block) const;
  // Returns the layers in [ComputedTo(block), claim) that the lane's rank has neither asked for nor
  // received.
  [[nodiscard]] LayerSet Hedgeable(size_t lane, uint32_t block, uint16_t claim) const;
  // Returns true if some of the block is neither there nor claimed.
  [[nodiscard]] bool IsOpen(uint32_t block) const;
  // Returns one above the highest layer of the chunk that no load has claimed on all ranks.
  [[nodiscard]] uint16_t OpenTop(uint32_t chunk) const;
  // Returns one behind the last block that no one has claimed; an upper bound.
  [[nodiscard]] uint32_t OpenEnd() const;
  // Returns the blocks of a lane in a region, from `from` on, that no one has claimed; part of a
  // block counts as that part.
  [[nodiscard]] double OpenBlocks(const Region& region, size_t lane, uint32_t from) const;

  // ---- computing
  void Begin(const StageWork& work);
  // What Begin was told is computed.
  StageWork Computed();
  void Abandoned() { work_.reset(); }  // it was dropped
  // Returns true if all of what Begin was told has been loaded meanwhile, and no layer between it
  // and `target` that no load has claimed needs its activations.
  [[nodiscard]] bool Overtaken(uint16_t target) const;

  // ---- loading
  void Ask(size_t lane, const StagePiece& piece);
  void Unask(uint16_t rank, uint32_t block, StageLayers layers);
  // Returns true if the bytes are of use.
  bool Landed(uint16_t rank, uint32_t block, StageLayers layers);
  // Returns true if the block became a hole, because it is gone or has failed too often.
  [[nodiscard]] bool Failed(uint16_t rank, uint32_t block, StageLayers layers, bool gone);
  // No block of the region behind `next` is unclaimed on this lane.
  void PassTo(size_t region, size_t lane, int64_t next) { regions_[region].next[lane] = next; }

  // ---- the activations that computing starts from, per chunk
  [[nodiscard]] bool needs_boundaries() const { return !boundary_.empty(); }
  [[nodiscard]] Boundary BoundaryOf(uint32_t chunk) const { return boundary_[chunk]; }
  [[nodiscard]] bool AwaitsBoundary(uint32_t chunk) const {
    return needs_boundaries() && boundary_[chunk] != Boundary::kHere;
  }
  [[nodiscard]] ChannelId BoundaryChannel(uint32_t chunk) const {
    return boundary_copy_.channel_of_block[shape_.ChunkBegin(chunk)];
  }
  [[nodiscard]] double BoundaryBytes(uint32_t chunk) const {
    return boundary_copy_.block_bytes * (shape_.ChunkEnd(chunk) - shape_.ChunkBegin(chunk));
  }
  // Returns bytes of activations per byte of KV that they spare, on the same channel.
  [[nodiscard]] double BoundaryPerLoad() const;
  [[nodiscard]] bool BoundaryCostsMore() const { return BoundaryPerLoad() >= 1; }
  void AskBoundary(uint32_t chunk) { boundary_[chunk] = Boundary::kAsked; }
  // They were loaded, or handed over.  Returns true if they were not here before.
  bool BoundaryIsHere(uint32_t chunk);
  // A load of them failed.  `gone`: unless they are handed over, the chunk can only be loaded.
  void BoundaryFailed(uint32_t chunk, bool gone);
  // Returns true if a chunk can be neither loaded nor computed.
  [[nodiscard]] bool Lost() const;

  [[nodiscard]] const std::vector<uint16_t>& depths() const { return computed_; }  // per block
  // O(blocks * ranks); for tests.
  void CheckInvariants() const;

 private:
  [[nodiscard]] size_t At(uint16_t rank, uint32_t block) const {
    return size_t{rank} * shape_.blocks + block;
  }
  void MakeLanes();
  void MakeRegions();
  // The block is a hole: what is before its cut and what is behind it are loaded apart.
  void MakeHole(uint32_t block);
  void Advance();

  StageShape shape_;
  std::vector<Copy> ranks_;
  Copy boundary_copy_;
  std::vector<StageLane> lanes_;
  std::vector<Region> regions_;

  uint32_t head_ = 0;
  std::vector<uint16_t> depth_;           // per chunk
  std::vector<Partial> partial_;          // per chunk
  std::vector<bool> hole_;                // per chunk
  std::vector<uint16_t> computed_;        // per block: layers [0, this) came by computing
  std::vector<LayerSet> here_;            // per block: landed on every rank
  std::vector<LayerSet> asked_, landed_;  // per rank and block
  std::vector<uint8_t> failures_;         // per block, in a row
  std::vector<Boundary> boundary_;        // per chunk; empty: computing needs none
  std::optional<StageWork> work_;
};

}  // namespace larder
