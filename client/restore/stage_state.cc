// The pointers and claims of a stage; what they cost is in stage_estimate.cc.
#include "client/restore/stage_state.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"

namespace larder {
namespace {

constexpr uint8_t kFailuresMax = 5;  // of one block in a row; then it is a hole

}  // namespace

StageState::StageState(const RequestSpec& request, const StageSpec& stage,
                       std::vector<uint16_t> depths)
    : tokens_(request.tokens),
      block_tokens_(request.block_tokens),
      chunk_tokens_(request.chunk_tokens),
      cut_tokens_(request.cut_tokens),
      blocks_(request.tokens / request.block_tokens),
      chunk_blocks_(std::max(request.chunk_tokens / request.block_tokens, 1u)),
      layers_(stage.layers.count()),
      model_layers_(stage.layers),
      ranks_(stage.ranks),
      boundary_copy_(stage.boundary),
      targets_(std::move(depths)),
      depth_((blocks_ + chunk_blocks_ - 1) / chunk_blocks_),
      partial_(depth_.size()),
      hole_(depth_.size()),
      computed_(blocks_),
      here_(blocks_),
      asked_(size_t{blocks_} * ranks_.size()),
      landed_(asked_.size()),
      failures_(blocks_) {
  if (!boundary_copy_.channel_of_block.empty()) {
    boundary_.resize(depth_.size(), Boundary::kNotAsked);
  }
  MakeLanes();
  MakeRegions();
}

void StageState::MakeLanes() {
  for (uint16_t rank = 0; rank < ranks_.size(); ++rank) {
    const size_t first = lanes_.size();
    for (uint32_t b = 0; b < blocks_; ++b) {
      const ChannelId channel = ranks_[rank].channel_of_block[b];
      if (channel == ChannelId::kNowhere) continue;
      size_t at = first;
      while (at < lanes_.size() && lanes_[at].channel != channel) ++at;
      if (at == lanes_.size())
        lanes_.push_back({rank, channel, std::vector<uint32_t>(blocks_ + 1)});
      lanes_[at].count[b + 1] = 1;
    }
  }
  for (Lane& lane : lanes_) {
    for (uint32_t b = 0; b < blocks_; ++b) lane.count[b + 1] += lane.count[b];
  }
}

void StageState::MakeRegions() {
  if (blocks_ == 0) return;  // all of the request is suffix
  regions_.push_back({0, blocks_, std::vector<int64_t>(lanes_.size(), int64_t{blocks_} - 1)});
  for (uint32_t b = 0; b < blocks_; ++b) {
    const auto lacks = [&](const Copy& copy) {
      return copy.channel_of_block[b] == ChannelId::kNowhere;
    };
    if (std::any_of(ranks_.begin(), ranks_.end(), lacks)) SplitRegion(b);
  }
}

// `block` is a hole, so its chunk, or what is cut of it, is computed: what is before it and what is
// behind it are loaded apart.
void StageState::SplitRegion(uint32_t block) {
  const TokenRange cut = CutOf(block);
  const uint32_t begin = cut.begin / block_tokens_, end = cut.end / block_tokens_;
  hole_[ChunkOf(block)] = true;
  StartSweep();  // other blocks are before the last hole now, and of this chunk none is loaded
  for (size_t i = 0; i < regions_.size(); ++i) {
    Region& region = regions_[i];
    if (block < region.begin || block >= region.end) continue;
    Region behind{end, region.end, region.next};
    region.end = begin;
    for (int64_t& next : region.next) next = std::min(next, int64_t{begin} - 1);
    const bool empty = region.begin >= region.end;
    if (behind.begin < behind.end) {
      regions_.insert(regions_.begin() + static_cast<std::ptrdiff_t>(i) + 1, std::move(behind));
    }
    if (empty) regions_.erase(regions_.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

StageLayers StageState::model_layers(StageLayers layers) const {
  return {static_cast<uint16_t>(model_layers_.begin + layers.begin),
          static_cast<uint16_t>(model_layers_.begin + layers.end)};
}

TokenRange StageState::TokensOf(uint32_t block) const {
  return {block * block_tokens_, (block + 1) * block_tokens_};
}

TokenRange StageState::ChunkTokens(uint32_t chunk) const {
  return {TokensOf(chunk * chunk_blocks_).begin, TokensOf(ChunkEnd(chunk) - 1).end};
}

uint32_t StageState::ChunkEnd(uint32_t chunk) const {
  return std::min((chunk + 1) * chunk_blocks_, blocks_);
}

bool StageState::HasHolesAhead() const {
  return regions_.empty() || regions_.back().end < blocks_ || regions_.back().begin > head_;
}

bool StageState::HolesFollowLoads() const {
  const auto before_hole = [&](const Region& region) {
    return region.end > head_ && region.end < blocks_;
  };
  return std::any_of(regions_.begin(), regions_.end(), before_hole);
}

// ---- computing

// Layers [0, this) belong to the engine: computed, or about to be.
uint16_t StageState::ComputeClaim(uint32_t block) const {
  const uint32_t chunk = ChunkOf(block);
  if (cut_tokens_ > 0) {
    const uint32_t token = block * block_tokens_;
    const bool its = work_ && work_->tokens.begin <= token && token < work_->tokens.end;
    return its ? work_->layers.end : computed_[block];
  }
  if (IsPartial(chunk)) return partial_[chunk].layers_end;
  if (work_.has_value() && work_->chunk == chunk) return work_->layers.end;
  return std::max(depth_[chunk], computed_[block]);
}

// One above the highest layer of the chunk that no load has claimed on all ranks.
uint16_t StageState::OpenTop(uint32_t chunk) const {
  uint16_t top = 0;
  for (uint32_t b = chunk * chunk_blocks_; b < ChunkEnd(chunk); ++b) {
    const LayerSet lacks = Full() - Present(b);
    if (lacks.empty()) continue;
    for (uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      top = std::max(top, (lacks - asked_[At(rank, b)] - landed_[At(rank, b)]).Top());
    }
  }
  return top;
}

// Layers [0, this) of the chunk are there.
uint16_t StageState::PresentTo(uint32_t chunk) const {
  uint16_t low = layers_;
  for (uint32_t b = chunk * chunk_blocks_; b < ChunkEnd(chunk); ++b) {
    low = std::min(low, (Full() - Present(b)).Lowest());
  }
  return low;
}

uint16_t StageState::Target(uint32_t chunk) const {
  return targets_.empty() || hole_[chunk] ? layers_ : targets_[chunk];
}

bool StageState::TargetsMet() const {
  if (targets_.empty()) return true;
  for (uint32_t chunk = ChunkOf(head_); chunk * chunk_blocks_ < blocks_; ++chunk) {
    if (std::min(Target(chunk), OpenTop(chunk)) > DepthOf(chunk)) return false;
  }
  return true;
}

std::optional<StageState::Work> StageState::WorkIn(uint32_t chunk, uint16_t limit,
                                                   uint16_t layers_max, uint32_t tokens_max,
                                                   bool past_target) const {
  const uint16_t depth = DepthOf(chunk);
  uint16_t top = std::min(limit, OpenTop(chunk));
  const bool goes_on = IsPartial(chunk);
  if (!past_target && !goes_on) top = std::min(top, Target(chunk));
  if (top <= depth || (goes_on && limit < partial_[chunk].layers_end)) return std::nullopt;
  const Rest rest = RestOf(chunk);
  Work work{.chunk = chunk, .tokens = rest.tokens, .unclaimed_from = rest.unclaimed_from};
  if (goes_on) work.tokens.begin += partial_[chunk].tokens;
  const uint32_t end = work.tokens.end;
  work.tokens = Trimmed(Within(UpToHole(work.tokens), std::min(tokens_max, chunk_tokens_)));
  if (work.tokens.begin == work.tokens.end) return std::nullopt;
  const bool whole = work.tokens.end == end && !goes_on;
  // What may not be split is computed through, even where a load has the upper layers.
  const bool splits = whole && layers_max < layers_;
  const uint16_t reach = std::min(limit, past_target ? layers_ : Target(chunk));
  work.layers = {
      depth, splits ? std::min<uint16_t>(top, static_cast<uint16_t>(depth + layers_max)) : reach};
  if (goes_on) work.layers.end = partial_[chunk].layers_end;
  work.waits_for_boundary = !boundary_.empty() && boundary_[chunk] != Boundary::kHere;
  return work;
}

std::optional<StageState::Work> StageState::NextWork(uint16_t layers_max,
                                                     uint32_t tokens_max) const {
  if (work_.has_value() || complete() || tokens_max == 0) return std::nullopt;
  const bool past_target = TargetsMet(), sweeping = sweeps();
  uint16_t limit = layers_;
  if (aim_compute_.has_value()) {
    const uint16_t layers =
        targets_[*aim_compute_] > DepthOf(*aim_compute_) ? layers_max : uint16_t{1};
    for (uint32_t chunk = ChunkOf(head_); chunk < *aim_compute_; ++chunk)
      limit = std::min(limit, PresentTo(chunk));
    const bool beyond = targets_[*aim_compute_] <= DepthOf(*aim_compute_);
    if (auto work = WorkIn(*aim_compute_, limit, layers, tokens_max, beyond)) return work;
    limit = layers_;
  }
  for (uint32_t chunk = ChunkOf(head_); limit > 0 && chunk * chunk_blocks_ < OpenEnd(); ++chunk) {
    // While loads come bottom-up, chunks that they will bring are theirs.
    if (!sweeping || hole_[chunk] || IsPartial(chunk)) {
      if (auto work = WorkIn(chunk, limit, layers_max, tokens_max, past_target)) return work;
    }
    limit = std::min(limit, PresentTo(chunk));
  }
  return std::nullopt;
}

std::optional<StageState::Work> StageState::NextHedge(uint16_t layers_max,
                                                      uint32_t tokens_max) const {
  if (work_.has_value() || complete()) return std::nullopt;
  const uint32_t chunk = ChunkOf(head_);
  if (OpenTop(chunk) > DepthOf(chunk)) return std::nullopt;  // not all of it is under way
  Work work{.chunk = chunk, .tokens = RestOf(chunk).tokens};
  const bool goes_on = IsPartial(chunk);
  if (goes_on) work.tokens.begin += partial_[chunk].tokens;
  const TokenRange fits = Within(work.tokens, std::min(tokens_max, chunk_tokens_));
  if (cut_tokens_ > 0) work.tokens = fits;
  if (work.tokens != fits || fits.begin == fits.end) return std::nullopt;
  const uint16_t depth = DepthOf(chunk);
  uint16_t top = 0;
  for (uint32_t b = work.tokens.begin / block_tokens_; b < ChunkEnd(chunk); ++b)
    top = std::max(top, (Full() - Present(b)).Top());
  if (layers_max >= layers_) layers_max = top;
  work.layers = {depth, static_cast<uint16_t>(std::min<int>(top, depth + layers_max))};
  if (goes_on && top > depth) work.layers.end = partial_[chunk].layers_end;
  if (work.layers.empty()) return std::nullopt;
  work.hedge = true;
  work.waits_for_boundary = !boundary_.empty() && boundary_[chunk] != Boundary::kHere;
  if (work.waits_for_boundary) return std::nullopt;
  return work;
}

void StageState::Begin(const Work& work) {
  LARDER_CHECK(!work_.has_value() && !work.layers.empty() && !work.waits_for_boundary);
  work_ = work;
  if (cut_tokens_ > 0 || work.tokens == ChunkTokens(work.chunk)) return;
  partial_[work.chunk] = {work.tokens.begin - ChunkTokens(work.chunk).begin, work.layers.end};
}

uint32_t StageState::Computed() {
  LARDER_CHECK(work_.has_value());
  const Work work = *work_;
  work_.reset();
  if (cut_tokens_ == 0) {
    const TokenRange chunk = ChunkTokens(work.chunk);
    const bool through = work.tokens.end == chunk.end;
    partial_[work.chunk] =
        through ? Partial{} : Partial{work.tokens.end - chunk.begin, work.layers.end};
    if (through) depth_[work.chunk] = work.layers.end;
  }
  uint32_t wasted = 0;
  for (uint32_t b = work.chunk * chunk_blocks_; b < ChunkEnd(work.chunk); ++b) {
    if (TokensOf(b).end > work.tokens.end || TokensOf(b).end <= work.tokens.begin) continue;
    const LayerSet before = Present(b);
    if (before.Contains(LayerSet(work.layers))) wasted += block_tokens_;
    computed_[b] = std::max(computed_[b], work.layers.end);
    CountPresent(b, before);
  }
  Advance();
  return wasted;
}

bool StageState::Overtaken() const {
  if (!work_.has_value()) return false;
  // Its activations are what the layers above it are computed from.
  const uint16_t top = std::min(OpenTop(work_->chunk), Target(work_->chunk));
  if (top > work_->layers.end) return false;
  for (uint32_t b = work_->chunk * chunk_blocks_; b < ChunkEnd(work_->chunk); ++b) {
    if (cut_tokens_ > 0 && ComputeClaim(b) == computed_[b]) continue;  // none of it
    if (!Present(b).Contains(LayerSet(work_->layers))) return false;
  }
  return true;
}

bool StageState::IsComputed(uint32_t block, StageLayers layers) const {
  return computed_[block] >= layers.end;
}

// ---- loading

// Layers of a lane's block that nobody has claimed.
LayerSet StageState::Loadable(size_t lane, uint32_t block) const {
  const size_t at = At(lanes_[lane].rank, block);
  return Full() - asked_[at] - landed_[at] - here_[block] - LayerSet({0, ComputeClaim(block)});
}

// Of the blocks [first, last] of a chunk the one of which the least is claimed, from its top down.
std::optional<StageState::Piece> StageState::TopPiece(size_t lane, uint32_t first, uint32_t last,
                                                      const Cut& cut) const {
  const std::vector<uint32_t>& count = lanes_[lane].count;
  Piece best;
  LayerSet open;
  for (uint32_t b = last + 1; b-- > first;) {
    if (count[b + 1] == count[b]) continue;  // elsewhere
    const LayerSet of_block = Loadable(lane, b) - LayerSet({0, cut.floor});
    if (of_block.Top() <= best.layers.end) continue;
    best = {b, {of_block.Top(), of_block.Top()}};
    open = of_block;
    if (best.layers.end == layers_ && cut.layers_max >= layers_) break;
  }
  uint16_t& low = best.layers.begin;
  const auto below = [&] { return LayerSet({static_cast<uint16_t>(low - 1), low}); };
  while (low > 0 && best.layers.count() < cut.layers_max && open.Contains(below())) --low;
  if (best.layers.empty()) return std::nullopt;
  return best;
}

// The last block of them that is not all claimed, from its lowest layer up.
std::optional<StageState::Piece> StageState::BottomPiece(size_t lane, uint32_t first, uint32_t last,
                                                         const Cut& cut) const {
  const std::vector<uint32_t>& count = lanes_[lane].count;
  for (uint32_t b = last + 1; b-- > first;) {
    if (count[b + 1] == count[b]) continue;  // elsewhere
    const LayerSet open = Loadable(lane, b) - LayerSet({0, cut.floor});
    if (open.empty()) continue;
    Piece piece{b, {open.Lowest(), open.Lowest()}};
    uint16_t& top = piece.layers.end;
    const auto above = [&] { return LayerSet({top, static_cast<uint16_t>(top + 1)}); };
    while (top < layers_ && piece.layers.count() < cut.layers_max && open.Contains(above())) ++top;
    return piece;
  }
  return std::nullopt;
}

// From the tail.  Where something follows the loads layer by layer, bottom-up, but for the chunk
// that computing has come to.
std::optional<StageState::Piece> StageState::PieceIn(Region* region, size_t lane, Cut cut,
                                                     bool past_target) {
  int64_t next = region->next[lane];
  const int64_t begin = std::max<int64_t>(region->begin, head_);
  bool passes = true;
  for (; next >= begin; next = int64_t{ChunkOf(static_cast<uint32_t>(next))} * chunk_blocks_ - 1) {
    const uint32_t chunk = ChunkOf(static_cast<uint32_t>(next)), last = static_cast<uint32_t>(next);
    const uint32_t first = std::max(static_cast<uint32_t>(begin), chunk * chunk_blocks_);
    const bool computing = IsPartial(chunk) || (work_.has_value() && work_->chunk == chunk);
    cut.floor = past_target ? uint16_t{0} : Target(chunk);
    auto piece = cut.bottom_up && !computing && chunk != ChunkOf(head_)
                     ? BottomPiece(lane, first, last, cut)
                     : TopPiece(lane, first, last, cut);
    if (piece.has_value()) {
      piece->bytes = BlockBytes(lane) * piece->layers.count() / layers_;
      return piece;
    }
    // What is only being computed may yet have to be loaded.
    passes = passes && past_target && !computing;
    if (passes) region->next[lane] = int64_t{chunk} * chunk_blocks_ - 1;
  }
  return std::nullopt;
}

std::optional<StageState::Piece> StageState::NextPiece(const CostModel& costs, size_t lane,
                                                       const Cut& cut) {
  if (complete()) return std::nullopt;
  if (sweeps()) return SweepPiece(lane);
  if (!aim_loads_.empty() && !lane_tries_[lane]) return AimedPiece(lane, cut);
  for (const bool past_target : {false, true}) {
    if (targets_.empty() && !past_target) continue;
    const size_t urgent = regions_.size() > 1 ? UrgentRegion(costs) : 0;
    for (size_t i = urgent; i < regions_.size(); ++i) {
      if (auto piece = PieceIn(&regions_[i], lane, cut, past_target)) return piece;
    }
    for (size_t i = std::min(urgent, regions_.size()); i-- > 0;) {
      if (auto piece = PieceIn(&regions_[i], lane, cut, past_target)) return piece;
    }
  }
  return std::nullopt;
}

// What is before the last hole and then what is behind it, each layer by layer, each layer from its
// first block on.
std::optional<StageState::Piece> StageState::SweepPiece(size_t lane) {
  const Lane& of = lanes_[lane];
  const uint32_t behind = regions_.empty() ? blocks_ : regions_.back().begin;
  const uint64_t cells = uint64_t{blocks_} * layers_;
  bool passes = true;
  for (uint64_t at = sweep_[lane].at; at < 2 * cells; ++at) {
    if (passes) sweep_[lane].at = at;
    const auto block = static_cast<uint32_t>(at % blocks_);
    const auto layer = static_cast<uint16_t>(at / blocks_ % layers_);
    const bool elsewhere = of.count[block + 1] == of.count[block] || hole_[ChunkOf(block)];
    if (elsewhere || (block >= behind) != (at >= cells)) continue;
    const StageLayers layers{layer, static_cast<uint16_t>(layer + 1)};
    if (!Loadable(lane, block).Contains(LayerSet(layers))) {
      // What is only being computed may yet have to be loaded.
      passes = passes && (computed_[block] > layer || ComputeClaim(block) <= layer);
      continue;
    }
    return Piece{block, layers, ranks_[of.rank].block_bytes / layers_};
  }
  return std::nullopt;
}

std::optional<StageState::Piece> StageState::NextHedgePiece(size_t lane) const {
  if (!work_.has_value() || (cut_tokens_ == 0 && hole_[work_->chunk])) return std::nullopt;
  const Lane& of = lanes_[lane];
  for (uint32_t b = ChunkEnd(work_->chunk); b-- > work_->chunk * chunk_blocks_;) {
    if (of.count[b + 1] == of.count[b]) continue;
    const size_t at = At(of.rank, b);
    const uint16_t claim = cut_tokens_ > 0 ? ComputeClaim(b) : work_->layers.end;
    const LayerSet open = LayerSet({computed_[b], claim}) - asked_[at] - landed_[at];
    if (open.empty() || open.count() != open.Top() - open.Lowest()) continue;
    const StageLayers layers{open.Lowest(), open.Top()};
    return Piece{b, layers, ranks_[of.rank].block_bytes * layers.count() / layers_, false, true};
  }
  return std::nullopt;
}

std::optional<StageState::Piece> StageState::NextBoundary(ChannelId channel, uint32_t ahead) const {
  if (boundary_.empty() || complete()) return std::nullopt;
  uint32_t chunk = work_.has_value() ? work_->chunk + 1 : ChunkOf(head_);
  for (; ahead > 0 && chunk < boundary_.size(); ++chunk) {
    if (OpenTop(chunk) <= DepthOf(chunk)) continue;
    --ahead;
    const uint32_t first = chunk * chunk_blocks_;
    if (boundary_[chunk] != Boundary::kNotAsked) continue;
    if (boundary_copy_.channel_of_block[first] != channel) continue;
    return Piece{first, {}, boundary_copy_.block_bytes * (ChunkEnd(chunk) - first), true};
  }
  return std::nullopt;
}

void StageState::Ask(size_t lane, const Piece& piece) {
  LayerSet& asked = asked_[At(lanes_[lane].rank, piece.block)];
  LARDER_CHECK((asked & LayerSet(piece.layers)).empty());
  asked = asked | LayerSet(piece.layers);
  if (sweeps_) sweep_[lane].unclaimed -= piece.layers.count();
}

void StageState::Unask(uint16_t rank, uint32_t block, StageLayers layers) {
  LayerSet& asked = asked_[At(rank, block)];
  asked = asked - LayerSet(layers);
}

bool StageState::Landed(uint16_t rank, uint32_t block, StageLayers layers) {
  Unask(rank, block, layers);
  const LayerSet before = Present(block);
  if (IsComputed(block, layers)) return false;
  failures_[block] = 0;
  const size_t at = At(rank, block);
  landed_[at] = landed_[at] | LayerSet(layers);
  LayerSet everywhere = landed_[At(0, block)];
  for (uint16_t r = 1; r < ranks_.size(); ++r) everywhere = everywhere & landed_[At(r, block)];
  here_[block] = everywhere;
  CountPresent(block, before);
  Advance();
  return true;
}

void StageState::Failed(uint16_t rank, uint32_t block, StageLayers layers, bool gone) {
  Unask(rank, block, layers);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const Lane& of = lanes_[lane];
    if (of.rank != rank || of.count[block + 1] == of.count[block]) continue;
    if (sweeps_) sweep_[lane] = {0, sweep_[lane].unclaimed + layers.count()};
    if (gone || ++failures_[block] >= kFailuresMax) {
      for (uint32_t b = block; b < blocks_; ++b) --lanes_[lane].count[b + 1];
      ranks_[rank].channel_of_block[block] = ChannelId::kNowhere;
      return SplitRegion(block);
    }
    for (Region& region : regions_) {
      if (block >= region.begin && block < region.end)
        region.next[lane] = std::max<int64_t>(region.next[lane], block);
    }
  }
}

bool StageState::BoundaryIsHere(uint32_t chunk) {
  if (boundary_.empty()) return false;
  return std::exchange(boundary_[chunk], Boundary::kHere) != Boundary::kHere;
}

void StageState::BoundaryFailed(uint32_t chunk, bool gone) {
  if (boundary_[chunk] == Boundary::kHere) return;  // handed over meanwhile
  boundary_[chunk] = gone ? Boundary::kGone : Boundary::kNotAsked;
}

bool StageState::Lost() const {
  for (uint32_t chunk = ChunkOf(head_); chunk < boundary_.size(); ++chunk) {
    if (hole_[chunk] && boundary_[chunk] == Boundary::kGone && PresentTo(chunk) < layers_)
      return true;
  }
  return false;
}

// ---- both

void StageState::Advance() {
  while (head_ < blocks_ && Present(head_) == Full()) ++head_;
}

void StageState::CountPresent(uint32_t block, LayerSet before) {
  if (!sweeps_) return;
  const LayerSet now = Present(block) - before;
  for (uint16_t l = 0; l < layers_; ++l) {
    if (now.Contains(LayerSet({l, static_cast<uint16_t>(l + 1)}))) --missing_[l];
  }
}

void StageState::StartSweep() {
  for (size_t lane = 0; lane < sweep_.size(); ++lane) {
    sweep_[lane] = {};
    for (uint32_t b = head_; b < blocks_; ++b) {
      const bool here = lanes_[lane].count[b + 1] != lanes_[lane].count[b] && !hole_[ChunkOf(b)];
      if (here) sweep_[lane].unclaimed += Loadable(lane, b).count();
    }
  }
}

void StageState::BeginSweep(bool for_suffix) {
  sweeps_ = true;
  for_suffix_ = for_suffix;
  missing_.assign(layers_, 0);
  sweep_.resize(lanes_.size());
  StartSweep();
  for (uint32_t b = head_; b < blocks_; ++b) {
    const LayerSet lacks = Full() - Present(b);
    for (uint16_t l = 0; l < layers_; ++l) {
      if (lacks.Contains(LayerSet({l, static_cast<uint16_t>(l + 1)}))) ++missing_[l];
    }
  }
}

uint16_t StageState::LayersThere() const {
  if (complete()) return layers_;
  if (!sweeps_) return 0;
  const auto missing =
      std::find_if(missing_.begin(), missing_.end(), [](uint32_t blocks) { return blocks > 0; });
  return static_cast<uint16_t>(missing - missing_.begin());
}

StageLayers StageState::Missing() const {
  LayerSet missing;
  for (uint32_t b = head_; b < blocks_; ++b) {
    if (!hole_[ChunkOf(b)]) missing = missing | (Full() - Present(b));
  }
  return missing.empty() ? StageLayers{} : StageLayers{missing.Lowest(), missing.Top()};
}

std::vector<uint16_t> StageState::Depths() const { return computed_; }

void StageState::CheckInvariants() const {
  for (uint32_t b = 0; b < blocks_; ++b) {
    if (b < head_) LARDER_CHECK(Present(b) == Full());
    if (b == head_) LARDER_CHECK(Present(b) != Full());
    LARDER_CHECK(computed_[b] <= layers_);
    LayerSet everywhere = Full();
    for (uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      LARDER_CHECK((asked_[At(rank, b)] & landed_[At(rank, b)]).empty());
      everywhere = everywhere & landed_[At(rank, b)];
    }
    LARDER_CHECK(everywhere == here_[b]);
  }
  if (work_.has_value()) LARDER_CHECK(DepthOf(work_->chunk) == work_->layers.begin);
}

}  // namespace larder
