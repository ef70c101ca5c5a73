#include "client/engine/token_chain.h"

#include "storage/check.h"

namespace larder {

void TokenChain::Append(std::span<const uint32_t> tokens) {
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  AppendChain(steps_.empty() ? seed_ : steps_.back(),
              std::span(tokens_).subspan(steps_.size() * kStepTokens), &steps_);
}

void TokenChain::Extend(size_t first, std::span<const uint32_t> tokens) {
  LARDER_CHECK(first <= tokens_.size());
  const size_t known = tokens_.size() - first;
  if (tokens.size() > known) Append(tokens.subspan(known));
}

}  // namespace larder
