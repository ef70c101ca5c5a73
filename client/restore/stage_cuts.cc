// Where an engine that computes whole chunks may cut one: between tokens.
#include <algorithm>

#include "client/restore/stage_state.h"

namespace larder {

// What a step that has some of this block has at least: the chunk, or what is cut of it.  Less than
// a cut at the end of a chunk belongs to the one before it.
TokenRange StageState::CutOf(uint32_t block) const {
  const TokenRange chunk = ChunkTokens(ChunkOf(block));
  if (cut_tokens_ == 0) return chunk;
  const uint32_t cuts = std::max((chunk.end - chunk.begin) / cut_tokens_, 1u);
  const uint32_t cut = std::min((block * block_tokens_ - chunk.begin) / cut_tokens_, cuts - 1);
  const uint32_t begin = chunk.begin + cut * cut_tokens_;
  return {begin, cut + 1 == cuts ? chunk.end : begin + cut_tokens_};
}

// Neither there nor claimed, some of it.
bool StageState::IsOpen(uint32_t block) const {
  const LayerSet lacks = Full() - Present(block) - LayerSet({0, ComputeClaim(block)});
  for (uint16_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!(lacks - asked_[At(rank, block)] - landed_[At(rank, block)]).empty()) return true;
  }
  return false;
}

// All of it, or, where it may be cut, from the first block that is not there to the last.
StageState::Rest StageState::RestOf(uint32_t chunk) const {
  const TokenRange all = ChunkTokens(chunk);
  if (cut_tokens_ == 0) return {all, all.begin};
  Rest rest{{all.end, all.begin}, all.end};
  for (uint32_t b = chunk * chunk_blocks_; b < ChunkEnd(chunk); ++b) {
    if ((Full() - Present(b) - LayerSet({0, ComputeClaim(b)})).empty()) continue;
    const TokenRange cut = CutOf(b);
    rest.tokens = {std::min(rest.tokens.begin, cut.begin), cut.end};
    if (IsOpen(b)) rest.unclaimed_from = std::min(rest.unclaimed_from, cut.begin);
  }
  if (rest.tokens.begin > rest.tokens.end) rest.tokens.end = rest.tokens.begin;
  return rest;
}

// Not beyond the first hole, for what is behind that may be loaded meanwhile.
TokenRange StageState::UpToHole(TokenRange tokens) const {
  if (cut_tokens_ == 0) return tokens;
  for (const Region& region : regions_) {
    const uint32_t behind = region.begin * block_tokens_;
    if (behind > tokens.begin) return {tokens.begin, std::min(tokens.end, behind)};
  }
  return tokens;
}

// Without what loads have at its end, unless they have all of it.
TokenRange StageState::Trimmed(TokenRange tokens) const {
  if (cut_tokens_ == 0) return tokens;
  for (uint32_t b = tokens.end / block_tokens_; b-- > tokens.begin / block_tokens_;) {
    if (IsOpen(b)) return {tokens.begin, CutOf(b).end};
  }
  return tokens;
}

// As many whole cuts from its beginning on as these tokens allow; the last of a chunk may be more.
TokenRange StageState::Within(TokenRange tokens, uint32_t tokens_max) const {
  if (tokens.end - tokens.begin <= tokens_max) return tokens;
  if (cut_tokens_ == 0) return {tokens.begin, tokens.begin + tokens_max};
  const uint32_t end = tokens.begin + tokens_max / cut_tokens_ * cut_tokens_;
  if (end == tokens.begin) return {tokens.begin, tokens.begin};
  return {tokens.begin, CutOf(end / block_tokens_ - 1).end};
}

}  // namespace larder
