#include "client/restore/stage/stage_estimate.h"

#include <algorithm>
#include <cmath>

#include "client/restore/stage/stage_cuts.h"

namespace larder {
namespace {

// Up to this many chunks and blocks are added up one by one.
constexpr uint32_t kExactChunks = 4;
constexpr uint32_t kExactBlocks = 64;

using Region = StageClaims::Region;

// Seconds of computing alone, and of loading alone, what is unclaimed (StageClaims).
struct Open {
  double compute_s = 0, lanes_s = 0;
};

// Seconds of computing tokens through all layers, in steps of a chunk.
double ComputeSeconds(const StageShape& shape, const CostModel& costs, TokenRange tokens) {
  return costs.ComputeSeconds(tokens, shape.ModelLayers(shape.all_layers()), shape.chunk_tokens);
}

double LoadSeconds(const StageClaims& claims, const CostModel& costs, size_t lane, double blocks) {
  return costs.LoadSeconds(claims.lanes()[lane].channel, claims.BlockBytes(lane) * blocks);
}

Open AddUp(const StageClaims& claims, const CostModel& costs, uint32_t begin, uint32_t end) {
  const StageShape& shape = claims.shape();
  Open open;
  for (uint32_t chunk = shape.ChunkOf(begin); shape.ChunkBegin(chunk) < end; ++chunk) {
    const uint16_t claimed =
        shape.cuts() ? uint16_t{0} : claims.ComputeClaim(shape.ChunkBegin(chunk));
    const uint16_t top = claims.OpenTop(chunk);
    const ChunkRest rest = RestOf(claims, chunk);
    const TokenRange tokens = Trimmed(claims, {rest.unclaimed_from, rest.tokens.end});
    if (top <= claimed || tokens.begin >= tokens.end) continue;
    open.compute_s +=
        costs.ComputeSeconds(tokens, shape.ModelLayers({claimed, top}), shape.chunk_tokens);
  }
  for (size_t lane = 0; lane < claims.lanes().size(); ++lane) {
    const StageLane& of = claims.lanes()[lane];
    uint32_t layers = 0;
    for (uint32_t b = begin; b < end; ++b) {
      if (of.Has(b)) layers += claims.Loadable(lane, b).count();
    }
    const double bytes = claims.BlockBytes(lane) * layers / shape.layers;
    open.lanes_s = std::max(open.lanes_s, costs.LoadSeconds(of.channel, bytes));
  }
  return open;
}

Open TakeAsOne(const StageClaims& claims, const CostModel& costs, uint32_t begin, uint32_t end) {
  const StageShape& shape = claims.shape();
  Open open;
  uint32_t stored = 0, rank_stored = 0;
  double unclaimed = 0, rank_unclaimed = 0;
  const std::vector<StageLane>& lanes = claims.lanes();
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    if (lane > 0 && lanes[lane - 1].rank != lanes[lane].rank) {
      rank_stored = 0;
      rank_unclaimed = 0;
    }
    double blocks = 0;
    for (const Region& region : claims.regions()) blocks += claims.OpenBlocks(region, lane, begin);
    rank_stored += lanes[lane].count[end] - lanes[lane].count[begin];
    rank_unclaimed += blocks;
    stored = std::max(stored, rank_stored);
    unclaimed = std::max(unclaimed, rank_unclaimed);
    open.lanes_s = std::max(open.lanes_s, LoadSeconds(claims, costs, lane, blocks));
  }
  const double share = (unclaimed + (end - begin - stored)) / static_cast<double>(end - begin);
  const TokenRange tokens{shape.TokensOf(begin).begin, shape.TokensOf(end - 1).end};
  open.compute_s = share * ComputeSeconds(shape, costs, tokens);
  return open;
}

// Returns about the seconds until the engine and the channels, which start from opposite ends,
// meet: computing y tokens takes as long as loading all others and the activations of the y tokens.
// Returns 0 if the engine or the channels have nothing to do.
double Both(const StageClaims& claims, const CostModel& costs, const Open& open,
            TokenRange tokens) {
  if (open.compute_s <= 0 || open.lanes_s <= 0) return 0;
  const ComputeCost cost = costs.compute();
  const double a = tokens.begin, length = tokens.end - tokens.begin;
  const double linear =
      cost.linear_s + cost.fixed_s / claims.shape().chunk_tokens + cost.quadratic_s * a;
  const double scale = open.compute_s / (linear * length + cost.quadratic_s * length * length / 2);
  const double load = open.lanes_s / length;
  const double beta = linear * scale + load * (1 - std::min(claims.BoundaryPerLoad(), 1.0));
  const double q = cost.quadratic_s * scale;
  const double y = 2 * load * length / (beta + std::sqrt(beta * beta + 2 * q * load * length));
  return y * (linear * scale + q * y / 2);
}

// Returns true if some StageLane can load the top layer of the last unclaimed chunk of region i
// before computing reaches that layer, and can load that layer and all regions behind i before
// computing reaches region i + 1.
bool FitsBefore(const StageClaims& claims, const CostModel& costs, size_t i) {
  const StageShape& shape = claims.shape();
  const std::vector<Region>& regions = claims.regions();
  const uint32_t head = claims.head();
  const auto compute_s = [&](uint32_t end) {
    return ComputeSeconds(shape, costs, {shape.TokensOf(head).begin, shape.TokensOf(end).begin});
  };
  const double all_s = compute_s(regions[i + 1].begin);
  const StageLayers top_layer{static_cast<uint16_t>(shape.layers - 1), shape.layers};
  for (size_t lane = 0; lane < claims.lanes().size(); ++lane) {
    if (regions[i].next[lane] < std::max<int64_t>(regions[i].begin, head)) continue;
    const uint32_t chunk = shape.ChunkOf(static_cast<uint32_t>(regions[i].next[lane]));
    const double layer = 1.0 * shape.chunk_blocks / shape.layers;
    const double chunk_s =
        costs.ComputeSeconds(shape.ChunkTokens(chunk), shape.ModelLayers(top_layer));
    if (LoadSeconds(claims, costs, lane, layer) > compute_s(shape.ChunkEnd(chunk)) - chunk_s)
      continue;
    double behind = 0;
    for (size_t j = i + 1; j < regions.size(); ++j)
      behind += claims.OpenBlocks(regions[j], lane, head);
    if (LoadSeconds(claims, costs, lane, behind + layer) <= all_s) return true;
  }
  return false;
}

}  // namespace

StageOutlook Estimate(const StageClaims& claims, const CostModel& costs) {
  const StageShape& shape = claims.shape();
  const uint32_t head = claims.head(), end = claims.OpenEnd();
  const std::optional<StageWork>& work = claims.work();
  uint32_t begin = head;
  if (work && shape.ChunkOf(head) == work->chunk && work->layers.end == shape.layers) {
    const uint32_t after =
        shape.cuts() ? work->tokens.end / shape.block_tokens : shape.ChunkEnd(work->chunk);
    begin = std::min(std::max(begin, after), end);
  }
  StageOutlook outlook;
  if (begin >= end) return outlook;
  const bool few = end - begin <= kExactBlocks && end - begin <= kExactChunks * shape.chunk_blocks;
  const Open open = few ? AddUp(claims, costs, begin, end) : TakeAsOne(claims, costs, begin, end);
  const TokenRange tokens{shape.TokensOf(begin).begin, shape.TokensOf(end - 1).end};
  outlook.compute_s = open.compute_s;
  outlook.lanes_s = open.lanes_s;
  outlook.both_s = claims.lanes().empty() ? open.compute_s : Both(claims, costs, open, tokens);
  return outlook;
}

double WorkSeconds(const StageClaims& claims, const CostModel& costs, const StageWork& work) {
  return costs.ComputeSeconds(work.tokens, claims.shape().ModelLayers(work.layers));
}

double ChunkSeconds(const StageClaims& claims, const CostModel& costs, const StageWork& work) {
  const StageShape& shape = claims.shape();
  if (shape.cuts()) return WorkSeconds(claims, costs, work);
  const TokenRange rest{work.tokens.begin, shape.ChunkTokens(work.chunk).end};
  return costs.ComputeSeconds(rest, shape.ModelLayers({work.layers.begin, shape.layers}),
                              shape.chunk_tokens);
}

double HoleSeconds(const StageClaims& claims, const CostModel& costs) {
  const StageShape& shape = claims.shape();
  double seconds = 0;
  if (shape.cuts()) {
    uint32_t at = claims.head();
    const auto add = [&](uint32_t end) {
      if (end <= at) return;
      const TokenRange hole{shape.TokensOf(at).begin, shape.TokensOf(end - 1).end};
      seconds += ComputeSeconds(shape, costs, hole);
    };
    for (const Region& region : claims.regions()) {
      add(region.begin);
      at = std::max(at, region.end);
    }
    add(shape.blocks);
    return seconds;
  }
  if (!claims.HasHolesAhead()) return seconds;
  for (uint32_t chunk = shape.ChunkOf(std::min(claims.head(), shape.blocks - 1));
       chunk < shape.chunks; ++chunk) {
    if (!claims.HasHole(chunk)) continue;
    const StageLayers left{claims.ComputeClaim(shape.ChunkBegin(chunk)), shape.layers};
    seconds +=
        costs.ComputeSeconds(shape.ChunkTokens(chunk), shape.ModelLayers(left), shape.chunk_tokens);
  }
  return seconds;
}

double TailSeconds(const StageClaims& claims, const CostModel& costs) {
  double seconds = 0;
  const std::vector<Region>& regions = claims.regions();
  if (regions.empty() || regions.back().end < claims.shape().blocks) return seconds;
  for (size_t lane = 0; lane < claims.lanes().size(); ++lane) {
    const double blocks = claims.OpenBlocks(regions.back(), lane, claims.head());
    seconds = std::max(seconds, LoadSeconds(claims, costs, lane, blocks));
  }
  return seconds;
}

double LaneSeconds(const StageClaims& claims, const CostModel& costs, ChannelId channel,
                   bool to_hole) {
  double seconds = 0;
  for (size_t lane = 0; lane < claims.lanes().size(); ++lane) {
    if (claims.lanes()[lane].channel != channel) continue;
    double blocks = 0;
    for (const Region& region : claims.regions()) {
      if (!to_hole || region.begin <= claims.head())
        blocks += claims.OpenBlocks(region, lane, claims.head());
    }
    seconds += LoadSeconds(claims, costs, lane, blocks);
  }
  return seconds;
}

double BoundarySeconds(const StageClaims& claims, const CostModel& costs, ChannelId channel) {
  const StageShape& shape = claims.shape();
  double bytes = 0;
  const uint32_t end = claims.OpenEnd();
  if (!claims.needs_boundaries()) return costs.LoadSeconds(channel, bytes);
  for (uint32_t chunk = shape.ChunkOf(std::min(claims.head(), shape.blocks - 1));
       chunk < shape.chunks && shape.ChunkBegin(chunk) < end; ++chunk) {
    if (claims.OpenTop(chunk) <= claims.DepthOf(chunk)) continue;
    if (claims.BoundaryChannel(chunk) == channel &&
        claims.BoundaryOf(chunk) == StageClaims::Boundary::kNotAsked) {
      bytes += claims.BoundaryBytes(chunk);
    }
  }
  return costs.LoadSeconds(channel, bytes);
}

size_t UrgentRegion(const StageClaims& claims, const CostModel& costs) {
  const StageShape& shape = claims.shape();
  const std::vector<Region>& regions = claims.regions();
  for (size_t i = regions.size(); i-- > 0;) {
    const Region& region = regions[i];
    if (i + 1 < regions.size() && !FitsBefore(claims, costs, i)) return i + 1;
    if (region.begin <= claims.head()) return i;
    double load_s = 0;
    for (size_t lane = 0; lane < claims.lanes().size(); ++lane) {
      double blocks = 0;
      for (size_t j = i; j < regions.size(); ++j)
        blocks += claims.OpenBlocks(regions[j], lane, claims.head());
      load_s = std::max(load_s, LoadSeconds(claims, costs, lane, blocks));
    }
    const TokenRange before{shape.TokensOf(claims.head()).begin,
                            shape.TokensOf(region.begin).begin};
    if (ComputeSeconds(shape, costs, before) <= load_s) return i;
  }
  return 0;
}

uint32_t LoadsToHole(const StageClaims& claims, const CostModel& costs) {
  const std::vector<Region>& regions = claims.regions();
  if (regions.empty()) return 0;
  const uint32_t head = claims.head();
  const Region& first = regions[regions.size() > 1 ? UrgentRegion(claims, costs) : 0];
  const bool before = first.begin <= head && head < first.end && first.end < claims.shape().blocks;
  return before ? first.end : 0;
}

}  // namespace larder
