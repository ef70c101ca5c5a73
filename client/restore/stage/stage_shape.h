// How the prefix of one request is divided on one stage: blocks, which are stored, and chunks,
// which an engine usually computes in one step.
//
// An engine may also compute a part of a chunk: one or more cuts (RequestSpec::cut_tokens).
// Ownership: a value.
#pragma once

#include <algorithm>
#include <cstdint>

#include "client/restore/costs/layers.h"
#include "client/restore/request/request.h"

namespace larder {

struct StageShape {
  StageShape(const RequestSpec& request, const StageSpec& stage)
      : block_tokens(request.block_tokens),
        chunk_tokens(request.chunk_tokens),
        cut_tokens(request.cut_tokens),
        blocks(request.tokens / request.block_tokens),
        chunk_blocks(std::max(request.chunk_tokens / request.block_tokens, 1u)),
        have_blocks(request.have_tokens / request.block_tokens),
        chunks((blocks + chunk_blocks - 1) / chunk_blocks),
        layers(stage.layers.count()),
        first_layer(stage.layers.begin) {}

  [[nodiscard]] uint32_t ChunkOf(uint32_t block) const { return block / chunk_blocks; }
  [[nodiscard]] uint32_t ChunkBegin(uint32_t chunk) const { return chunk * chunk_blocks; }
  [[nodiscard]] uint32_t ChunkEnd(uint32_t chunk) const {  // in blocks
    return std::min((chunk + 1) * chunk_blocks, blocks);
  }
  [[nodiscard]] TokenRange TokensOf(uint32_t block) const {
    return {block * block_tokens, (block + 1) * block_tokens};
  }
  [[nodiscard]] TokenRange ChunkTokens(uint32_t chunk) const {
    return {TokensOf(ChunkBegin(chunk)).begin, TokensOf(ChunkEnd(chunk) - 1).end};
  }
  // Returns the tokens that must be computed if this block must be: its chunk, or, if the request
  // has cut_tokens, its cut.  If a chunk ends with less than a cut, those tokens belong to the cut
  // before them.
  [[nodiscard]] TokenRange CutOf(uint32_t block) const;
  // Returns as many whole cuts from the beginning of `tokens` on as `tokens_max` allows.  The last
  // cut of the prefix may be longer than cut_tokens, but counts as cut_tokens.  Without cut_tokens,
  // returns at most the first `tokens_max` tokens.
  [[nodiscard]] TokenRange Within(TokenRange tokens, uint32_t tokens_max) const;
  // Returns layers of the stage as layers of the model.
  [[nodiscard]] StageLayers ModelLayers(StageLayers of_stage) const {
    return {static_cast<uint16_t>(first_layer + of_stage.begin),
            static_cast<uint16_t>(first_layer + of_stage.end)};
  }
  [[nodiscard]] StageLayers all_layers() const { return {0, layers}; }
  [[nodiscard]] bool cuts() const { return cut_tokens > 0; }

  uint32_t block_tokens;
  uint32_t chunk_tokens;
  uint32_t cut_tokens;
  uint32_t blocks;
  uint32_t chunk_blocks;
  uint32_t have_blocks;  // the engine has them already
  uint32_t chunks;
  uint16_t layers;
  uint16_t first_layer;  // within the model
};

}  // namespace larder
