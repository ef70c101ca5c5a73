// Connects an Engine to Larder through client/client.h: copies blocks of a prompt from the daemon
// into the engine, and blocks that the engine computed to the daemon.
//
// Blocks have 32 tokens and one segment per layer.  A restore covers whole blocks of the first n-1
// of n tokens, so that at least one token is left to compute: the logits of the last one give the
// first token of the answer.
//
// What it does not promise: a hit.  A missing, damaged or late block ends the restored prefix; the
// engine computes the rest, and its answer is the same.
// Ownership: owns its connection; the caller owns the Engine.
// Thread-safety: none; one thread may call at a time.
// Lifecycle: Connect -> [Restore -> Store]... -> (Clear).
// Limits: prompts that fit the engine's context.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/llama_cpp/engine.h"
#include "client/llama_cpp/state_blob.h"
#include "storage/token_bucket.h"

namespace larder::llama {

struct PromptCacheOptions {
  std::string socket_dir = {};  // "": the client library's default
  std::string engine_id = "llama-0";
  std::string model = {};     // name of the model, part of the content
  std::string revision = {};  // name of its weights
  std::string salt = {};      // separates blocks that must not be shared
};

class PromptCache {
 public:
  static constexpr uint32_t kBlockTokens = 32;

  // Returns how many tokens of a prompt of `tokens` tokens are stored and may be restored: the
  // whole blocks of all but the last token, without a last batch of fewer than Engine::kCutTokens
  // tokens, which would have other bits in a longer prompt.
  [[nodiscard]] static constexpr uint32_t RestorableTokens(size_t tokens) {
    const auto most = static_cast<uint32_t>(tokens == 0 ? 0 : tokens - 1);
    const uint32_t blocks = most - most % kBlockTokens, last = blocks % Engine::kBatchTokens;
    return last < Engine::kCutTokens ? blocks - last : blocks;
  }

  // Connects, attaches and registers the model.  Returns the errors of Client::Connect (for
  // example Unavailable if no daemon answers), Client::Attach and Session::Register.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PromptCache>> Connect(
      const PromptCacheOptions& options, const StateShape& shape);

  struct Restored {
    uint32_t tokens = 0;  // the engine's cache now has positions [0, tokens)
    ByteCount bytes;      // rows that came from Larder
    // The error that ended the prefix early, or with which the engine refused the state.  A missing
    // or damaged block is no error.  The engine is usable in any case.
    absl::Status status;
  };
  // Loads the prefix that the daemon has, up to a position from which the engine may compute the
  // rest (Engine::CutBelow), and replaces what the engine's cache holds by that prefix.  If there
  // is no such prefix, the cache stays as it is.  If `link` is not null, Restore waits until that
  // emulated link would have carried the bytes.
  [[nodiscard]] Restored Restore(std::span<const Token> prompt, Engine* engine,
                                 TokenBucket* link = nullptr);

  struct Stored {
    uint32_t blocks = 0;  // new
    uint32_t known = 0;   // already stored
    uint32_t refused = 0;
    ByteCount bytes;  // of the new blocks
  };
  // Stores the blocks of `prompt` that may be restored (RestorableTokens), from the block of token
  // `known_tokens` on.
  // REQUIRES: the engine's cache holds positions [0, RestorableTokens(prompt.size())) of `prompt`.
  [[nodiscard]] absl::StatusOr<Stored> Store(std::span<const Token> prompt, uint32_t known_tokens,
                                             Engine* engine);

  // Returns for each whole block of `prompt` the digest that names it, the last of its digests.
  [[nodiscard]] std::vector<Digest> BlockDigests(std::span<const Token> prompt) const;
  // Returns for each whole block of `prompt` HOST if it is there, otherwise DISK if it is there,
  // otherwise nullopt.  Returns DeadlineExceeded if the daemon does not answer within `limit`, or
  // another error, for example if `prompt` is shorter than a block.
  [[nodiscard]] absl::StatusOr<std::vector<std::optional<Tier>>> Tiers(
      std::span<const Token> prompt, std::chrono::milliseconds limit);
  // Clears the blocks in HOST and on DISK that the daemon stores for this model, revision and salt;
  // pinned ones stay.  Ends the session, so nothing can be stored or restored afterwards.
  [[nodiscard]] absl::Status Clear();
  // For callers that move blocks themselves.
  [[nodiscard]] Session& session() { return *session_; }
  [[nodiscard]] const VariantHandle& variant() const { return variant_; }
  [[nodiscard]] const StateShape& shape() const { return shape_; }

  // Waits until at least `blocks` blocks that this session stored are on the daemon's disk.
  // Returns false if they are not within `limit`.
  [[nodiscard]] bool WaitDurable(uint32_t blocks, std::chrono::milliseconds limit) const;

 private:
  // The most blocks that one call of the session gets or puts.
  static constexpr uint32_t kBatchBlocks = 64;

  explicit PromptCache(const StateShape& shape);
  // Gets blocks [first, first + digests.size()), at most kBatchBlocks, into the joiner.  Returns
  // how many blocks it got before the first whose status is not OK.
  [[nodiscard]] absl::StatusOr<uint32_t> FetchBatch(std::span<const Digest> digests, uint32_t first,
                                                    StateJoiner* joiner);
  // Puts blocks [first, last) of `prompt`.
  [[nodiscard]] absl::Status StoreBatch(std::span<const Token> prompt,
                                        std::span<const Digest> digests, uint32_t first,
                                        uint32_t last, const StateView& state, Stored* stored);

  const StateShape shape_;
  const ByteCount block_bytes_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;  // destroyed before its client
  VariantHandle variant_;
  ContentSpec content_;
  std::string engine_id_;
  Digest seed_;
  const std::unique_ptr<std::byte[]> batch_;  // kBatchBlocks blocks, packed
  // Segments of batch_ to write, by block of the batch and by layer.  const_segments_ has the same
  // ones to read.
  std::vector<std::vector<std::span<std::byte>>> segments_;
  std::vector<std::vector<std::span<const std::byte>>> const_segments_;
};

}  // namespace larder::llama
