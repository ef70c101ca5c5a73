// Measures time to the first token, computed against restored, over prompt lengths: the engine
// loaded, and nothing kept between the two runs but what Larder keeps.  Each length has contexts,
// connections and a salt of its own.
//
// It also holds the promise that restored answers are the computed ones: tokens and first logits
// must be equal.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/llama_cpp/engine.h"
#include "client/llama_cpp/prompt_cache.h"
#include "client/llama_cpp/run.h"

namespace larder::llama {

// Of the forms 32k, 32k+1 and 32k+31: a whole block, a token and nearly a block are left to
// compute.
inline constexpr uint32_t kBenchLengths[] = {512,  769,  1055, 1536, 1793,
                                             2079, 2560, 3073, 3615, 4096};

struct LengthResult {
  RunResult cold;
  RunResult restored;

  [[nodiscard]] double speedup() const { return cold.ttft_s / restored.ttft_s; }
  [[nodiscard]] bool same_answer() const { return cold.answer == restored.answer; }
  [[nodiscard]] bool same_logits() const;  // bit for bit
  // Everything that could be restored was.
  [[nodiscard]] bool whole_hit() const;
};

// For each length: the first tokens of `prompt` (repeated when it is shorter) cold, stored, then
// restored. `cache` names daemon and model; its salt and engine id are replaced.
[[nodiscard]] absl::StatusOr<std::vector<LengthResult>> BenchLengths(
    std::span<const Token> prompt, std::span<const uint32_t> lengths, uint32_t predict,
    const PromptCacheOptions& cache, Engine* engine);

}  // namespace larder::llama
