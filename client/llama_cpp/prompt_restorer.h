// Brings the beginning of a prompt back into an Engine by computing its head and loading its tail
// at the same time: joins a PromptCache's session, an Engine and a Restorer.
//
// Chunks of Engine::kBatchTokens tokens are computed at the borders that computing all would have;
// loaded blocks are put behind them in ascending order, and both meet between two chunks.  So the
// engine's cache holds the bits that computing all would have left.  Channel 1 is the pool, channel
// 2 the disk of the daemon, as its Lookup says of each block.
//
// What it does not promise: that anything was loaded.  What is missing, damaged or late is
// computed.
// Ownership: borrows everything for the call.  Thread-safety: none.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "client/llama_cpp/decode_load.h"
#include "client/llama_cpp/engine.h"
#include "client/llama_cpp/prompt_cache.h"
#include "client/llama_cpp/token_bucket.h"
#include "client/restorer.h"

namespace larder::llama {

// Of the channels of such a Profile.
inline constexpr ChannelId kPoolChannel{1}, kDiskChannel{2};

struct PromptRestoreOptions {
  Profile profile = {};
  bool falls_back = true;       // false: both resources work even where one alone is through sooner
  TokenBucket* link = nullptr;  // emulated; the channels share it
  // Decoded meanwhile, a token of each between two steps, which together last no longer than this.
  DecodeLoad* beside = nullptr;
  double decode_budget_s = 0;
};

struct PromptRestored {
  Restorer::Restored what;
  Profile learnt = {};
  uint32_t stored_tokens = 0;  // at the beginning of the prompt, that the daemon had
  absl::Status lookup = {};    // why it could not be asked; then all was computed
  // Where the two met: behind it everything was loaded.
  [[nodiscard]] uint32_t met_at_token() const;
};

// Afterwards the engine has all that a restore may cover (PromptCache::RestorableTokens).
// REQUIRES: its text is empty.  An error is the engine's, which then has part of the text.
[[nodiscard]] absl::StatusOr<PromptRestored> RestorePrompt(std::span<const Token> prompt,
                                                           const PromptRestoreOptions& options,
                                                           PromptCache* cache, Engine* engine);

}  // namespace larder::llama
