#include "client/llama_cpp/decode_load.h"

#include <algorithm>
#include <chrono>

#include "absl/status/statusor.h"
#include "storage/check.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder::llama {
namespace {

constexpr uint32_t kBeginTokens = 8;  // with which Begin starts each sequence
constexpr int kTrySteps = 5;

double SecondsBetween(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

DecodeLoad::DecodeLoad(Engine* engine, uint32_t sequences) : engine_(engine), next_(sequences) {
  LARDER_CHECK(sequences >= 1 && sequences <= Engine::kOthersMax);
}

absl::Status DecodeLoad::Start(std::span<const Token> text) {
  text_.assign(text.begin(), text.end());
  LARDER_RETURN_IF_ERROR(Begin());
  Restart();
  for (int i = 0; i < kTrySteps; ++i) {
    LARDER_RETURN_IF_ERROR(Step());
  }
  step_s_ = *std::max_element(gaps_s_.begin(), gaps_s_.end());
  gaps_s_.clear();
  return absl::OkStatus();
}

absl::Status DecodeLoad::Begin() {
  LARDER_RETURN_IF_ERROR(engine_->ResetOthers());
  std::vector<Engine::OtherToken> begin;
  for (uint32_t i = 0; i < sequences(); ++i) {
    for (uint32_t position = 0; position < kBeginTokens; ++position)
      begin.push_back({i, position, text_[(i * kBeginTokens + position) % text_.size()]});
  }
  LARDER_ASSIGN_OR_RETURN(const std::vector<Token> words, engine_->DecodeOthers(begin));
  for (uint32_t i = 0; i < sequences(); ++i)
    next_[i] = {i, kBeginTokens, words[(i + 1) * kBeginTokens - 1]};
  return absl::OkStatus();
}

absl::Status DecodeLoad::Step() {
  if (next_[0].position == Engine::kOtherTokensMax) {
    LARDER_RETURN_IF_ERROR(Begin());
  }
  LARDER_ASSIGN_OR_RETURN(const std::vector<Token> words, engine_->DecodeOthers(next_));
  for (uint32_t i = 0; i < sequences(); ++i) {
    next_[i].token = words[i];
    ++next_[i].position;
  }
  const TimePoint now = SteadyNow();
  gaps_s_.push_back(SecondsBetween(last_, now));
  last_ = now;
  return absl::OkStatus();
}

void DecodeLoad::Restart() { last_ = SteadyNow(); }

}  // namespace larder::llama
