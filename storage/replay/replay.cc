#include "storage/replay/replay.h"

namespace larder::replay {
namespace {

constexpr uint32_t kUsualBlockTokens = 512;

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

double CostOf(const ComputeCurve& curve, double tokens) {
  return tokens + tokens * tokens / (2 * curve.doubled_at_tokens);
}

double ReplayResult::hit_share() const {
  return Share(static_cast<double>(hits), static_cast<double>(blocks));
}
double ReplayResult::saved_share() const { return Share(saved, cost); }

ReplayResult Replay(const RequestTrace& trace, ReplayCache& cache, const ComputeCurve& curve) {
  const double block_tokens = trace.block_tokens == 0 ? kUsualBlockTokens : trace.block_tokens;
  ReplayResult result;
  for (const TracedRequest& request : trace.requests) {
    const size_t hits = cache.Request(request);
    result.blocks += request.blocks.size();
    result.hits += hits;
    result.cost += CostOf(curve, block_tokens * static_cast<double>(request.blocks.size()));
    result.saved += CostOf(curve, block_tokens * static_cast<double>(hits));
  }
  return result;
}

}  // namespace larder::replay
