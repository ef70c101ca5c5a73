// One llama.cpp model and its contexts, through llama.cpp's public C API.
//
// Sequence 0 holds the text.  Decode computes tokens at the end of the text, and AppendState
// appends tokens whose KV was computed before.  SaveState and LoadState move the whole KV of the
// text as bytes (state_blob.h).  The settings are those under which a restored context gives the
// same bits as a computed one: one unified KV stream, f16 KV, flash attention (values in rows),
// batches of 256 tokens or parts of them (kCutTokens).  Sequences other than the text can be
// decoded (DecodeOthers) in a context of their own: in the text's context, their KV entries would
// lie between those of the text and change the last bits of the text's results.
//
// What it does not promise: equal bits on other machines, with other llama.cpp versions, or with
// batch cuts other than those of kCutTokens.
// Ownership: owns model and contexts; spans that it returns are valid until the next call.
// Thread-safety: none; one thread may call at a time.  llama.cpp itself computes on `threads`
// threads.
// Lifecycle: Load -> [ResetContext -> (LoadState) -> Decode | AppendState... -> SaveState]...
// Limits: positions below `context_tokens`; Decode returns OutOfRange beyond that.
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
  // The most tokens that one batch computes.  The batches of a Decode end at multiples of it, and
  // at the end of the Decode.
  static constexpr uint32_t kBatchTokens = 256;

  // Loads the model, makes a context and computes one batch, so that the first prompt does not pay
  // for warming up.  Returns NotFound if there is no such file, InvalidArgument if llama.cpp cannot
  // load it or the model's states have another form than state_blob.h reads, or another error.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Engine>> Load(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Puts the model's chat template around one message of a user.  Returns the message unchanged if
  // the model has no template that llama.cpp knows.
  [[nodiscard]] std::string ChatPrompt(const std::string& message) const;
  // Returns the tokens of `text`, with those that the model adds at the ends.  Special tokens that
  // are spelled out in the text (as ChatPrompt does) become single tokens.  Returns InvalidArgument
  // if llama.cpp cannot tokenize the text.
  [[nodiscard]] absl::StatusOr<std::vector<Token>> Tokenize(const std::string& text) const;
  [[nodiscard]] std::string Text(std::span<const Token> tokens) const;
  [[nodiscard]] bool EndsAnswer(Token token) const;

  // Makes a new context with an empty KV cache, so that nothing computed for the last text is left.
  // Returns ResourceExhausted if llama.cpp cannot make it; then the engine has no context.
  [[nodiscard]] absl::Status ResetContext();

  // Computes prompt[begin, end) at positions [begin, end), in batches that end at multiples of
  // kBatchTokens and at `end`.  Returns OutOfRange if `end` is above context_tokens(), Internal if
  // llama.cpp fails.
  // REQUIRES: begin < end <= prompt.size(); the cache holds positions [0, begin) and no others.
  [[nodiscard]] absl::Status Decode(std::span<const Token> prompt, uint32_t begin, uint32_t end);
  // Logits of the last token that Decode computed, one for each token of the vocabulary.
  [[nodiscard]] std::span<const float> Logits() const { return LogitsOf(context_.get(), -1); }
  // The token with the largest logit; the first of them if several are equal.
  [[nodiscard]] Token Greedy() const;

  // A chunk is what one batch would compute.  Computed in several batches, it has the same bits if
  // each begins and ends at a multiple of kCutTokens (or ends with the chunk) and has at least
  // kCutTokens tokens (unless the chunk has fewer): llama.cpp's attention takes this many rows at
  // once, and computes fewer rows in another way, which gives other bits.
  static constexpr uint32_t kCutTokens = 64;
  // Returns the last position at or before `tokens` from which the rest of a prefix of `prefix`
  // tokens may be computed with the bits that computing the whole prefix gives.  REQUIRES: tokens <
  // prefix.
  [[nodiscard]] static uint32_t CutBelow(uint32_t tokens, uint32_t prefix);

  // The next token of a sequence other than the text; `sequence` counts from 0.
  struct OtherToken {
    uint32_t sequence = 0;
    uint32_t position = 0;
    Token token = 0;
  };
  static constexpr uint32_t kOthersMax = 6;
  static constexpr uint32_t kOtherTokensMax = 512;  // of each sequence
  // Removes all tokens of the sequences other than the text.  The first call makes their context;
  // returns ResourceExhausted if llama.cpp cannot make it.
  [[nodiscard]] absl::Status ResetOthers();
  // Computes these tokens in one batch, and returns the most likely next token after each of them.
  // Returns Internal if llama.cpp fails.
  // REQUIRES: ResetOthers was called; 1 to kBatchTokens tokens; each sequence below kOthersMax, its
  // positions without a gap and below kOtherTokensMax.
  [[nodiscard]] absl::StatusOr<std::vector<Token>> DecodeOthers(std::span<const OtherToken> tokens);

  [[nodiscard]] absl::StatusOr<std::vector<std::byte>> SaveState();
  // Replaces what the cache holds by `state`.  Returns Internal if llama.cpp refuses the state;
  // then the cache is empty and usable.
  [[nodiscard]] absl::Status LoadState(std::span<const std::byte> state);
  // Appends `state` to the text.  Later tokens then attend to it as if it had been computed there.
  // Returns Internal if llama.cpp refuses the state; then the text is unchanged.
  // REQUIRES: the positions of `state` (StateJoiner) begin where the text ends.
  [[nodiscard]] absl::Status AppendState(std::span<const std::byte> state);

  // The form of this model's states (state_blob.h).
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
  std::unique_ptr<llama_context, FreeContext> context_;  // destroyed before its model
  std::unique_ptr<llama_context, FreeContext> others_;   // null until the first ResetOthers
  StateShape shape_;
};

}  // namespace larder::llama
