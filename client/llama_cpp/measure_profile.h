// Measures what a restore's plan starts from: an engine's computing, and the daemon's pool.
//
// A prompt of 1,024 tokens that says nothing is computed, stored under a salt of its own, read back
// and cleared again; some seconds.  The disk is taken for no faster than the pool: what it can, the
// restores that use it learn.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/llama_cpp/engine.h"
#include "client/llama_cpp/prompt_cache.h"
#include "client/restore/cost_model.h"

namespace larder::llama {

// The engine's context is a new one afterwards.  `cache` names daemon and model; its salt is
// replaced.  FailedPrecondition: the engine's context is too small.
[[nodiscard]] absl::StatusOr<Profile> MeasureProfile(PromptCacheOptions cache, Engine* engine);
// The prompt that it takes.
[[nodiscard]] std::vector<Token> MeasuredText();

// Computing a whole chunk at the begin of a text, the same further on, and a short step there.
struct ChunkTimes {
  TokenRange first = {}, later = {}, small = {};
  double first_s = 0, later_s = 0, small_s = 0;
};
// What explains all three.  No part of it is negative.
[[nodiscard]] ComputeCost FitComputeCost(const ChunkTimes& times);

// `profile` of somebody who has no link faster than that.
[[nodiscard]] Profile BehindLink(Profile profile, double bytes_per_s);

}  // namespace larder::llama
