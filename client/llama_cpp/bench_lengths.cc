#include "client/llama_cpp/bench_lengths.h"

#include <chrono>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder::llama {
namespace {

std::vector<Token> Repeated(std::span<const Token> prompt, uint32_t length) {
  std::vector<Token> tokens;
  tokens.reserve(length);
  for (uint32_t i = 0; i < length; ++i) tokens.push_back(prompt[i % prompt.size()]);
  return tokens;
}

absl::StatusOr<RunResult> RunWithOwnConnection(std::span<const Token> tokens, const RunOptions& run,
                                               const PromptCacheOptions& options, Engine* engine) {
  LARDER_ASSIGN_OR_RETURN(const std::unique_ptr<PromptCache> cache,
                          PromptCache::Connect(options, engine->shape()));
  return RunPrompt(tokens, run, engine, cache.get());
}

}  // namespace

bool LengthResult::same_logits() const {
  return cold.first_logits.size() == restored.first_logits.size() &&
         std::memcmp(cold.first_logits.data(), restored.first_logits.data(),
                     cold.first_logits.size() * sizeof(float)) == 0;
}

bool LengthResult::whole_hit() const {
  return restored.hit_tokens == PromptCache::RestorableTokens(restored.prompt_tokens);
}

absl::StatusOr<std::vector<LengthResult>> BenchLengths(std::span<const Token> prompt,
                                                       std::span<const uint32_t> lengths,
                                                       uint32_t predict,
                                                       const PromptCacheOptions& cache,
                                                       Engine* engine) {
  if (prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  std::vector<LengthResult> results;
  for (const uint32_t length : lengths) {
    const std::vector<Token> tokens = Repeated(prompt, length);
    PromptCacheOptions options = cache;
    options.salt = absl::StrCat("bench-", now, "-", length);

    options.engine_id = absl::StrCat(cache.engine_id, "-cold");
    const RunOptions cold_run = {.predict = predict, .mode = RestoreMode::kCompute, .store = true};
    LARDER_ASSIGN_OR_RETURN(RunResult cold,
                            RunWithOwnConnection(tokens, cold_run, options, engine));

    options.engine_id = absl::StrCat(cache.engine_id, "-restored");
    const RunOptions restored_run = {
        .predict = predict, .mode = RestoreMode::kLoad, .store = false};
    LARDER_ASSIGN_OR_RETURN(RunResult restored,
                            RunWithOwnConnection(tokens, restored_run, options, engine));
    results.push_back({.cold = std::move(cold), .restored = std::move(restored)});
  }
  return results;
}

}  // namespace larder::llama
