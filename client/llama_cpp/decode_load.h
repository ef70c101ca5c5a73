// Sequences that an engine decodes beside the text, one token of each at a time, as one does that
// serves several people.  Keeps the time between the ends of two such steps: what they see of it.
//
// Ownership: borrows the engine.  Thread-safety: none.
// Lifecycle: Start -> Step...
// Limits: Engine::kOthersMax sequences; one that gets too long begins anew.
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

  // Gives each sequence a beginning of its own out of `text`, and decodes some tokens to know what
  // a step takes.  REQUIRES: text is not empty.
  [[nodiscard]] absl::Status Start(std::span<const Token> text);
  [[nodiscard]] absl::Status Step();
  // What came before does not count: the next gap begins now.
  void Restart();

  [[nodiscard]] uint32_t sequences() const { return static_cast<uint32_t>(next_.size()); }
  // Of a step with nothing between it and the one before; the slowest of some.
  [[nodiscard]] double step_s() const { return step_s_; }
  // From the end of a step to the end of the next.
  [[nodiscard]] const std::vector<double>& gaps_s() const { return gaps_s_; }

 private:
  [[nodiscard]] absl::Status Begin();

  Engine* const engine_;
  std::vector<Token> text_;               // that they begin with
  std::vector<Engine::OtherToken> next_;  // a sequence each: what is computed next
  double step_s_ = 0;
  TimePoint last_ = {};
  std::vector<double> gaps_s_;
};

}  // namespace larder::llama
