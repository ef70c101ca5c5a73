// How far the restore of one request has come on one stage, and what to compute and load next.
//
// Computing goes up from the head, chunk by chunk; except in a sweep (loading bottom-up), loading
// comes down from the tail, each lane (the blocks of one rank on one channel) through its own
// blocks, until they meet.  If the engine splits layers, a chunk may be divided between its layers
// when little is left: computing takes them from the bottom, loading mostly from the top.  Holes,
// which must be computed, divide the blocks into regions (StageClaims::Region).
//
// The parts: which layers are present or claimed (StageClaims), sweeps, in which computing follows
// the loads (StageSweep), and which cells, each a layer of a chunk, are given out when few are left
// (StageAim).  Estimates in seconds are in stage_estimate.h.
// This class knows no policy, no channel queue and no other request.
// Ownership: a value inside a RequestState.  Thread-safety: none.
// Limits: kStageLayersMax layers.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "client/restore/costs/cost_model.h"
#include "client/restore/stage/stage_aim.h"
#include "client/restore/stage/stage_claims.h"
#include "client/restore/stage/stage_pieces.h"
#include "client/restore/stage/stage_sweep.h"

namespace larder {

class StageState {
 public:
  // REQUIRES: Validate(request) is OK; `stage` is one of its stages.
  StageState(const RequestSpec& request, const StageSpec& stage)
      : claims_(request, stage), aim_{.depths = request.depths} {}

  [[nodiscard]] const StageClaims& claims() const { return claims_; }
  [[nodiscard]] const StageShape& shape() const { return claims_.shape(); }

  // ---- what to give out; these functions claim nothing

  // Returns the next work for the engine, within one chunk, or nullopt if there is none.  It has at
  // most `tokens_max` tokens.  If the request has cut_tokens, it is whole cuts, which may begin
  // with tokens that loads have claimed (StageWork::unclaimed_from), and the last cut of the prefix
  // may exceed `tokens_max` by less than a cut.  Work that is a whole chunk has at most
  // `layers_max` layers.
  [[nodiscard]] std::optional<StageWork> NextWork(uint16_t layers_max, uint32_t tokens_max) const;
  // Returns work that loads bring but that could be computed as well, in the chunk of the head (the
  // first block of which not all layers are present), if loads have claimed all that is left of
  // that chunk.  Returns nullopt if there is no such work, if it does not fit into `tokens_max`, or
  // while a step is under way.
  [[nodiscard]] std::optional<StageWork> NextHedge(uint16_t layers_max, uint32_t tokens_max) const;
  // Returns the next unclaimed piece of a StageLane; nullopt if there is none, or if StageAim has
  // none for the lane now.  During a sweep (BeginSweep) `cut` has no effect, and a piece is one
  // layer of a block.
  [[nodiscard]] std::optional<StagePiece> NextPiece(const CostModel& costs, size_t lane,
                                                    const PieceCut& cut);
  // Returns a piece that is being computed and could be loaded as well; nullopt if it finds none.
  [[nodiscard]] std::optional<StagePiece> NextHedgePiece(size_t lane) const;
  // Returns activations to load next on this channel, for one of the next `ahead` chunks that are
  // left to compute.
  [[nodiscard]] std::optional<StagePiece> NextBoundary(ChannelId channel, uint32_t ahead) const;

  // ---- what was given out, and what became of it (StageClaims)
  void Begin(const StageWork& work) { claims_.Begin(work); }
  // Records that the work given to Begin is computed.  Returns about how many of its tokens were
  // present before, in all layers of the work.
  uint32_t Computed();
  void Abandoned() { claims_.Abandoned(); }
  [[nodiscard]] bool Overtaken() const;
  void Ask(size_t lane, const StagePiece& piece);
  void Unask(uint16_t rank, uint32_t block, StageLayers layers) {
    claims_.Unask(rank, block, layers);
  }
  // Records that these layers have arrived.  Returns false if the bytes are of no use, because the
  // engine has computed these layers.
  bool Landed(uint16_t rank, uint32_t block, StageLayers layers);
  void Failed(uint16_t rank, uint32_t block, StageLayers layers, LoadFailure why);
  void AskBoundary(const StagePiece& piece) { claims_.AskBoundary(shape().ChunkOf(piece.block)); }
  bool BoundaryIsHere(uint32_t chunk) { return claims_.BoundaryIsHere(chunk); }
  void BoundaryFailed(uint32_t chunk, bool gone) { claims_.BoundaryFailed(chunk, gone); }

  // ---- loading bottom-up (StageSweep)
  void BeginSweep(bool for_suffix) { sweep_.Begin(claims_, for_suffix); }
  [[nodiscard]] bool sweeps() const { return sweep_.goes_on(claims_); }
  [[nodiscard]] uint16_t LayersThere() const { return sweep_.LayersThere(claims_); }
  // Returns the layers from the lowest to the highest that a block lacks, of all blocks whose chunk
  // has no hole; empty if none lacks any.
  [[nodiscard]] StageLayers Missing() const;
  // Returns about the seconds in which the channel loads what is unclaimed (StageClaims), or, if
  // `to_hole`, only what is unclaimed before the first hole from StageClaims::head on.  During a
  // sweep (BeginSweep) `to_hole` is ignored.
  [[nodiscard]] double LaneSeconds(const CostModel& costs, ChannelId channel,
                                   bool to_hole = false) const;

  // ---- the last few cells (StageAim)
  void Aim(const CostModel& costs, std::vector<double> busy_s, double doubt) {
    aim_ = AimOf(claims_, sweep_, costs, std::move(busy_s), doubt);
  }
  void AimAtNothing() { aim_ = {}; }
  [[nodiscard]] bool aims() const { return aim_.aims(); }

 private:
  [[nodiscard]] std::optional<StageWork> WorkIn(uint32_t chunk, uint16_t limit, uint16_t layers_max,
                                                uint32_t tokens_max, bool past_depth) const;
  [[nodiscard]] std::optional<StagePiece> PieceIn(size_t region, size_t lane, PieceCut cut,
                                                  bool past_depth);
  [[nodiscard]] std::optional<StagePiece> AimedPiece(size_t lane, PieceCut cut) const;

  StageClaims claims_;
  StageSweep sweep_;
  StageAim aim_;
};

}  // namespace larder
