// Runs one prompt through the engine, from its tokens to its answer, and measures how long its
// parts take.
//
// The modes (RestoreMode) may cut batches at different positions, but only where that does not
// change the bits (Engine::kCutTokens), so all modes give the same answer.
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
#include "storage/token_bucket.h"

namespace larder::llama {

// Where the beginning of a prompt comes from.
enum class RestoreMode : uint8_t {
  kUnspecified = 0,
  kCompute = 1,  // computes everything
  kLoad = 2,     // loads what the cache has of the prompt, then computes the rest
  kBoth = 3,     // computes and loads at once, even if one alone would finish sooner
  kAuto = 4,     // computes and loads at once, or only one if that seems faster
};
[[nodiscard]] const char* ToString(RestoreMode mode);

struct RunOptions {
  // The most tokens of the answer; there is always at least one.
  uint32_t predict = 48;
  RestoreMode mode = RestoreMode::kLoad;
  bool store = true;            // store the blocks that the cache lacks
  bool wait_durable = false;    // wait at the end, at most 10 s, until stored blocks are on disk
  Profile profile = {};         // for kBoth and kAuto
  TokenBucket* link = nullptr;  // an emulated link that carries all loads
  // For kBoth and kAuto: how many other sequences are decoded during the restore.
  uint32_t decode_sequences = 0;
  // With decode_sequences: the restore plans its steps so that the time between two tokens of a
  // sequence is at most this, but a step may take longer.
  double decode_budget_s = 0;
};

struct RunResult {
  uint32_t prompt_tokens = 0;
  uint32_t hit_tokens = 0;  // tokens that came from Larder
  ByteCount restored_bytes;
  std::optional<PromptRestored> restored;  // with kBoth and kAuto
  std::vector<double> decode_gaps_s;       // between two tokens of the decoded sequences
  double link_bytes_per_s = 0;             // of the emulated link; 0 if there is none
  std::string picture;                     // path of the picture of the restore, if it was drawn
  uint32_t stored_blocks = 0;
  uint32_t refused_blocks = 0;
  ByteCount stored_bytes;
  double ttft_s = 0;          // from the prompt's tokens to the first token of the answer
  double load_s = 0;          // part of ttft_s: until the restored beginning is in the engine
  double compute_s = 0;       // part of ttft_s: computing the rest of the prompt
  double store_s = 0;         // to store blocks, after the first token
  bool durable = false;       // with wait_durable: all stored blocks are on disk
  absl::Status cache_status;  // a failure of Larder; it costs time, and the answer is the same
  std::vector<Token> answer;
  std::vector<float> first_logits;  // of the first token of the answer
  std::string text;
};

// Runs `prompt` in a new context.  If `cache` is null, everything is computed.  Returns errors of
// the engine, except from LoadState and SaveState; these and Larder's are mostly in cache_status.
// REQUIRES: `prompt` is not empty; for kBoth and kAuto, options.profile fits (RestorePrompt).
[[nodiscard]] absl::StatusOr<RunResult> RunPrompt(std::span<const Token> prompt,
                                                  const RunOptions& options, Engine* engine,
                                                  PromptCache* cache);

}  // namespace larder::llama
