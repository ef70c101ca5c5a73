// One prompt through the engine, from its tokens to its answer, with the times that people ask
// about.
//
// Restored or computed, the batches are cut at the same places: multiples of 256 tokens, and the
// border of the last restorable block.  That is why both ways give the same bits.
// Thread-safety: none.  Ownership: borrows engine and cache for the call.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/llama_cpp/engine.h"
#include "client/llama_cpp/prompt_cache.h"

namespace larder::llama {

struct RunOptions {
  uint32_t predict = 48;  // tokens of the answer, the first included; fewer when the model ends it
  bool restore = true;    // take from the cache what it has
  bool store = true;      // put into it what it lacks
  bool wait_durable = false;  // at the end, until the daemon has on disk what was stored
};

struct RunResult {
  uint32_t prompt_tokens = 0;
  uint32_t hit_tokens = 0;
  ByteCount restored_bytes;
  uint32_t stored_blocks = 0;
  uint32_t refused_blocks = 0;
  ByteCount stored_bytes;
  double ttft_s = 0;          // from the prompt's tokens to the first token of the answer
  double load_s = 0;          // of it, moving blocks into the engine
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
