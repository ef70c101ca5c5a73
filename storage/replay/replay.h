// Replays a trace against a cache, and adds up what the cache was good for.
//
// Thread-safety: functions without state.
#pragma once

#include <cstddef>

#include "storage/replay/replay_cache.h"
#include "storage/replay/request_trace.h"

namespace larder::replay {

// What computing the KV of a token costs, as a multiple of what that of the first token costs: the
// attention of a token looks at all tokens before it.
struct ComputeCurve {
  // At this depth a token costs twice as much as the first.  In a model of Llama-3-8B's shape
  // attention takes as many operations as all matrices at about this depth.
  double doubled_at_tokens = 30'000;
};
// Returns the cost of the first `tokens` tokens of a prompt, in costs of a first token.
[[nodiscard]] double CostOf(const ComputeCurve& curve, double tokens);

struct ReplayResult {
  size_t blocks = 0, hits = 0;  // blocks of all requests; those that the cache had
  double cost = 0, saved = 0;   // of computing all requests; of the hits (CostOf)
  [[nodiscard]] double hit_share() const;
  [[nodiscard]] double saved_share() const;
};
// The cache is empty at first.  A trace that does not know its block_tokens is taken to have blocks
// of 512 tokens.
[[nodiscard]] ReplayResult Replay(const RequestTrace& trace, ReplayCache& cache,
                                  const ComputeCurve& curve = {});

}  // namespace larder::replay
