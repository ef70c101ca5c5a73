// What a request must be.
#include "client/restore/request.h"

#include <algorithm>
#include <string>

#include "storage/status_macros.h"

namespace larder {
namespace {

absl::Status Wrong(const std::string& what) {
  return absl::InvalidArgumentError("restore: " + what);
}

absl::Status CheckCopy(const Copy& copy, uint32_t blocks) {
  if (copy.channel_of_block.size() != blocks)
    return Wrong("every block needs a channel, or kNowhere");
  if (!(copy.block_bytes > 0)) return Wrong("a block has bytes");
  return absl::OkStatus();
}

absl::Status CheckStage(const StageSpec& stage, uint32_t blocks, uint16_t layers) {
  if (stage.layers.empty() || stage.layers.end > layers || stage.layers.count() > kStageLayersMax) {
    return Wrong("a stage has layers of the model, at most 128");
  }
  if (stage.ranks.empty()) return Wrong("a stage has at least one rank");
  for (const Copy& copy : stage.ranks) {
    LARDER_RETURN_IF_ERROR(CheckCopy(copy, blocks));
  }
  if (stage.boundary.channel_of_block.empty()) return absl::OkStatus();
  LARDER_RETURN_IF_ERROR(CheckCopy(stage.boundary, blocks));
  const auto& channels = stage.boundary.channel_of_block;
  if (std::find(channels.begin(), channels.end(), ChannelId::kNowhere) == channels.end())
    return absl::OkStatus();
  return Wrong(
      "activations have no holes: restore such a stage without, as part of the one before");
}

absl::Status CheckGrid(const RequestSpec& spec) {
  const bool nothing = spec.tokens == 0 && spec.suffix_tokens == 0;
  if (nothing || spec.block_tokens == 0 || spec.chunk_tokens == 0) {
    return Wrong("tokens, block_tokens and chunk_tokens are above 0");
  }
  if (spec.tokens % spec.block_tokens != 0) return Wrong("a prefix is whole blocks");
  const auto [small, large] = std::minmax(spec.block_tokens, spec.chunk_tokens);
  if (large % small != 0) return Wrong("chunks are whole blocks, or blocks whole chunks");
  if (spec.cut_tokens == 0) return absl::OkStatus();
  if (spec.cut_tokens % spec.block_tokens != 0 || spec.chunk_tokens % spec.cut_tokens != 0)
    return Wrong("what a chunk is cut into is whole blocks, and divides it");
  if (spec.stages.size() > 1 || !spec.depths.empty())
    return Wrong("chunks are cut on one stage alone, and not at given depths");
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const RequestSpec& spec, uint16_t layers) {
  if (!spec.id) return Wrong("a request has an id");
  LARDER_RETURN_IF_ERROR(CheckGrid(spec));
  if (spec.stages.empty()) return Wrong("there is at least one stage");
  if (spec.suffix_tokens > 0 && spec.stages.size() > 1)
    return Wrong("the suffix of several stages is the engine's");
  for (const StageSpec& stage : spec.stages) {
    LARDER_RETURN_IF_ERROR(CheckStage(stage, spec.tokens / spec.block_tokens, layers));
  }
  if (spec.depths.empty()) return absl::OkStatus();
  const uint32_t step = std::max(spec.block_tokens, spec.chunk_tokens);
  if (spec.stages.size() > 1 || spec.depths.size() != (spec.tokens + step - 1) / step) {
    return Wrong("depths are given for each chunk of one stage");
  }
  if (!std::is_sorted(spec.depths.rbegin(), spec.depths.rend()) ||
      spec.depths[0] > spec.stages[0].layers.count()) {
    return Wrong("depths never increase, and are layers of the stage");
  }
  return absl::OkStatus();
}

}  // namespace larder
