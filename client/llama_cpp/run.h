// One prompt through the engine, from its tokens to its answer, with the times that people ask
// about.
//
// Computed, the batches are cut at multiples of 256 tokens and at the border of the last restorable
// block; restored or both, also at multiples of 64 between them, but for less than 64 before the
// border (Engine::kCutTokens).  That is why all ways give the same bits.
// Thread-safety: none.  Ownership: borrows engine and cache for the call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/llama_cpp/engine.h"
#include "client/llama_cpp/prompt_cache.h"
#include "client/llama_cpp/prompt_restorer.h"
#include "client/llama_cpp/token_bucket.h"

namespace larder::llama {

// Where the beginning of a prompt comes from.
enum class RestoreMode : uint8_t {
  kUnspecified = 0,
  kCompute = 1,  // the engine alone
  kLoad = 2,     // the cache, as far as it has it, then the engine
  kBoth = 3,     // both at once, even where one alone is through sooner
  kAuto = 4,     // whatever is through first: both, or one alone
};
[[nodiscard]] const char* ToString(RestoreMode mode);

struct RunOptions {
  uint32_t predict = 48;  // tokens of the answer, the first included; fewer when the model ends it
  RestoreMode mode = RestoreMode::kLoad;
  bool store = true;            // put into the cache what it lacks
  bool wait_durable = false;    // at the end, until the daemon has on disk what was stored
  Profile profile = {};         // of kBoth and kAuto
  TokenBucket* link = nullptr;  // emulated; what is loaded passes it
  // Of kBoth and kAuto: sequences that are decoded meanwhile, with so much time between two tokens.
  uint32_t decode_sequences = 0;
  double decode_budget_s = 0;
};

struct RunResult {
  uint32_t prompt_tokens = 0;
  uint32_t hit_tokens = 0;  // that came from Larder
  ByteCount restored_bytes;
  std::optional<PromptRestored> restored;  // of kBoth and kAuto
  std::vector<double> decode_gaps_s;       // from token to token of the sequences beside it
  double link_bytes_per_s = 0;             // emulated; 0: none
  std::string picture;                     // of the restore, where one was drawn
  uint32_t stored_blocks = 0;
  uint32_t refused_blocks = 0;
  ByteCount stored_bytes;
  double ttft_s = 0;          // from the prompt's tokens to the first token of the answer
  double load_s = 0;          // of it, restoring: until the beginning is in the engine
  double compute_s = 0;       // of it, computing the rest of the prompt
  double store_s = 0;         // after the first token
  bool durable = false;       // with wait_durable: all that was stored is on disk
  absl::Status cache_status;  // a failure of Larder, which costs time but no answer
  std::vector<Token> answer;
  std::vector<float> first_logits;  // of the first token of the answer
  std::string text;
};

// Runs `prompt` in a new context.  `cache` may be null: everything is computed.
// REQUIRES: prompt is not empty.  An error is the engine's; Larder's are in cache_status.
[[nodiscard]] absl::StatusOr<RunResult> RunPrompt(std::span<const Token> prompt,
                                                  const RunOptions& options, Engine* engine,
                                                  PromptCache* cache);

}  // namespace larder::llama
