#include "storage/format/prefix.h"

#include <algorithm>

namespace larder {

BlockRange NeededBlocks(const GroupRule& rule, size_t prefix_blocks) {
  switch (rule.kind) {
    case GroupKind::kFull:
      return {0, prefix_blocks};
    case GroupKind::kWindow: {
      const size_t tokens = prefix_blocks * rule.block_tokens;
      const size_t before = tokens - std::min<size_t>(tokens, rule.window_tokens);
      return {before / rule.block_tokens, prefix_blocks};
    }
    case GroupKind::kState:
      return {prefix_blocks - std::min<size_t>(prefix_blocks, 1), prefix_blocks};
    case GroupKind::kUnknown:
      break;
  }
  return {};
}

void KeepServable(const GroupRule& rule, std::span<const char> present, std::vector<char>* ends) {
  const size_t steps = rule.block_tokens / kStepTokens;
  std::vector<char> kept(ends->size(), 0);
  size_t run = 0;  // blocks without a hole up to this one
  for (size_t b = 0; b < present.size() && (b + 1) * steps <= ends->size(); ++b) {
    run = present[b] != 0 ? run + 1 : 0;
    const BlockRange needed = NeededBlocks(rule, b + 1);
    const bool served = rule.kind != GroupKind::kUnknown && run >= needed.end - needed.begin;
    const size_t at = (b + 1) * steps - 1;
    kept[at] = served && (*ends)[at] != 0 ? 1 : 0;
  }
  ends->swap(kept);
}

}  // namespace larder
