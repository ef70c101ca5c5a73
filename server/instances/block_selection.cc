#include "server/instances/block_selection.h"

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {
namespace {

absl::Status TooMany(size_t blocks) {
  return absl::InvalidArgumentError(
      absl::StrCat("blocks: the selection names ", blocks, " blocks, more than the limit of ",
                   SelectedBlocks::kBlocksMax, " per call; select fewer tokens or one engine"));
}

// Selects the digests of the chain at which blocks of these variants end.
absl::StatusOr<SelectedBlocks> OfChain(std::span<const Digest> chain,
                                       std::span<const VariantIndex> variants,
                                       const BlockStore& store) {
  std::map<size_t, std::vector<VariantIndex>> by_steps;
  size_t blocks = 0;
  for (const VariantIndex variant : variants) {
    const std::shared_ptr<const VariantSpec> spec = store.SpecOf(variant);
    if (!spec) continue;  // the length of the variant's blocks is not known
    const size_t steps = spec->block_tokens / kStepTokens;
    by_steps[steps].push_back(variant);
    blocks += chain.size() / steps;
  }
  if (blocks > SelectedBlocks::kBlocksMax) return TooMany(blocks);
  SelectedBlocks selected;
  for (size_t step = 1; step <= chain.size(); ++step) {
    const auto name = static_cast<uint32_t>(selected.names.size());
    bool any = false;
    for (const auto& [steps, of_these] : by_steps) {
      if (step % steps != 0) continue;
      any = true;
      for (const VariantIndex variant : of_these) selected.blocks.push_back({variant, name});
    }
    if (any) selected.names.push_back(chain[step - 1]);
  }
  return selected;
}

absl::StatusOr<SelectedBlocks> OfNames(std::span<const Digest> names,
                                       std::span<const VariantIndex> variants) {
  if (names.size() * variants.size() > SelectedBlocks::kBlocksMax)
    return TooMany(names.size() * variants.size());
  SelectedBlocks selected;
  for (const Digest& digest : names) {
    const auto name = static_cast<uint32_t>(selected.names.size());
    selected.names.push_back(digest);
    for (const VariantIndex variant : variants) selected.blocks.push_back({variant, name});
  }
  return selected;
}

}  // namespace

std::vector<VariantIndex> VariantsOf(const wire::BlockSelection& selection,
                                     const InstanceTable& instances, const BlockStore& store) {
  if (selection.variants.empty()) return instances.VariantsOf(selection.engine_id);
  std::vector<VariantIndex> variants;
  for (const Digest& id : selection.variants) {
    if (const auto known = store.index().FindVariant(id)) variants.push_back(*known);
  }
  std::sort(variants.begin(), variants.end());
  variants.erase(std::unique(variants.begin(), variants.end()), variants.end());
  return variants;
}

absl::StatusOr<SelectedBlocks> Select(const wire::BlockSelection& selection,
                                      const Digest& content_id, std::span<const uint32_t> tokens,
                                      const InstanceTable& instances, const BlockStore& store) {
  const std::vector<VariantIndex> variants = VariantsOf(selection, instances, store);
  if (tokens.empty()) return OfNames(selection.digests, variants);
  return OfChain(Chain(content_id, tokens), variants, store);
}

BlockStatus Worse(BlockStatus a, BlockStatus b) {
  constexpr BlockStatus kFromBest[] = {BlockStatus::kMissing, BlockStatus::kOk,
                                       BlockStatus::kPending, BlockStatus::kFull,
                                       BlockStatus::kKept,    BlockStatus::kUnsupported};
  const auto rank = [&](BlockStatus status) {
    return std::find(std::begin(kFromBest), std::end(kFromBest), status);
  };
  return rank(a) < rank(b) ? b : a;
}

std::vector<wire::BlockAnswer> AnswersOf(const SelectedBlocks& selected,
                                         std::span<const BlockStatus> statuses) {
  LARDER_CHECK(statuses.size() == selected.blocks.size());
  std::vector<wire::BlockAnswer> answers;
  for (const Digest& name : selected.names) answers.push_back({name, BlockStatus::kMissing});
  for (size_t i = 0; i < statuses.size(); ++i) {
    BlockStatus& answer = answers[selected.blocks[i].name].status;
    answer = Worse(answer, statuses[i]);
  }
  return answers;
}

}  // namespace larder
