// Joins an Engine to Larder: what of a prompt is in the pool goes into the engine, what the engine
// computed goes into the pool.  A user of client/client.h like any other.
//
// Blocks are 32 tokens, one segment per layer.  A restore covers whole blocks of the first n-1 of n
// tokens, so that there is always a token left whose computation gives the first word of the
// answer.
//
// What it does not promise: a hit.  A missing, damaged or late block ends the restored prefix; the
// engine computes from there, and its answer is the same.
// Ownership: owns its connection; the Engine is the caller's.
// Thread-safety: none; one thread at a time.
// Lifecycle: Connect -> [Restore -> Store]...
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
#include "client/llama_cpp/token_bucket.h"

namespace larder::llama {

struct PromptCacheOptions {
  std::string socket_dir = {};  // "": the client library's default
  std::string engine_id = "llama-0";
  std::string model = {};     // name of the model, part of the content
  std::string revision = {};  // what names its weights
  std::string salt = {};      // keeps apart what must not be shared
};

class PromptCache {
 public:
  static constexpr uint32_t kBlockTokens = 32;

  // Tokens of a prompt of `tokens` that are stored, and that a restore may cover: whole blocks of
  // all but the last token, and none of a batch of fewer than Engine::kCutTokens, which a longer
  // prompt would compute otherwise.
  [[nodiscard]] static constexpr uint32_t RestorableTokens(size_t tokens) {
    const auto most = static_cast<uint32_t>(tokens == 0 ? 0 : tokens - 1);
    const uint32_t blocks = most - most % kBlockTokens, last = blocks % Engine::kBatchTokens;
    return last < Engine::kCutTokens ? blocks - last : blocks;
  }

  // Connects and registers the model.  Unavailable when no daemon answers.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PromptCache>> Connect(
      const PromptCacheOptions& options, const StateShape& shape);

  struct Restored {
    uint32_t tokens = 0;  // now in the engine's cache: positions [0, tokens)
    ByteCount bytes;      // of rows that came from Larder
    absl::Status
        status;  // why it ended early, when not because blocks are missing; the engine is fine
  };
  // Puts the longest prefix that the pool has into the engine, whose cache is empty.  `link`, if
  // any, is emulated: bytes count as here when it would have carried them.
  [[nodiscard]] Restored Restore(std::span<const Token> prompt, Engine* engine,
                                 TokenBucket* link = nullptr);

  struct Stored {
    uint32_t blocks = 0;  // new in the pool
    uint32_t known = 0;   // the pool had them already
    uint32_t refused = 0;
    ByteCount bytes;  // of the new ones
  };
  // Stores the blocks of `prompt` that are restorable and lie behind its first `known_tokens`.
  // REQUIRES: the engine's cache holds at least the positions of `prompt`.
  [[nodiscard]] absl::StatusOr<Stored> Store(std::span<const Token> prompt, uint32_t known_tokens,
                                             Engine* engine);

  // Of each whole block of `prompt`, the digest of its last step.
  [[nodiscard]] std::vector<Digest> BlockDigests(std::span<const Token> prompt) const;
  // Of each whole block of `prompt`, the fastest tier that has it; nullopt: none.  DeadlineExceeded
  // after `limit`.
  [[nodiscard]] absl::StatusOr<std::vector<std::optional<Tier>>> Tiers(
      std::span<const Token> prompt, std::chrono::milliseconds limit);
  // Takes from the daemon all that is stored under these options; nothing can be stored or restored
  // afterwards.
  [[nodiscard]] absl::Status Clear();
  // For who moves blocks by himself.
  [[nodiscard]] Session& session() { return *session_; }
  [[nodiscard]] const VariantHandle& variant() const { return variant_; }
  [[nodiscard]] const StateShape& shape() const { return shape_; }

  // Waits until so many of the stored blocks are on the daemon's disk; false: not in `limit`.
  [[nodiscard]] bool WaitDurable(uint32_t blocks, std::chrono::milliseconds limit) const;

 private:
  // Blocks per call.  Enough to make a call's own cost small, few enough to stay near the
  // processor's caches.
  static constexpr uint32_t kBatchBlocks = 64;

  explicit PromptCache(const StateShape& shape);
  // Gets blocks [first, first + digests.size()) into the joiner; how many came before one did not.
  [[nodiscard]] absl::StatusOr<uint32_t> FetchBatch(std::span<const Digest> digests, uint32_t first,
                                                    StateJoiner* joiner);
  // Puts blocks [first, last) of `prompt`.
  [[nodiscard]] absl::Status StoreBatch(std::span<const Token> prompt,
                                        std::span<const Digest> digests, uint32_t first,
                                        uint32_t last, const StateView& state, Stored* stored);

  const StateShape shape_;
  const ByteCount block_bytes_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<Session> session_;  // dies before its client
  VariantHandle variant_;
  ContentSpec content_;
  std::string engine_id_;
  Digest seed_;
  const std::unique_ptr<std::byte[]> batch_;  // kBatchBlocks blocks, packed
  // [block of the batch][layer], into batch_: once to write there and once to read.
  std::vector<std::vector<std::span<std::byte>>> segments_;
  std::vector<std::vector<std::span<const std::byte>>> const_segments_;
};

}  // namespace larder::llama
