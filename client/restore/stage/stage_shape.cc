#include "client/restore/stage/stage_shape.h"

namespace larder {

TokenRange StageShape::CutOf(uint32_t block) const {
  const TokenRange chunk = ChunkTokens(ChunkOf(block));
  if (!cuts()) return chunk;
  const uint32_t count = std::max((chunk.end - chunk.begin) / cut_tokens, 1u);
  const uint32_t cut = std::min((block * block_tokens - chunk.begin) / cut_tokens, count - 1);
  const uint32_t begin = chunk.begin + cut * cut_tokens;
  return {begin, cut + 1 == count ? chunk.end : begin + cut_tokens};
}

TokenRange StageShape::Within(TokenRange tokens, uint32_t tokens_max) const {
  if (tokens.end - tokens.begin <= tokens_max) return tokens;
  if (!cuts()) return {tokens.begin, tokens.begin + tokens_max};
  const uint32_t end = tokens.begin + tokens_max / cut_tokens * cut_tokens;
  if (end == tokens.begin) return {tokens.begin, tokens.begin};
  return {tokens.begin, CutOf(end / block_tokens - 1).end};
}

}  // namespace larder
