// One llama.cpp model and one context, through llama.cpp's public C API.
//
// Sequence 0 holds the text.  Decode computes tokens at its end, AppendState puts some there that
// were computed before; SaveState and LoadState move its whole KV as bytes (state_blob.h).  The
// settings are those under which a restored context gives the same bits as a computed one: one
// unified KV stream, f16 KV, flash attention (rows of values), batches of 256 tokens or parts of
// them (kCutTokens), no repacked weights.  Other sequences can be decoded beside the text
// (DecodeOthers), in a context of their own: in the text's, their cells between its own would
// change its last bits.
//
// What it does not promise: equal bits between other batch cuts, machines or llama.cpp versions.
// Ownership: owns model and context; spans that it returns are valid until the next call.
// Thread-safety: none; one thread at a time.  llama.cpp itself uses `threads` of its own.
// Lifecycle: Load -> [ResetContext -> (LoadState) -> Decode | AppendState... -> SaveState]...
// Limits: what the model and `context_tokens` allow; Decode beyond it is OutOfRange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/llama_cpp/state_blob.h"

struct llama_context;
struct llama_model;

namespace larder::llama {

using Token = uint32_t;

struct EngineOptions {
  std::string model_path;  // a GGUF file
  uint32_t context_tokens = 8192;
  uint32_t threads = 0;  // 0: one per core
};

class Engine {
 public:
  // Tokens that one batch computes at most.  Batches of one prompt end at multiples of it.
  static constexpr uint32_t kBatchTokens = 256;

  // Loads the model, makes a context and computes a few tokens so that the first prompt finds
  // everything warm. NotFound when there is no such file; InvalidArgument when llama.cpp cannot use
  // it, or its states are not rows.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The model's chat template around one message of a user, or the message alone when the model has
  // none.
  [[nodiscard]] std::string ChatPrompt(const std::string& message) const;
  // Special tokens in the text (as ChatPrompt writes them) become what they name.
  [[nodiscard]] absl::StatusOr<std::vector<Token>> Tokenize(const std::string& text) const;
  [[nodiscard]] std::string Text(std::span<const Token> tokens) const;
  [[nodiscard]] bool EndsAnswer(Token token) const;

  // A new context with an empty KV cache: nothing of what was computed of the text is left.
  [[nodiscard]] absl::Status ResetContext();

  // Computes prompt[begin, end) at those positions, in batches that end at multiples of
  // kBatchTokens.
  // REQUIRES: begin < end <= prompt.size(); positions [0, begin) are in the cache and no others.
  [[nodiscard]] absl::Status Decode(std::span<const Token> prompt, uint32_t begin, uint32_t end);
  // Of the last decoded token, one value per word of the vocabulary.
  [[nodiscard]] std::span<const float> Logits() const { return LogitsOf(context_.get(), -1); }
  // The first of the largest logits.
  [[nodiscard]] Token Greedy() const;

  // A chunk, which is what one batch would compute, may be computed in several that begin and end
  // at multiples of this, and nowhere else, and none may have less, unless the chunk has: that is
  // how many rows llama.cpp's attention takes at once, and it computes fewer in another way.
  static constexpr uint32_t kCutTokens = 64;
  // The last place up to `tokens` from which the rest of a prefix of so many may be computed.
  // REQUIRES: tokens < prefix.
  [[nodiscard]] static uint32_t CutBelow(uint32_t tokens, uint32_t prefix);

  // One more token of a sequence that is not the text: `sequence` counts from 0.
  struct OtherToken {
    uint32_t sequence = 0;
    uint32_t position = 0;
    Token token = 0;
  };
  static constexpr uint32_t kOthersMax = 6;
  static constexpr uint32_t kOtherTokensMax = 512;  // of each
  // No sequence but the text has any tokens now.
  [[nodiscard]] absl::Status ResetOthers();
  // Computes them in one batch; answers the most likely next token of each.
  // REQUIRES: ResetOthers was called; at most kBatchTokens; each sequence below kOthersMax, its
  // positions without a gap and below kOtherTokensMax.
  [[nodiscard]] absl::StatusOr<std::vector<Token>> DecodeOthers(std::span<const OtherToken> tokens);

  [[nodiscard]] absl::StatusOr<std::vector<std::byte>> SaveState();
  // Puts `state` in the place of what the cache holds.  On an error the cache is empty and usable.
  [[nodiscard]] absl::Status LoadState(std::span<const std::byte> state);
  // Puts `state` behind the text.  Later tokens then attend to it as if it had been computed there:
  // cells of the cache are in the order of positions.  On an error the text is what it was.
  // REQUIRES: its positions (StateJoiner) begin where the text ends.
  [[nodiscard]] absl::Status AppendState(std::span<const std::byte> state);

  // What this model's states look like.
  [[nodiscard]] const StateShape& shape() const { return shape_; }
  [[nodiscard]] uint32_t context_tokens() const { return options_.context_tokens; }
  [[nodiscard]] uint32_t threads() const { return options_.threads; }

 private:
  struct FreeModel {
    void operator()(llama_model* model) const;
  };
  struct FreeContext {
    void operator()(llama_context* context) const;
  };

  explicit Engine(const EngineOptions& options);
  [[nodiscard]] absl::Status WarmUp();
  [[nodiscard]] std::span<const float> LogitsOf(llama_context* context, int32_t index) const;
  void Clear();

  const EngineOptions options_;
  std::unique_ptr<llama_model, FreeModel> model_;
  std::unique_ptr<llama_context, FreeContext> context_;  // dies before its model
  std::unique_ptr<llama_context, FreeContext> others_;   // null: none were asked for
  StateShape shape_;
};

}  // namespace larder::llama
