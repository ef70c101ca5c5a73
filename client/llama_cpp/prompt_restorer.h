// Restores the beginning of a prompt into an Engine by computing its head and loading its tail at
// the same time.  It connects a PromptCache's session, an Engine and a Restorer.
//
// The engine computes chunks of Engine::kBatchTokens tokens, with the borders that computing the
// whole prompt would have, or parts of them that begin at multiples of Engine::kCutTokens.  Loaded
// blocks are appended in ascending order.  So the engine's cache holds the bits that computing the
// whole prompt would have left.  Lookup says whether a block is in the daemon's pool or on its
// disk.
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
#include "client/restorer.h"
#include "storage/token_bucket.h"

namespace larder::llama {

// The channels of PromptRestoreOptions::profile.
inline constexpr ChannelId kPoolChannel{1}, kDiskChannel{2};

struct PromptRestoreOptions {
  Profile profile = {};
  bool falls_back = true;       // false: compute and load even if one alone would finish sooner
  TokenBucket* link = nullptr;  // an emulated link, which the channels share
  // Other sequences, which are decoded between the steps of the restore.  null: none.
  DecodeLoad* beside = nullptr;
  // With `beside`: a step of the restore and the decoding after it are planned to last at most this
  // long together.  A step may take longer: it is not cut to fewer than Engine::kCutTokens tokens.
  double decode_budget_s = 0;
};

struct PromptRestored {
  Restorer::Restored what;
  Profile learnt = {};
  uint32_t stored_tokens = 0;  // before the first block that the daemon lacks
  absl::Status lookup = {};    // the error of Lookup; then everything was computed
  // Returns where computing and loading met: everything behind this token was loaded.
  [[nodiscard]] uint32_t met_at_token() const;
};

// Puts all tokens that a restore may cover (PromptCache::RestorableTokens) into the engine.
// A failed Lookup is no error.  After an error, the engine may have part of the text.
// REQUIRES: the engine's text is empty; options.profile has the engine's number of layers, and
// kPoolChannel and kDiskChannel.
[[nodiscard]] absl::StatusOr<PromptRestored> RestorePrompt(std::span<const Token> prompt,
                                                           const PromptRestoreOptions& options,
                                                           PromptCache* cache, Engine* engine);

}  // namespace larder::llama
