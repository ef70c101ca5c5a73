// The digest chain of one request, which grows as tokens are computed.
//
// Ownership: a value; keeps the tokens.  Thread-safety: none.
// Limits: none of its own; 4 bytes for a token and 16 for a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "storage/format/block_key.h"
#include "storage/types.h"

namespace larder {

class TokenChain {
 public:
  // `seed`: the content's id (Session::Seed).
  explicit TokenChain(const Digest& seed) : seed_(seed) {}

  // Appends tokens, and the digest of each step of 16 tokens that is whole now.
  void Append(std::span<const uint32_t> tokens);
  // Appends those of the request's tokens from number `first` on that it does not have yet.
  // REQUIRES: first <= tokens().size(), and what it has already of `tokens` is equal.
  void Extend(size_t first, std::span<const uint32_t> tokens);

  [[nodiscard]] std::span<const uint32_t> tokens() const { return tokens_; }
  // Returns the digest of each whole step, for Session::BeginPromise and Lookup.
  [[nodiscard]] std::span<const Digest> steps() const { return steps_; }

  // The blocks of `block_tokens` tokens, a multiple of 16, by their numbers from the beginning.
  [[nodiscard]] size_t Blocks(uint32_t block_tokens) const { return tokens_.size() / block_tokens; }
  // REQUIRES, for each of these: block < Blocks(block_tokens).
  [[nodiscard]] const Digest& DigestOf(size_t block, uint32_t block_tokens) const {
    return steps_[(block + 1) * (block_tokens / kStepTokens) - 1];
  }
  // Returns the digest of the block before, or the seed for the first block.
  [[nodiscard]] const Digest& ParentOf(size_t block, uint32_t block_tokens) const {
    return block == 0 ? seed_ : DigestOf(block - 1, block_tokens);
  }
  [[nodiscard]] std::span<const uint32_t> TokensOf(size_t block, uint32_t block_tokens) const {
    return std::span(tokens_).subspan(block * block_tokens, block_tokens);
  }

 private:
  Digest seed_;
  std::vector<uint32_t> tokens_;
  std::vector<Digest> steps_;
};

}  // namespace larder
