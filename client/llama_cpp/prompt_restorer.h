// Restores the beginning of a prompt into an Engine by computing its head and loading its tail at
// the same time.  It connects a PromptCache's session, an Engine and a Restorer.
//
// The engine computes chunks of Engine::kBatchTokens tokens at the borders that computing the whole
// prompt would have, or parts of them that begin at multiples of Engine::kCutTokens.  Loaded blocks
// are appended to what is computed, in ascending order, and both meet at the border of a chunk or
// of such a part.  So the engine's cache holds the bits that computing the whole prompt would have
// left.  Channel 1 is the daemon's pool and channel 2 its disk; Lookup says which of them has a
// block.
//
// What it does not promise: that anything was loaded.  Blocks that are missing, damaged or late are
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

// The channels of PromptRestoreOptions::profile.
inline constexpr ChannelId kPoolChannel{1}, kDiskChannel{2};

struct PromptRestoreOptions {
  Profile profile = {};
  bool falls_back = true;       // false: compute and load even if one alone would finish sooner
  TokenBucket* link = nullptr;  // an emulated link, which the channels share
  // Other sequences, of which one token each is decoded before each step of the restore, after each
  // time that loaded blocks are appended, and repeatedly while there is no step.  null: none.
  DecodeLoad* beside = nullptr;
  // With `beside`: a step of the restore and the decoding after it are planned to last at most this
  // long together.  A step may take longer: it has at least Engine::kCutTokens tokens.
  double decode_budget_s = 0;
};

struct PromptRestored {
  Restorer::Restored what;
  Profile learnt = {};
  uint32_t stored_tokens = 0;  // before the first block that the daemon lacks
  absl::Status lookup = {};    // if Lookup failed, its error; then everything was computed
  // Returns where computing and loading met: everything behind this token was loaded.
  [[nodiscard]] uint32_t met_at_token() const;
};

// Puts all tokens that a restore may cover (PromptCache::RestorableTokens) into the engine.
// Returns only errors of the engine; after one, the engine has part of the text.
// REQUIRES: the engine's text is empty; options.profile has the engine's number of layers, and
// kPoolChannel and kDiskChannel.
[[nodiscard]] absl::StatusOr<PromptRestored> RestorePrompt(std::span<const Token> prompt,
                                                           const PromptRestoreOptions& options,
                                                           PromptCache* cache, Engine* engine);

}  // namespace larder::llama
