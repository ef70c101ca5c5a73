#include "client/restore/stage/stage_claims.h"

#include <algorithm>
#include <utility>

#include "storage/check.h"

namespace larder {
namespace {

constexpr uint8_t kFailuresMax = 5;  // failures of one block in a row that make it a hole

}  // namespace

StageClaims::StageClaims(const RequestSpec& request, const StageSpec& stage)
    : shape_(request, stage),
      ranks_(stage.ranks),
      boundary_copy_(stage.boundary),
      depth_(shape_.chunks),
      partial_(shape_.chunks),
      hole_(shape_.chunks),
      computed_(shape_.blocks),
      here_(shape_.blocks),
      asked_(size_t{shape_.blocks} * ranks_.size()),
      landed_(asked_.size()),
      failures_(shape_.blocks) {
  std::fill_n(computed_.begin(), shape_.have_blocks, shape_.layers);
  Advance();
  if (!boundary_copy_.channel_of_block.empty())
    boundary_.resize(shape_.chunks, Boundary::kNotAsked);
  MakeLanes();
  MakeRegions();
}

void StageClaims::MakeLanes() {
  const uint32_t blocks = shape_.blocks;
  for (uint16_t rank = 0; rank < ranks_.size(); ++rank) {
    const size_t first = lanes_.size();
    for (uint32_t b = shape_.have_blocks; b < blocks; ++b) {
      const ChannelId channel = ranks_[rank].channel_of_block[b];
      if (channel == ChannelId::kNowhere) continue;
      size_t at = first;
      while (at < lanes_.size() && lanes_[at].channel != channel) ++at;
      if (at == lanes_.size()) lanes_.push_back({rank, channel, std::vector<uint32_t>(blocks + 1)});
      lanes_[at].count[b + 1] = 1;
    }
  }
  for (StageLane& lane : lanes_) {
    for (uint32_t b = 0; b < blocks; ++b) lane.count[b + 1] += lane.count[b];
  }
}

void StageClaims::MakeRegions() {
  const uint32_t blocks = shape_.blocks;
  if (shape_.have_blocks == blocks) return;  // nothing is to be restored
  regions_.push_back(
      {shape_.have_blocks, blocks, std::vector<int64_t>(lanes_.size(), int64_t{blocks} - 1)});
  for (uint32_t b = shape_.have_blocks; b < blocks; ++b) {
    const auto lacks = [&](const Copy& copy) {
      return copy.channel_of_block[b] == ChannelId::kNowhere;
    };
    if (std::any_of(ranks_.begin(), ranks_.end(), lacks)) MakeHole(b);
  }
}

void StageClaims::MakeHole(uint32_t block) {
  const TokenRange cut = shape_.CutOf(block);
  const uint32_t begin = cut.begin / shape_.block_tokens, end = cut.end / shape_.block_tokens;
  hole_[shape_.ChunkOf(block)] = true;
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

// ---- what there is

uint16_t StageClaims::PresentTo(uint32_t chunk) const {
  uint16_t low = shape_.layers;
  for (uint32_t b = shape_.ChunkBegin(chunk); b < shape_.ChunkEnd(chunk); ++b)
    low = std::min(low, (Full() - Present(b)).Lowest());
  return low;
}

bool StageClaims::HasHolesAhead() const {
  return regions_.empty() || regions_.back().end < shape_.blocks || regions_.back().begin > head_;
}

bool StageClaims::HolesFollowLoads() const {
  return std::ranges::any_of(regions_, [&](const Region& region) {
    return region.end > head_ && region.end < shape_.blocks;
  });
}

void StageClaims::Advance() {
  while (head_ < shape_.blocks && Present(head_) == Full()) ++head_;
}

// ---- what is claimed

uint16_t StageClaims::ComputeClaim(uint32_t block) const {
  const uint32_t chunk = shape_.ChunkOf(block);
  if (shape_.cuts()) {
    const uint32_t token = block * shape_.block_tokens;
    const bool its = work_ && work_->tokens.begin <= token && token < work_->tokens.end;
    return its ? work_->layers.end : computed_[block];
  }
  if (IsPartial(chunk)) return partial_[chunk].layers_end;
  if (work_.has_value() && work_->chunk == chunk) return work_->layers.end;
  return std::max(depth_[chunk], computed_[block]);
}

LayerSet StageClaims::Loadable(size_t lane, uint32_t block) const {
  const size_t at = At(lanes_[lane].rank, block);
  return Full() - asked_[at] - landed_[at] - here_[block] - LayerSet({0, ComputeClaim(block)});
}

LayerSet StageClaims::Hedgeable(size_t lane, uint32_t block, uint16_t claim) const {
  const size_t at = At(lanes_[lane].rank, block);
  return LayerSet({computed_[block], claim}) - asked_[at] - landed_[at];
}

bool StageClaims::IsOpen(uint32_t block) const {
  const LayerSet lacks = Full() - Present(block) - LayerSet({0, ComputeClaim(block)});
  for (uint16_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!(lacks - asked_[At(rank, block)] - landed_[At(rank, block)]).empty()) return true;
  }
  return false;
}

uint16_t StageClaims::OpenTop(uint32_t chunk) const {
  uint16_t top = 0;
  for (uint32_t b = shape_.ChunkBegin(chunk); b < shape_.ChunkEnd(chunk); ++b) {
    const LayerSet lacks = Full() - Present(b);
    if (lacks.empty()) continue;
    for (uint16_t rank = 0; rank < ranks_.size(); ++rank)
      top = std::max(top, (lacks - asked_[At(rank, b)] - landed_[At(rank, b)]).Top());
  }
  return top;
}

uint32_t StageClaims::OpenEnd() const {
  uint32_t above = shape_.blocks;  // where the regions seen so far begin
  for (size_t i = regions_.size(); i-- > 0;) {
    const Region& region = regions_[i];
    if (region.end < above && above > head_) return above;  // a hole ends at `above`
    const int64_t last = *std::max_element(region.next.begin(), region.next.end());
    if (last >= std::max<int64_t>(region.begin, head_)) return static_cast<uint32_t>(last) + 1;
    above = region.begin;
  }
  return above > head_ ? above : head_;
}

double StageClaims::OpenBlocks(const Region& region, size_t lane, uint32_t from) const {
  const uint32_t begin = std::max(region.begin, from);
  const int64_t next = region.next[lane];
  if (next < begin) return 0;
  const StageLane& of = lanes_[lane];
  // Loads may have claimed part of the last chunk, and computing part of the first.  The chunks
  // between are counted as unclaimed, although some of them may be claimed.
  const uint32_t last =
      std::max(shape_.ChunkBegin(shape_.ChunkOf(static_cast<uint32_t>(next))), begin);
  const uint32_t first = std::min(shape_.ChunkEnd(shape_.ChunkOf(begin)), last);
  uint32_t layers = (of.count[last] - of.count[first]) * shape_.layers;
  const auto add = [&](uint32_t b, int64_t end) {
    for (; b < end; ++b) layers += of.Has(b) ? Loadable(lane, b).count() : 0u;
  };
  add(begin, first);
  add(last, next + 1);
  return static_cast<double>(layers) / shape_.layers;
}

// ---- computing

void StageClaims::Begin(const StageWork& work) {
  LARDER_CHECK(!work_.has_value() && !work.layers.empty() && !work.waits_for_boundary);
  work_ = work;
  if (shape_.cuts() || work.tokens == shape_.ChunkTokens(work.chunk)) return;
  partial_[work.chunk] = {work.tokens.begin - shape_.ChunkTokens(work.chunk).begin,
                          work.layers.end};
}

StageWork StageClaims::Computed() {
  LARDER_CHECK(work_.has_value());
  const StageWork work = *work_;
  work_.reset();
  if (!shape_.cuts()) {
    const TokenRange chunk = shape_.ChunkTokens(work.chunk);
    const bool through = work.tokens.end == chunk.end;
    partial_[work.chunk] =
        through ? Partial{} : Partial{work.tokens.end - chunk.begin, work.layers.end};
    if (through) depth_[work.chunk] = work.layers.end;
  }
  for (uint32_t b = shape_.ChunkBegin(work.chunk); b < shape_.ChunkEnd(work.chunk); ++b) {
    const uint32_t end = shape_.TokensOf(b).end;
    if (end > work.tokens.end || end <= work.tokens.begin) continue;
    computed_[b] = std::max(computed_[b], work.layers.end);
  }
  Advance();
  return work;
}

bool StageClaims::Overtaken(uint16_t target) const {
  if (!work_.has_value()) return false;
  // Unclaimed layers above the work need its activations, so the step must not be dropped.
  const uint16_t top = std::min(OpenTop(work_->chunk), target);
  if (top > work_->layers.end) return false;
  for (uint32_t b = shape_.ChunkBegin(work_->chunk); b < shape_.ChunkEnd(work_->chunk); ++b) {
    // The step does not have this block.
    if (shape_.cuts() && ComputeClaim(b) == computed_[b]) continue;
    if (!Present(b).Contains(LayerSet(work_->layers))) return false;
  }
  return true;
}

// ---- loading

void StageClaims::Ask(size_t lane, const StagePiece& piece) {
  LayerSet& asked = asked_[At(lanes_[lane].rank, piece.block)];
  LARDER_CHECK((asked & LayerSet(piece.layers)).empty());
  asked = asked | LayerSet(piece.layers);
}

void StageClaims::Unask(uint16_t rank, uint32_t block, StageLayers layers) {
  LayerSet& asked = asked_[At(rank, block)];
  asked = asked - LayerSet(layers);
}

bool StageClaims::Landed(uint16_t rank, uint32_t block, StageLayers layers) {
  Unask(rank, block, layers);
  if (IsComputed(block, layers)) return false;
  failures_[block] = 0;
  const size_t at = At(rank, block);
  landed_[at] = landed_[at] | LayerSet(layers);
  LayerSet everywhere = landed_[At(0, block)];
  for (uint16_t r = 1; r < ranks_.size(); ++r) everywhere = everywhere & landed_[At(r, block)];
  here_[block] = everywhere;
  Advance();
  return true;
}

bool StageClaims::Failed(uint16_t rank, uint32_t block, StageLayers layers, LoadFailure why) {
  Unask(rank, block, layers);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    StageLane& of = lanes_[lane];
    if (of.rank != rank || !of.Has(block)) continue;
    if (why == LoadFailure::kTransient) ++failures_[block];
    if (why == LoadFailure::kGone || failures_[block] >= kFailuresMax) {
      for (uint32_t b = block; b < shape_.blocks; ++b) --of.count[b + 1];
      ranks_[rank].channel_of_block[block] = ChannelId::kNowhere;
      MakeHole(block);
      return true;
    }
    for (Region& region : regions_) {
      if (block >= region.begin && block < region.end)
        region.next[lane] = std::max<int64_t>(region.next[lane], block);
    }
  }
  return false;
}

// ---- boundaries

double StageClaims::BoundaryPerLoad() const {
  if (boundary_.empty() || ranks_.empty() || ranks_[0].block_bytes <= 0) return 0;
  return boundary_copy_.block_bytes / ranks_[0].block_bytes;
}

bool StageClaims::BoundaryIsHere(uint32_t chunk) {
  if (boundary_.empty()) return false;
  return std::exchange(boundary_[chunk], Boundary::kHere) != Boundary::kHere;
}

void StageClaims::BoundaryFailed(uint32_t chunk, bool gone) {
  if (boundary_[chunk] == Boundary::kHere) return;  // handed over meanwhile
  boundary_[chunk] = gone ? Boundary::kGone : Boundary::kNotAsked;
}

bool StageClaims::Lost() const {
  for (uint32_t chunk = shape_.ChunkOf(head_); chunk < boundary_.size(); ++chunk) {
    if (hole_[chunk] && boundary_[chunk] == Boundary::kGone && PresentTo(chunk) < shape_.layers)
      return true;
  }
  return false;
}

void StageClaims::CheckInvariants() const {
  for (uint32_t b = 0; b < shape_.blocks; ++b) {
    if (b < head_) LARDER_CHECK(Present(b) == Full());
    if (b == head_) LARDER_CHECK(Present(b) != Full());
    LARDER_CHECK(computed_[b] <= shape_.layers);
    LayerSet everywhere = Full();
    for (uint16_t rank = 0; rank < ranks_.size(); ++rank) {
      LARDER_CHECK((asked_[At(rank, b)] & landed_[At(rank, b)]).empty());
      everywhere = everywhere & landed_[At(rank, b)];
    }
    LARDER_CHECK(everywhere == here_[b]);
  }
  if (work_.has_value()) LARDER_CHECK(depth_[work_->chunk] == work_->layers.begin);
}

}  // namespace larder
