// What is left of a stage, in seconds.  Few chunks are added up one by one; many are taken as a
// stretch of tokens.
#include <algorithm>
#include <cmath>

#include "client/restore/stage_state.h"

namespace larder {
namespace {

constexpr uint32_t kExactChunks = 4;  // at most so many are added up one by one
constexpr uint32_t kExactBlocks = 64;

}  // namespace

double StageState::WorkSeconds(const CostModel& costs, const Work& work) const {
  return costs.ComputeSeconds(work.tokens, model_layers(work.layers));
}

double StageState::ChunkSeconds(const CostModel& costs, const Work& work) const {
  if (cut_tokens_ > 0) return WorkSeconds(costs, work);
  const TokenRange rest{work.tokens.begin, ChunkTokens(work.chunk).end};
  return costs.ComputeSeconds(rest, model_layers({work.layers.begin, layers_}), chunk_tokens_);
}

// One behind the last block that nobody has claimed; an upper bound.
uint32_t StageState::OpenEnd() const {
  uint32_t above = blocks_;  // the regions seen so far begin here
  for (size_t i = regions_.size(); i-- > 0;) {
    const Region& region = regions_[i];
    if (region.end < above && above > head_) return above;  // a hole
    const int64_t last = *std::max_element(region.next.begin(), region.next.end());
    if (last >= std::max<int64_t>(region.begin, head_)) return static_cast<uint32_t>(last) + 1;
    above = region.begin;
  }
  return above > head_ ? above : head_;
}

double StageState::HoleSeconds(const CostModel& costs) const {
  double seconds = 0;
  if (cut_tokens_ > 0) {
    uint32_t at = head_;
    const auto add = [&](uint32_t end) {
      if (end <= at) return;
      const TokenRange hole{TokensOf(at).begin, TokensOf(end - 1).end};
      seconds += costs.ComputeSeconds(hole, model_layers({0, layers_}), chunk_tokens_);
    };
    for (const Region& region : regions_) {
      add(region.begin);
      at = std::max(at, region.end);
    }
    add(blocks_);
    return seconds;
  }
  for (uint32_t chunk = ChunkOf(std::min(head_, blocks_ - 1));
       HasHolesAhead() && chunk < hole_.size(); ++chunk) {
    const StageLayers left{ComputeClaim(chunk * chunk_blocks_), layers_};
    if (hole_[chunk])
      seconds += costs.ComputeSeconds(ChunkTokens(chunk), model_layers(left), chunk_tokens_);
  }
  return seconds;
}

double StageState::TailSeconds(const CostModel& costs) const {
  double seconds = 0;
  if (regions_.empty() || regions_.back().end < blocks_) return seconds;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const Lane& of = lanes_[lane];
    const double bytes = ranks_[of.rank].block_bytes * OpenBlocks(regions_.back(), lane, head_);
    seconds = std::max(seconds, costs.LoadSeconds(of.channel, bytes));
  }
  return seconds;
}

// Blocks of a lane from `from` on that nobody has claimed; a part of one counts as that.
double StageState::OpenBlocks(const Region& region, size_t lane, uint32_t from) const {
  const uint32_t begin = std::max(region.begin, from);
  const int64_t next = region.next[lane];
  if (next < begin) return 0;
  const std::vector<uint32_t>& count = lanes_[lane].count;
  // Some of the last chunk is loaded, some of the first computed; what is between is whole.
  const uint32_t last = std::max(ChunkOf(static_cast<uint32_t>(next)) * chunk_blocks_, begin);
  const uint32_t first = std::min(ChunkEnd(ChunkOf(begin)), last);
  uint32_t layers = (count[last] - count[first]) * layers_;
  const auto add = [&](uint32_t b, int64_t end) {
    for (; b < end; ++b) layers += count[b + 1] == count[b] ? 0u : Loadable(lane, b).count();
  };
  add(begin, first);
  add(last, next + 1);
  return static_cast<double>(layers) / layers_;
}

StageState::Open StageState::Exactly(const CostModel& costs, uint32_t begin, uint32_t end) const {
  Open open;
  for (uint32_t chunk = ChunkOf(begin); chunk * chunk_blocks_ < end; ++chunk) {
    const uint16_t claimed = cut_tokens_ > 0 ? uint16_t{0} : ComputeClaim(chunk * chunk_blocks_);
    const uint16_t top = OpenTop(chunk);
    const Rest rest = RestOf(chunk);
    const TokenRange tokens = Trimmed({rest.unclaimed_from, rest.tokens.end});
    if (top <= claimed || tokens.begin >= tokens.end) continue;
    open.compute_s += costs.ComputeSeconds(tokens, model_layers({claimed, top}), chunk_tokens_);
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const Lane& of = lanes_[lane];
    uint32_t layers = 0;
    for (uint32_t b = begin; b < end; ++b) {
      if (of.count[b + 1] != of.count[b]) layers += Loadable(lane, b).count();
    }
    const double bytes = ranks_[of.rank].block_bytes * layers / layers_;
    open.lanes_s = std::max(open.lanes_s, costs.LoadSeconds(of.channel, bytes));
  }
  return open;
}

StageState::Open StageState::Roughly(const CostModel& costs, uint32_t begin, uint32_t end) const {
  Open open;
  uint32_t stored = 0, rank_stored = 0;
  double unclaimed = 0, rank_unclaimed = 0;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const Lane& of = lanes_[lane];
    if (lane > 0 && lanes_[lane - 1].rank != of.rank) {
      rank_stored = 0;
      rank_unclaimed = 0;
    }
    double blocks = 0;
    for (const Region& region : regions_) blocks += OpenBlocks(region, lane, begin);
    rank_stored += of.count[end] - of.count[begin];
    rank_unclaimed += blocks;
    stored = std::max(stored, rank_stored);
    unclaimed = std::max(unclaimed, rank_unclaimed);
    open.lanes_s =
        std::max(open.lanes_s, costs.LoadSeconds(of.channel, ranks_[of.rank].block_bytes * blocks));
  }
  const double share = (unclaimed + (end - begin - stored)) / static_cast<double>(end - begin);
  const TokenRange tokens{TokensOf(begin).begin, TokensOf(end - 1).end};
  open.compute_s = share * costs.ComputeSeconds(tokens, model_layers({0, layers_}), chunk_tokens_);
  return open;
}

// Bytes of activations per byte of KV that they spare, on the same channel.
double StageState::BoundaryPerLoad() const {
  if (boundary_.empty() || ranks_.empty() || ranks_[0].block_bytes <= 0) return 0;
  return boundary_copy_.block_bytes / ranks_[0].block_bytes;
}

// Both from their ends: computing y tokens takes as long as loading the others, and the activations
// of the y.
double StageState::Both(const CostModel& costs, const Open& open, TokenRange tokens) const {
  if (open.compute_s <= 0 || open.lanes_s <= 0) return 0;
  const ComputeCost cost = costs.compute();
  const double a = tokens.begin, length = tokens.end - tokens.begin;
  const double linear = cost.linear_s + cost.fixed_s / chunk_tokens_ + cost.quadratic_s * a;
  const double scale = open.compute_s / (linear * length + cost.quadratic_s * length * length / 2);
  const double load = open.lanes_s / length;
  const double beta = linear * scale + load * (1 - std::min(BoundaryPerLoad(), 1.0));
  const double q = cost.quadratic_s * scale;
  const double y = 2 * load * length / (beta + std::sqrt(beta * beta + 2 * q * load * length));
  return y * (linear * scale + q * y / 2);
}

StageState::Outlook StageState::Estimate(const CostModel& costs) const {
  const uint32_t end = OpenEnd();
  uint32_t begin = head_;
  if (work_.has_value() && ChunkOf(head_) == work_->chunk && work_->layers.end == layers_) {
    const uint32_t after =
        cut_tokens_ > 0 ? work_->tokens.end / block_tokens_ : ChunkEnd(work_->chunk);
    begin = std::min(std::max(begin, after), end);
  }
  Outlook outlook;
  if (begin >= end) return outlook;
  const bool few = end - begin <= kExactBlocks && end - begin <= kExactChunks * chunk_blocks_;
  const Open open = few ? Exactly(costs, begin, end) : Roughly(costs, begin, end);
  outlook.compute_s = open.compute_s;
  outlook.lanes_s = open.lanes_s;
  outlook.both_s = lanes_.empty()
                       ? open.compute_s
                       : Both(costs, open, {TokensOf(begin).begin, TokensOf(end - 1).end});
  return outlook;
}

double StageState::BoundarySeconds(const CostModel& costs, ChannelId channel) const {
  double bytes = 0;
  const uint32_t end = OpenEnd();
  for (uint32_t chunk = ChunkOf(std::min(head_, blocks_ - 1)); chunk < boundary_.size(); ++chunk) {
    const uint32_t first = chunk * chunk_blocks_;
    if (first >= end) break;
    if (OpenTop(chunk) <= DepthOf(chunk)) continue;
    const bool here = boundary_copy_.channel_of_block[first] == channel;
    if (here && boundary_[chunk] == Boundary::kNotAsked)
      bytes += boundary_copy_.block_bytes * (ChunkEnd(chunk) - first);
  }
  return costs.LoadSeconds(channel, bytes);
}

double StageState::LaneSeconds(const CostModel& costs, ChannelId channel, bool to_hole) const {
  double seconds = 0;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const Lane& of = lanes_[lane];
    if (of.channel != channel) continue;
    double blocks = 0;
    if (sweeps()) {
      blocks = std::max(0.0, static_cast<double>(sweep_[lane].unclaimed)) / layers_;
    } else {
      for (const Region& region : regions_) {
        if (!to_hole || region.begin <= head_) blocks += OpenBlocks(region, lane, head_);
      }
    }
    seconds += costs.LoadSeconds(channel, ranks_[of.rank].block_bytes * blocks);
  }
  return seconds;
}

uint32_t StageState::LoadsToHole(const CostModel& costs) const {
  if (regions_.empty()) return 0;
  const Region& first = regions_[regions_.size() > 1 ? UrgentRegion(costs) : 0];
  return first.begin <= head_ && head_ < first.end && first.end < blocks_ ? first.end : 0;
}

// Whether a layer of the last chunk of a region can be loaded before computing gets there, and in
// the time that what is behind the region leaves.
bool StageState::FitsBefore(const CostModel& costs, size_t i) const {
  const auto compute_s = [&](uint32_t end) {
    return costs.ComputeSeconds({TokensOf(head_).begin, TokensOf(end).begin},
                                model_layers({0, layers_}), chunk_tokens_);
  };
  const double all_s = compute_s(regions_[i + 1].begin);
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const Lane& of = lanes_[lane];
    if (regions_[i].next[lane] < std::max<int64_t>(regions_[i].begin, head_)) continue;
    const uint32_t chunk = ChunkOf(static_cast<uint32_t>(regions_[i].next[lane]));
    const double bytes = ranks_[of.rank].block_bytes, layer = 1.0 * chunk_blocks_ / layers_;
    const double chunk_s = costs.ComputeSeconds(
        ChunkTokens(chunk), model_layers({static_cast<uint16_t>(layers_ - 1), layers_}));
    if (costs.LoadSeconds(of.channel, bytes * layer) > compute_s(ChunkEnd(chunk)) - chunk_s)
      continue;
    double behind = 0;
    for (size_t j = i + 1; j < regions_.size(); ++j) behind += OpenBlocks(regions_[j], lane, head_);
    if (costs.LoadSeconds(of.channel, bytes * (behind + layer)) <= all_s) return true;
  }
  return false;
}

// The last region that computing reaches while it, and what is behind it, is loaded.
size_t StageState::UrgentRegion(const CostModel& costs) const {
  for (size_t i = regions_.size(); i-- > 0;) {
    const Region& region = regions_[i];
    if (i + 1 < regions_.size() && !FitsBefore(costs, i)) return i + 1;
    if (region.begin <= head_) return i;
    double load_s = 0;
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      double blocks = 0;
      for (size_t j = i; j < regions_.size(); ++j) blocks += OpenBlocks(regions_[j], lane, head_);
      const Lane& of = lanes_[lane];
      load_s =
          std::max(load_s, costs.LoadSeconds(of.channel, ranks_[of.rank].block_bytes * blocks));
    }
    const TokenRange before{TokensOf(head_).begin, TokensOf(region.begin).begin};
    const double compute_s =
        costs.ComputeSeconds(before, model_layers({0, layers_}), chunk_tokens_);
    if (compute_s <= load_s) return i;
  }
  return 0;
}

}  // namespace larder
