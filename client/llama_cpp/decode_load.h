// Decodes several other sequences while the engine restores a text, one token of each sequence per
// step, like an engine that serves several users.  Records the times between such steps.
//
// Ownership: borrows the engine.  Thread-safety: none.
// Lifecycle: Start -> (Restart) -> Step...
// Limits: Engine::kOthersMax sequences.  All sequences begin again each time that they have
// Engine::kOtherTokensMax tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/llama_cpp/engine.h"
#include "storage/clock.h"

namespace larder::llama {

class DecodeLoad {
 public:
  // REQUIRES: 1 <= sequences <= Engine::kOthersMax.
  DecodeLoad(Engine* engine, uint32_t sequences);

  // Begins each sequence with 8 tokens of `text`, different ones if the text is long enough, and
  // decodes five steps to learn how long a step takes.  REQUIRES: `text` is not empty.
  [[nodiscard]] absl::Status Start(std::span<const Token> text);
  [[nodiscard]] absl::Status Step();
  // Makes the next entry of gaps_s() count from now, not from the end of the last step.
  void Restart();

  [[nodiscard]] uint32_t sequences() const { return static_cast<uint32_t>(next_.size()); }
  // Seconds of a step: the slowest of the five that Start decoded one right after the other.
  [[nodiscard]] double step_s() const { return step_s_; }
  // Seconds from the end of each step, or from a Restart after it, to the end of the next step.
  // The steps of Start do not count.
  [[nodiscard]] const std::vector<double>& gaps_s() const { return gaps_s_; }

 private:
  [[nodiscard]] absl::Status Begin();

  Engine* const engine_;
  std::vector<Token> text_;               // the sequences begin with its tokens
  std::vector<Engine::OtherToken> next_;  // per sequence, the token to compute next
  double step_s_ = 0;
  TimePoint last_ = {};
  std::vector<double> gaps_s_;
};

}  // namespace larder::llama
