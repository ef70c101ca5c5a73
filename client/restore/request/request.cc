// Checks requests.
#include "client/restore/request/request.h"

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
    return Wrong("channel_of_block must have a channel or kNowhere for every block");
  if (!(copy.block_bytes > 0)) return Wrong("block_bytes must be above 0");
  return absl::OkStatus();
}

absl::Status CheckStage(const StageSpec& stage, uint32_t blocks, uint16_t layers) {
  if (stage.layers.empty() || stage.layers.end > layers || stage.layers.count() > kStageLayersMax) {
    return Wrong("a stage must have from 1 to 128 layers of the model");
  }
  if (stage.ranks.empty()) return Wrong("a stage must have at least one rank");
  for (const Copy& copy : stage.ranks) {
    LARDER_RETURN_IF_ERROR(CheckCopy(copy, blocks));
  }
  if (stage.boundary.channel_of_block.empty()) return absl::OkStatus();
  LARDER_RETURN_IF_ERROR(CheckCopy(stage.boundary, blocks));
  const auto& channels = stage.boundary.channel_of_block;
  if (std::find(channels.begin(), channels.end(), ChannelId::kNowhere) == channels.end())
    return absl::OkStatus();
  return Wrong(
      "a boundary must have activations for every block; otherwise make its stage part of the "
      "stage before it");
}

absl::Status CheckGrid(const RequestSpec& spec) {
  const bool nothing = spec.tokens == 0 && spec.suffix_tokens == 0;
  if (nothing || spec.block_tokens == 0 || spec.chunk_tokens == 0) {
    return Wrong("block_tokens, chunk_tokens, and tokens or suffix_tokens must be above 0");
  }
  if (spec.tokens % spec.block_tokens != 0)
    return Wrong("tokens must be a multiple of block_tokens, as a prefix is whole blocks");
  const auto [small, large] = std::minmax(spec.block_tokens, spec.chunk_tokens);
  if (large % small != 0)
    return Wrong("one of chunk_tokens and block_tokens must be a multiple of the other");
  if (spec.have_tokens > 0 &&
      (spec.cut_tokens != spec.block_tokens || spec.have_tokens % spec.block_tokens != 0 ||
       spec.have_tokens >= spec.tokens)) {
    return Wrong(
        "have_tokens must be whole blocks and less than tokens, and needs cut_tokens of one block");
  }
  if (spec.cut_tokens == 0) return absl::OkStatus();
  if (spec.cut_tokens % spec.block_tokens != 0 || spec.chunk_tokens % spec.cut_tokens != 0)
    return Wrong("cut_tokens must be a multiple of block_tokens and divide chunk_tokens");
  if (spec.stages.size() > 1 || !spec.depths.empty())
    return Wrong("cut_tokens must not be combined with several stages or with depths");
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const RequestSpec& spec, uint16_t layers) {
  if (!spec.id) return Wrong("a request must have an id");
  LARDER_RETURN_IF_ERROR(CheckGrid(spec));
  if (spec.stages.empty()) return Wrong("a request must have at least one stage");
  if (spec.suffix_tokens > 0 && spec.stages.size() > 1)
    return Wrong("with several stages the engine computes the suffix: suffix_tokens must be 0");
  for (const StageSpec& stage : spec.stages) {
    LARDER_RETURN_IF_ERROR(CheckStage(stage, spec.tokens / spec.block_tokens, layers));
  }
  if (spec.depths.empty()) return absl::OkStatus();
  const uint32_t step = std::max(spec.block_tokens, spec.chunk_tokens);
  if (spec.stages.size() > 1 || spec.depths.size() != (spec.tokens + step - 1) / step) {
    return Wrong("depths must have one depth per chunk, and there must be one stage");
  }
  if (!std::is_sorted(spec.depths.rbegin(), spec.depths.rend()) ||
      spec.depths[0] > spec.stages[0].layers.count()) {
    return Wrong("depths must not increase, and must not exceed the layers of the stage");
  }
  return absl::OkStatus();
}

}  // namespace larder
