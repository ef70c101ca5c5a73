// Records which layers of which blocks of one stage are present, and which of the others were given
// to computing or to a load (claimed).
//
// A layer of a block is claimed by computing or by loads; by both only in a hedge, or where a step
// cannot leave the layer out.  Computing claims the layers of a chunk from the lowest up.  A layer
// of a block is present if it was computed, or loaded on every rank.
// The head is the first block of which not all layers are present.
// A hole is a block that, on some rank, is stored nowhere or could not be loaded.  Its chunk, or
// only its cut if the request has cut_tokens, must be computed.  Holes divide the blocks that can
// be loaded into regions.
//
// Invariants (CheckInvariants): no layer of a block is being loaded for a rank on which it has
// landed (arrived); a layer is in here_ exactly if it has landed on all ranks; all layers of the
// blocks before the head are present; a step under way begins at layer DepthOf(its chunk).
// This class decides nothing: StageState does.
// Ownership: a value inside a StageState.  Thread-safety: none.
// Limits: kStageLayersMax layers.
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
  std::vector<uint32_t> count = {};  // count[b]: how many of its blocks are below b
  [[nodiscard]] bool Has(uint32_t block) const { return count[block + 1] != count[block]; }
};

// What an engine computes in one step.
struct StageWork {
  uint32_t chunk = 0;
  TokenRange tokens = {};
  StageLayers layers = {};
  bool hedge = false;               // a load of the same layers is under way
  bool waits_for_boundary = false;  // its input activations have not arrived
  // A token position: loads have claimed or brought the tokens of this work before the position.
  // The step computes these tokens too, because those behind cannot be computed without them.
  // There are none if the position is not above tokens.begin.
  uint32_t unclaimed_from = 0;
};

// What a channel loads in one go.
struct StagePiece {
  uint32_t block = 0;
  StageLayers layers = {};
  double bytes = 0;
  bool boundary = false;  // activations instead of KV
  bool hedge = false;     // the engine is computing the same layers
};

class StageClaims {
 public:
  // Consecutive blocks outside the chunks (or cuts) that have a hole.
  struct Region {
    uint32_t begin = 0, end = 0;
    // Per StageLane, a block: no block of the region behind it is unclaimed on the lane.
    std::vector<int64_t> next = {};
  };
  // A chunk that takes several steps, in a request without cut_tokens: the engine was given layers
  // [0, layers_end) of the chunk, and has computed its first `tokens` tokens through these layers.
  struct Partial {
    uint32_t tokens = 0;
    uint16_t layers_end = 0;  // 0: the chunk is not in the middle of several steps
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
  // Returns the largest n for which layers [0, n) of the chunk are present.
  [[nodiscard]] uint16_t PresentTo(uint32_t chunk) const;
  [[nodiscard]] bool HasHole(uint32_t chunk) const { return hole_[chunk]; }
  [[nodiscard]] bool HasHolesAhead() const;
  // Returns true if a hole lies behind a Region that has blocks from head() on.
  [[nodiscard]] bool HolesFollowLoads() const;
  // The whole chunk is computed up to this layer.  0 if the request has cut_tokens.
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
  // Returns n if the engine has computed or claimed layers [0, n) of the block.
  [[nodiscard]] uint16_t ComputeClaim(uint32_t block) const;
  // Returns the layers of a block of a StageLane that neither computing nor a load of the lane's
  // rank has claimed, and that have not arrived.
  [[nodiscard]] LayerSet Loadable(size_t lane, uint32_t block) const;
  // Returns the layers in [ComputedTo(block), claim) that are not being loaded for the lane's rank
  // and have not arrived there.
  [[nodiscard]] LayerSet Hedgeable(size_t lane, uint32_t block, uint16_t claim) const;
  // Returns true if some layer of the block is not present and not claimed by computing, and on
  // some rank has neither arrived nor been claimed by a load.
  [[nodiscard]] bool IsOpen(uint32_t block) const;
  // Returns one above the highest layer that some block of the chunk lacks and that on some rank
  // has neither arrived nor been claimed by a load; 0 if there is none.
  [[nodiscard]] uint16_t OpenTop(uint32_t chunk) const;
  // Returns n so that all blocks from n on are present or claimed by computing or loads.  A smaller
  // n may exist.
  [[nodiscard]] uint32_t OpenEnd() const;
  // Returns about how many blocks of a StageLane in a region, from block `from` on, neither
  // computing nor loads have claimed; part of a block counts as that part.
  [[nodiscard]] double OpenBlocks(const Region& region, size_t lane, uint32_t from) const;

  // ---- computing
  void Begin(const StageWork& work);
  // Records that the work given to Begin is computed, and returns it.
  StageWork Computed();
  void Abandoned() { work_.reset(); }  // the engine dropped the work
  // Returns true only if loads have brought all of the work given to Begin, and every layer above
  // it and below `target` is present or claimed by loads, so that the work's activations are not
  // needed either.
  [[nodiscard]] bool Overtaken(uint16_t target) const;

  // ---- loading
  void Ask(size_t lane, const StagePiece& piece);
  void Unask(uint16_t rank, uint32_t block, StageLayers layers);
  // Records that these layers have arrived.  Returns false if the bytes are of no use, because the
  // engine has computed these layers.
  bool Landed(uint16_t rank, uint32_t block, StageLayers layers);
  // Records that a load of these layers failed.  Returns true if the block became a hole, because
  // it is gone or has failed too often in a row.
  [[nodiscard]] bool Failed(uint16_t rank, uint32_t block, StageLayers layers, LoadFailure why);
  // Records that no block of this region behind block `next` is unclaimed on this StageLane.
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
  // Returns the bytes of activations per byte of KV (of the first rank): what computing a block
  // needs to load, relative to the load that it spares.  0 if the stage needs no activations.
  [[nodiscard]] double BoundaryPerLoad() const;
  [[nodiscard]] bool BoundaryCostsMore() const { return BoundaryPerLoad() >= 1; }
  void AskBoundary(uint32_t chunk) { boundary_[chunk] = Boundary::kAsked; }
  // Records that the chunk's activations were loaded or handed over.  Returns false if they had
  // arrived before, or if the stage needs none.
  bool BoundaryIsHere(uint32_t chunk);
  // Records that a load of the chunk's activations failed.  If `gone`, no load is tried again:
  // unless they are handed over, the chunk's KV can only be loaded.  Does nothing if they have
  // arrived meanwhile.
  void BoundaryFailed(uint32_t chunk, bool gone);
  // Returns true if a chunk that is not present has a hole and its activations are gone.
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
  // Makes the block a hole, and divides its Region into the blocks before the chunk (or cut) of the
  // block and the blocks behind.
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
  std::vector<uint16_t> computed_;        // per block: layers [0, this) are computed
  std::vector<LayerSet> here_;            // per block: layers that landed on every rank
  std::vector<LayerSet> asked_, landed_;  // per rank and block
  std::vector<uint8_t> failures_;         // per block, in a row
  std::vector<Boundary> boundary_;        // per chunk; empty: computing needs none
  std::optional<StageWork> work_;
};

}  // namespace larder
