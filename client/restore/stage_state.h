// How far the restore of one request has come on one stage: two pointers, and what lies between
// them.
//
// Computing goes up from the head, chunk by chunk; loading comes down from the tail, each channel
// (lane) through its own blocks.  Where few chunks are left both may split one between its layers:
// computing takes them from the bottom, loading from the top.  A layer of a block is claimed by one
// of them at a time; a hedge claims it for both.  Where an engine cuts chunks between tokens
// instead, what a step leaves of its chunk can be loaded.  Holes cut the blocks into regions.
// Computing passes each hole, so a region before one is loaded first, unless computing gets there
// while what is behind is loaded.
// Knows no policy, no channel queue and no other request.
// Ownership: inside a RequestState.  Thread-safety: none.
// Limits: kStageLayersMax layers; memory about 40 B per block and rank.
#pragma once

#include <optional>
#include <vector>

#include "client/restore/cost_model.h"
#include "client/restore/endgame.h"
#include "client/restore/request.h"

namespace larder {

class StageState {
 public:
  // REQUIRES: Validate(request) is OK; `stage` is one of its stages.
  // `depths`: as RequestSpec's.
  StageState(const RequestSpec& request, const StageSpec& stage, std::vector<uint16_t> depths);

  // ---- what there is
  [[nodiscard]] bool complete() const { return head_ == blocks_; }
  [[nodiscard]] uint16_t layers() const { return layers_; }
  [[nodiscard]] uint32_t cut_tokens() const { return cut_tokens_; }
  [[nodiscard]] StageLayers model_layers(StageLayers layers) const;
  [[nodiscard]] bool busy() const { return work_.has_value(); }
  [[nodiscard]] uint32_t ChunkOf(uint32_t block) const { return block / chunk_blocks_; }
  [[nodiscard]] TokenRange TokensOf(uint32_t block) const;
  [[nodiscard]] TokenRange ChunkTokens(uint32_t chunk) const;
  [[nodiscard]] bool HasHolesAhead() const;
  // Some of them behind blocks that are not there yet, and can be loaded.
  [[nodiscard]] bool HolesFollowLoads() const;
  // A chunk that takes more than one step, and has had its first.
  [[nodiscard]] bool IsPartial(uint32_t chunk) const { return partial_[chunk].layers_end > 0; }
  [[nodiscard]] double BlockBytes(size_t lane) const {
    return ranks_[lanes_[lane].rank].block_bytes;
  }
  // The activations that computing starts from are more than the KV that it spares.
  [[nodiscard]] bool BoundaryCostsMore() const { return BoundaryPerLoad() >= 1; }

  // ---- computing
  struct Work {
    uint32_t chunk = 0;
    TokenRange tokens = {};
    StageLayers layers = {};
    bool hedge = false;
    bool waits_for_boundary = false;  // cannot begin yet
    // Loads have all of it before this token; it is computed, too, for what is behind it.
    uint32_t unclaimed_from = 0;
  };
  // The next that nobody has claimed; at most `layers_max` layers, if the engine splits them, and
  // `tokens_max` tokens.
  [[nodiscard]] std::optional<Work> NextWork(uint16_t layers_max, uint32_t tokens_max) const;
  // The first that is being loaded; where chunks are cut, as much of it as fits.
  [[nodiscard]] std::optional<Work> NextHedge(uint16_t layers_max, uint32_t tokens_max) const;
  void Begin(const Work& work);
  // What Begin was told is computed.  Returns tokens of it that a load had brought before.
  uint32_t Computed();
  // It was dropped.
  void Abandoned() { work_.reset(); }
  // All that Begin was told has been loaded meanwhile.
  [[nodiscard]] bool Overtaken() const;
  // Computing that loads cannot spare: chunks with holes.
  [[nodiscard]] double HoleSeconds(const CostModel& costs) const;
  // Loading what nobody has claimed behind the last of them.
  [[nodiscard]] double TailSeconds(const CostModel& costs) const;
  // Seconds of computing left in the chunk of `work`, from its first layer on.
  [[nodiscard]] double ChunkSeconds(const CostModel& costs, const Work& work) const;
  [[nodiscard]] double WorkSeconds(const CostModel& costs, const Work& work) const;
  // Whether a load of this is of no use any more.
  [[nodiscard]] bool IsComputed(uint32_t block, StageLayers layers) const;

  // ---- loading
  struct Lane {
    uint16_t rank = 0;
    ChannelId channel = ChannelId::kNowhere;
    std::vector<uint32_t> count = {};  // count[b]: its blocks below b
  };
  [[nodiscard]] const std::vector<Lane>& lanes() const { return lanes_; }
  struct Piece {
    uint32_t block = 0;
    StageLayers layers = {};
    double bytes = 0;
    bool boundary = false;
    bool hedge = false;
  };
  // How a block is cut.
  struct Cut {
    uint16_t layers_max = kStageLayersMax;
    bool bottom_up = false;  // something follows the loads layer by layer
    uint16_t floor = 0;      // what is below is left alone
  };
  // The next of a lane that nobody has claimed.
  [[nodiscard]] std::optional<Piece> NextPiece(const CostModel& costs, size_t lane, const Cut& cut);
  // What is being computed and could be loaded as well.
  [[nodiscard]] std::optional<Piece> NextHedgePiece(size_t lane) const;
  // The activations that computing needs next and that lie on this channel, `ahead` chunks at most.
  [[nodiscard]] std::optional<Piece> NextBoundary(ChannelId channel, uint32_t ahead) const;
  void Ask(size_t lane, const Piece& piece);
  void AskBoundary(const Piece& piece) { boundary_[ChunkOf(piece.block)] = Boundary::kAsked; }
  // Returns whether the bytes are of use.
  bool Landed(uint16_t rank, uint32_t block, StageLayers layers);
  void Unask(uint16_t rank, uint32_t block, StageLayers layers);
  void Failed(uint16_t rank, uint32_t block, StageLayers layers, bool gone);
  // The activations of a chunk were loaded, or handed over.  Returns whether they were not here
  // before.
  bool BoundaryIsHere(uint32_t chunk);
  // A load of them failed; gone: unless they are handed over, the chunk can only be loaded.
  void BoundaryFailed(uint32_t chunk, bool gone);
  // A chunk can be neither loaded nor computed.
  [[nodiscard]] bool Lost() const;

  // ---- the suffix

  // From now on loads come bottom-up by layer: until computing has passed the last hole, or for a
  // suffix to the end.
  void BeginSweep(bool for_suffix);
  [[nodiscard]] bool sweeps() const { return sweeps_ && (for_suffix_ || HolesFollowLoads()); }
  // Layers [0, this) of the whole prefix are there.
  [[nodiscard]] uint16_t LayersThere() const;
  // From the lowest to the highest layer that loads still have to bring.
  [[nodiscard]] StageLayers Missing() const;

  // ---- the last few cells
  // Aims at what Solve (endgame.h) says where few cells without holes are left; else at nothing.
  // `busy_s` and `doubt`: as there.
  void Aim(const CostModel& costs, std::vector<double> busy_s, double doubt);
  void AimAtNothing();
  [[nodiscard]] bool aims() const { return !aim_loads_.empty(); }

  // ---- estimates, with engine and channels to itself
  struct Outlook {
    double compute_s = 0;  // all that nobody has claimed, by computing alone
    double lanes_s = 0;    // by loading alone; holes left out
    double both_s = 0;
  };
  [[nodiscard]] Outlook Estimate(const CostModel& costs) const;
  // Of all activations that it would take to compute what nobody has claimed.
  [[nodiscard]] double BoundarySeconds(const CostModel& costs, ChannelId channel) const;
  // `to_hole`: of what is before the first hole alone, where LoadsToHole.
  [[nodiscard]] double LaneSeconds(const CostModel& costs, ChannelId channel,
                                   bool to_hole = false) const;
  // The first block of a hole ahead, if what is before it is loaded first; else 0.
  [[nodiscard]] uint32_t LoadsToHole(const CostModel& costs) const;

  [[nodiscard]] std::vector<uint16_t> Depths() const;
  // O(blocks * ranks); for tests.
  void CheckInvariants() const;

 private:
  enum class Boundary : uint8_t { kNotAsked, kAsked, kHere, kGone };
  struct Region {
    uint32_t begin = 0, end = 0;
    std::vector<int64_t> next = {};  // per lane: the last block that may be unclaimed
  };
  // A chunk that takes more than one step: its layers are the engine's, its first tokens are
  // computed.
  struct Partial {
    uint32_t tokens = 0;
    uint16_t layers_end = 0;  // 0: it has not begun
  };
  struct Open {  // sums of what nobody has claimed
    double compute_s = 0, lanes_s = 0;
  };

  [[nodiscard]] uint32_t ChunkEnd(uint32_t chunk) const;  // in blocks
  [[nodiscard]] size_t At(uint16_t rank, uint32_t block) const {
    return size_t{rank} * blocks_ + block;
  }
  [[nodiscard]] LayerSet Full() const { return LayerSet({0, layers_}); }
  [[nodiscard]] LayerSet Present(uint32_t block) const {
    return here_[block] | LayerSet({0, computed_[block]});
  }
  [[nodiscard]] uint16_t ComputeClaim(uint32_t block) const;
  [[nodiscard]] LayerSet Loadable(size_t lane, uint32_t block) const;
  [[nodiscard]] uint16_t OpenTop(uint32_t chunk) const;
  [[nodiscard]] uint16_t PresentTo(uint32_t chunk) const;
  [[nodiscard]] uint16_t DepthOf(uint32_t chunk) const { return depth_[chunk]; }
  [[nodiscard]] TokenRange CutOf(uint32_t block) const;
  // What is left to compute of a chunk.
  struct Rest {
    TokenRange tokens = {};       // what loads have claimed included
    uint32_t unclaimed_from = 0;  // see Work
  };
  [[nodiscard]] bool IsOpen(uint32_t block) const;
  [[nodiscard]] Rest RestOf(uint32_t chunk) const;
  [[nodiscard]] TokenRange UpToHole(TokenRange tokens) const;
  [[nodiscard]] TokenRange Trimmed(TokenRange tokens) const;
  [[nodiscard]] TokenRange Within(TokenRange tokens, uint32_t tokens_max) const;
  [[nodiscard]] uint16_t Target(uint32_t chunk) const;
  [[nodiscard]] bool TargetsMet() const;
  [[nodiscard]] uint32_t OpenEnd() const;
  [[nodiscard]] std::optional<Work> WorkIn(uint32_t chunk, uint16_t limit, uint16_t layers_max,
                                           uint32_t tokens_max, bool past_target) const;
  [[nodiscard]] std::optional<Piece> TopPiece(size_t lane, uint32_t first, uint32_t last,
                                              const Cut& cut) const;
  [[nodiscard]] std::optional<Piece> BottomPiece(size_t lane, uint32_t first, uint32_t last,
                                                 const Cut& cut) const;
  [[nodiscard]] std::optional<Piece> PieceIn(Region* region, size_t lane, Cut cut,
                                             bool past_target);
  [[nodiscard]] std::optional<Piece> SweepPiece(size_t lane);
  [[nodiscard]] bool FitsBefore(const CostModel& costs, size_t region) const;
  [[nodiscard]] size_t UrgentRegion(const CostModel& costs) const;
  [[nodiscard]] Open Exactly(const CostModel& costs, uint32_t begin, uint32_t end) const;
  [[nodiscard]] Open Roughly(const CostModel& costs, uint32_t begin, uint32_t end) const;
  [[nodiscard]] double Both(const CostModel& costs, const Open& open, TokenRange tokens) const;
  [[nodiscard]] double OpenBlocks(const Region& region, size_t lane, uint32_t from) const;
  [[nodiscard]] double BoundaryPerLoad() const;
  [[nodiscard]] Endgame::Chunk ChunkLeft(const CostModel& costs, uint32_t chunk) const;
  [[nodiscard]] std::optional<Piece> AimedPiece(size_t lane, Cut cut) const;
  [[nodiscard]] bool MayAim(uint32_t first, uint32_t end) const;
  void MakeLanes();
  void MakeRegions();
  void SplitRegion(uint32_t block);
  void StartSweep();  // from its first cell, with what nobody has claimed by now
  void Advance();
  void CountPresent(uint32_t block, LayerSet before);

  uint32_t tokens_, block_tokens_, chunk_tokens_, cut_tokens_, blocks_, chunk_blocks_;
  uint16_t layers_;
  StageLayers model_layers_;
  std::vector<Copy> ranks_;
  Copy boundary_copy_;
  std::vector<uint16_t> targets_;
  // Of the last few cells; the chunks counted from the first of the request.
  std::optional<uint32_t> aim_compute_;
  std::vector<std::optional<uint32_t>> aim_loads_;  // per lane; empty: none
  std::vector<bool> lane_waits_, lane_tries_;       // with them

  uint32_t head_ = 0;                     // the first block that is not complete
  std::vector<uint16_t> depth_;           // per chunk: its activations have come this far
  std::vector<Partial> partial_;          // per chunk
  std::vector<bool> hole_;                // per chunk: some of it is nowhere
  std::vector<uint16_t> computed_;        // layers [0, this) of the block came by computing
  std::vector<LayerSet> here_;            // landed on every rank
  std::vector<LayerSet> asked_, landed_;  // per rank and block
  std::vector<uint8_t> failures_;
  std::vector<Boundary> boundary_;  // per chunk; empty: none needed
  std::optional<Work> work_;

  std::vector<Lane> lanes_;
  std::vector<Region> regions_;
  bool sweeps_ = false, for_suffix_ = false;
  // While it sweeps.
  struct Sweep {
    uint64_t at = 0;        // see SweepPiece
    int64_t unclaimed = 0;  // layers of blocks
  };
  std::vector<Sweep> sweep_;       // per lane
  std::vector<uint32_t> missing_;  // per layer: blocks without it
};

}  // namespace larder
