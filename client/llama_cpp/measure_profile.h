// Measures what the plan of a restore starts from: how fast the engine computes, and how fast the
// daemon's pool delivers blocks.
//
// MeasureProfile computes a meaningless prompt of 1,056 tokens, stores it under a salt of its own,
// reads it back and clears it, which may take several seconds.  The disk is not measured: its rate
// is set to that of the pool, at most 1 GB/s.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/llama_cpp/engine.h"
#include "client/llama_cpp/prompt_cache.h"
#include "client/restore/costs/cost_model.h"

namespace larder::llama {

// If it succeeds, the engine has a new context afterwards.  `cache` names daemon and model; its
// salt is replaced.  Returns FailedPrecondition if the engine's context is smaller than
// MeasuredText, or another error.
[[nodiscard]] absl::StatusOr<Profile> MeasureProfile(PromptCacheOptions cache, Engine* engine);
// The prompt that MeasureProfile computes.
[[nodiscard]] std::vector<Token> MeasuredText();

// The times of computing a whole chunk at the beginning of a text, a whole chunk further on, and a
// short step right after that second chunk.
struct ChunkTimes {
  TokenRange first = {}, later = {}, small = {};
  double first_s = 0, later_s = 0, small_s = 0;
};
// Returns the cost that explains the three times, as far as a cost without negative parts can.
[[nodiscard]] ComputeCost FitComputeCost(const ChunkTimes& times);

// Returns `profile` with no channel faster than `bytes_per_s`, as behind a link of that rate.
[[nodiscard]] Profile BehindLink(Profile profile, double bytes_per_s);

}  // namespace larder::llama
