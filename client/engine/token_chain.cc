#include "client/engine/token_chain.h"

namespace larder {

void TokenChain::Append(std::span<const uint32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  AppendChain(steps_.empty() ? seed_ : steps_.back(),
              std::span(tokens_).subspan(steps_.size() * kStepTokens), &steps_);
}

void TokenChain::GrowTo(std::span<const uint32_t> all) {
  if (all.size() > tokens_.size()) Append(all.subspan(tokens_.size()));
}

}  // namespace larder
