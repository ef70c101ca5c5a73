// How long a prefix an engine can go on after, if some blocks of its variants are stored.
//
// Groups of layers differ in what they need (GroupKind): full attention all blocks of the prefix, a
// window those that cover its last tokens, recurrent layers the one that ends with it.  An engine
// can go on after a prefix only if every one of its variants has what it needs.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "storage/format/block_key.h"

namespace larder {

// What a variant needs after a prefix.
struct GroupRule {
  GroupKind kind = GroupKind::kFull;
  uint32_t block_tokens = 0;   // a multiple of 16
  uint32_t window_tokens = 0;  // kWindow
};
[[nodiscard]] inline GroupRule RuleOf(const VariantSpec& variant) {
  return {variant.kind, variant.block_tokens, variant.window_tokens};
}

// Blocks of one variant along a chain, by their numbers from the beginning of the chain.
struct BlockRange {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

// Returns the blocks that the variant needs after a prefix of so many of its blocks; none for
// GroupKind::kUnknown.
[[nodiscard]] BlockRange NeededBlocks(const GroupRule& rule, size_t prefix_blocks);

// ends[i] says whether an engine can go on after i + 1 steps of 16 tokens, as far as its other
// variants are concerned.  Clears the elements after which this variant lacks a block that it
// needs, or has no end of a block.  `present` says of each block of the variant, from the beginning
// of the chain, whether it is there; blocks beyond it are not.
void KeepServable(const GroupRule& rule, std::span<const char> present, std::vector<char>* ends);

}  // namespace larder
