// Which blocks a verb's selection means: wire::BlockSelection against what engines registered.
//
// Pure but for what it asks of store and instances.  Thread-safety: any thread.
// Limits: kBlocksMax blocks a selection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/messages/messages.h"
#include "server/instances/instance_table.h"
#include "storage/store/block_store.h"
#include "storage/types.h"

namespace larder {

struct SelectedBlocks {
  static constexpr size_t kBlocksMax = 65'536;
  struct Block {
    VariantIndex variant = VariantIndex::kNone;
    uint32_t name = 0;  // index in `names`
  };
  std::vector<Digest> names;  // in the order of the selection, or of the chain
  std::vector<Block> blocks;  // that may have them
};

// Those that its `variants` name, else those of its engine, else of all that are registered.
[[nodiscard]] std::vector<VariantIndex> VariantsOf(const wire::BlockSelection& selection,
                                                   const InstanceTable& instances,
                                                   const BlockStore& store);

// `content_id` and `tokens` where it is a chain, else no tokens.  InvalidArgument: more than
// kBlocksMax, with what to do.
[[nodiscard]] absl::StatusOr<SelectedBlocks> Select(const wire::BlockSelection& selection,
                                                    const Digest& content_id,
                                                    std::span<const uint32_t> tokens,
                                                    const InstanceTable& instances,
                                                    const BlockStore& store);

// The one that says more of what is left to do: kMissing, kOk, kPending, kFull, kKept,
// kUnsupported, and what is none of these.
[[nodiscard]] BlockStatus Worse(BlockStatus a, BlockStatus b);

// One answer for each name: the worst of the blocks that have it; kMissing where none has.
// REQUIRES: a status for each block.
[[nodiscard]] std::vector<wire::BlockAnswer> AnswersOf(const SelectedBlocks& selected,
                                                       std::span<const BlockStatus> statuses);

// Bytes that a call with this selection keeps at most: its answer, until the caller has read it, or
// the selection, while the call waits for one; whichever is more.
[[nodiscard]] inline size_t AnswerBytesOf(const SelectedBlocks& selected) {
  constexpr size_t kEach = sizeof(Digest) + 1, kBeside = 64;  // a status is a varint of a byte
  constexpr size_t kEachBlock = sizeof(SelectedBlocks::Block) + sizeof(BlockStatus);
  return kBeside + std::max(kEach * selected.names.size(), kEachBlock * selected.blocks.size());
}

}  // namespace larder
