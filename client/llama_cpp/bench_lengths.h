// Measures the time to the first token for several prompt lengths, first computed and then
// restored.  The engine stays loaded, but only Larder keeps anything from the first run to the
// second: each run has its own context and connection, and each length its own salt.
//
// A restored answer must be the computed one: LengthResult says whether tokens and first logits are
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

// Multiples of 32, such multiples plus 1, and such multiples plus 31.  They leave a whole block of
// 32 tokens, one token, and 31 tokens to compute, respectively.
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
// and then restores them.  `cache` names daemon and model; its salt is replaced, and its engine id
// gets a suffix.  Returns InvalidArgument if `prompt` is empty.
[[nodiscard]] absl::StatusOr<std::vector<LengthResult>> BenchLengths(
    std::span<const Token> prompt, std::span<const uint32_t> lengths, uint32_t predict,
    const PromptCacheOptions& cache, Engine* engine);

}  // namespace larder::llama
