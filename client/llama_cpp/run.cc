#include "client/llama_cpp/run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "storage/check.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder::llama {
namespace {

constexpr std::chrono::seconds kDurableLimit{10}, kLookupLimit{1};

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(SteadyNow() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = SteadyNow();
};

// Computes prompt[begin, end of the prompt), with a cut at the end of the last block that may be
// restored, if that is behind `begin`.
absl::Status ComputeRest(std::span<const Token> prompt, uint32_t begin, Engine* engine) {
  const uint32_t border = PromptCache::RestorableTokens(prompt.size());
  if (begin < border) {
    LARDER_RETURN_IF_ERROR(engine->Decode(prompt, begin, border));
  }
  return engine->Decode(prompt, border, static_cast<uint32_t>(prompt.size()));
}

// Returns how many of the first `known` tokens, which the daemon had before the restore, the daemon
// still has, up to the first missing block; 0 if it does not answer.  A block may be missing now,
// for example because the daemon found that it was damaged.
uint32_t StillKnown(std::span<const Token> prompt, uint32_t known, PromptCache* cache) {
  const auto tiers = cache->Tiers(prompt.first(known), kLookupLimit);
  if (!tiers.ok()) return 0;  // then Store puts all blocks, and the daemon reports duplicates
  const auto gone = std::find(tiers->begin(), tiers->end(), std::nullopt);
  return static_cast<uint32_t>(gone - tiers->begin()) * PromptCache::kBlockTokens;
}

// Stores the blocks that the daemon lacks.  The daemon had those of the first `known_tokens` tokens
// when the run began.
void StorePrompt(std::span<const Token> prompt, uint32_t known_tokens, Engine* engine,
                 PromptCache* cache, RunResult* result) {
  const Stopwatch watch;
  if (result->restored && result->restored->what.computed_tokens > 0)
    known_tokens = StillKnown(prompt, known_tokens, cache);
  const absl::StatusOr<PromptCache::Stored> stored = cache->Store(prompt, known_tokens, engine);
  result->store_s = watch.seconds();
  if (!stored.ok()) {
    result->cache_status.Update(stored.status());
    return;
  }
  result->stored_blocks = stored->blocks;
  result->refused_blocks = stored->refused;
  result->stored_bytes = stored->bytes;
}

// How many tokens at the beginning of the prompt the engine has after a restore, and how many the
// daemon had before it.
struct Beginning {
  uint32_t tokens = 0;  // in the engine
  uint32_t known = 0;   // in the daemon
};

Beginning Load(std::span<const Token> prompt, const RunOptions& options, Engine* engine,
               PromptCache* cache, RunResult* result) {
  PromptCache::Restored restored = cache->Restore(prompt, engine, options.link);
  result->hit_tokens = restored.tokens;
  result->restored_bytes = restored.bytes;
  result->cache_status = std::move(restored.status);
  return {restored.tokens, restored.tokens};
}

absl::StatusOr<Beginning> ComputeAndLoad(std::span<const Token> prompt, const RunOptions& options,
                                         DecodeLoad* beside, Engine* engine, PromptCache* cache,
                                         RunResult* result) {
  const PromptRestoreOptions how{.profile = options.profile,
                                 .falls_back = options.mode == RestoreMode::kAuto,
                                 .link = options.link,
                                 .beside = beside,
                                 .decode_budget_s = options.decode_budget_s};
  LARDER_ASSIGN_OR_RETURN(PromptRestored restored, RestorePrompt(prompt, how, cache, engine));
  result->hit_tokens = restored.what.loaded_tokens;
  result->restored_bytes = restored.what.bytes;
  result->cache_status = restored.lookup;
  const Beginning begun{PromptCache::RestorableTokens(prompt.size()), restored.stored_tokens};
  result->restored = std::move(restored);
  return begun;
}

absl::StatusOr<Beginning> Begin(std::span<const Token> prompt, const RunOptions& options,
                                DecodeLoad* beside, Engine* engine, PromptCache* cache,
                                RunResult* result) {
  if (cache == nullptr || options.mode == RestoreMode::kCompute) return Beginning{};
  if (options.mode == RestoreMode::kLoad) return Load(prompt, options, engine, cache, result);
  return ComputeAndLoad(prompt, options, beside, engine, cache, result);
}

// Computes the rest of the answer, which always continues with the most likely token.
absl::Status Continue(std::span<const Token> prompt, uint32_t predict, Engine* engine,
                      RunResult* result) {
  std::vector<Token> text(prompt.begin(), prompt.end());
  while (result->answer.size() < predict && !engine->EndsAnswer(result->answer.back())) {
    text.push_back(result->answer.back());
    const uint32_t size = static_cast<uint32_t>(text.size());
    if (size > engine->context_tokens()) break;
    LARDER_RETURN_IF_ERROR(engine->Decode(text, size - 1, size));
    result->answer.push_back(engine->Greedy());
  }
  return absl::OkStatus();
}

}  // namespace

const char* ToString(RestoreMode mode) {
  constexpr const char* kNames[] = {"unspecified", "compute", "load", "both", "auto"};
  return kNames[static_cast<size_t>(mode)];
}

absl::StatusOr<RunResult> RunPrompt(std::span<const Token> prompt, const RunOptions& options,
                                    Engine* engine, PromptCache* cache) {
  LARDER_CHECK(!prompt.empty());
  RunResult result;
  result.prompt_tokens = static_cast<uint32_t>(prompt.size());
  if (options.link != nullptr) result.link_bytes_per_s = options.link->bytes_per_s();
  LARDER_RETURN_IF_ERROR(engine->ResetContext());
  std::optional<DecodeLoad> beside;
  if (options.decode_sequences > 0) {
    beside.emplace(engine, options.decode_sequences);
    LARDER_RETURN_IF_ERROR(beside->Start(prompt));
  }

  const Stopwatch watch;
  LARDER_ASSIGN_OR_RETURN(const Beginning begun, Begin(prompt, options, beside ? &*beside : nullptr,
                                                       engine, cache, &result));
  result.load_s = watch.seconds();
  const Stopwatch compute;
  LARDER_RETURN_IF_ERROR(ComputeRest(prompt, begun.tokens, engine));
  result.answer.push_back(engine->Greedy());
  result.compute_s = compute.seconds();
  result.ttft_s = watch.seconds();
  if (beside) result.decode_gaps_s = beside->gaps_s();

  const std::span<const float> logits = engine->Logits();
  result.first_logits.assign(logits.begin(), logits.end());
  // The answer is not stored with the prompt: its blocks would only help a later prompt that begins
  // with this prompt and this very answer.
  if (cache != nullptr && options.store) StorePrompt(prompt, begun.known, engine, cache, &result);
  LARDER_RETURN_IF_ERROR(Continue(prompt, options.predict, engine, &result));
  result.text = engine->Text(result.answer);
  if (cache != nullptr && options.wait_durable)
    result.durable = cache->WaitDurable(result.stored_blocks, kDurableLimit);
  return result;
}

}  // namespace larder::llama
