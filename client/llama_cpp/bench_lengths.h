// Measures the time to the first token over prompt lengths, computed and then restored.  The engine
// stays loaded, and only Larder keeps anything between the two runs: each length has contexts,
// connections and a salt of its own.
//
// It also checks that restored answers are the computed ones: tokens and first logits must be
// equal.
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

// Lengths of the forms 32k, 32k+1 and 32k+31, which leave a whole block, one token and nearly a
// block to compute.
inline constexpr uint32_t kBenchLengths[] = {512,  769,  1055, 1536, 1793,
                                             2079, 2560, 3073, 3615, 4096};

struct LengthResult {
  RunResult cold;
  RunResult restored;

  [[nodiscard]] double speedup() const { return cold.ttft_s / restored.ttft_s; }
  [[nodiscard]] bool same_answer() const { return cold.answer == restored.answer; }
  [[nodiscard]] bool same_logits() const;  // bit for bit
  // Returns true if everything that could be restored was restored.
  [[nodiscard]] bool whole_hit() const;
};

// For each length, computes and stores the first tokens of `prompt` (repeated if it is shorter),
// and then restores them.  `cache` names daemon and model; its salt and engine id are replaced.
[[nodiscard]] absl::StatusOr<std::vector<LengthResult>> BenchLengths(
    std::span<const Token> prompt, std::span<const uint32_t> lengths, uint32_t predict,
    const PromptCacheOptions& cache, Engine* engine);

}  // namespace larder::llama
