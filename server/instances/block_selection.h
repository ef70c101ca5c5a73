// Finds the blocks that the wire::BlockSelection of a call names.
//
// Functions without state of their own; they only read the store and the instance table.
// Thread-safety: any thread.
// Limits: kBlocksMax blocks per selection.
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
  std::vector<Digest> names;  // in the order of the selection's digests, or of the chain
  std::vector<Block> blocks;  // every block that may have one of the names
};

// Returns those of selection.variants that are known.  If selection.variants is empty, returns the
// variants of the selection's engine, or, if it names no engine, of all engines and of stored
// blocks.
[[nodiscard]] std::vector<VariantIndex> VariantsOf(const wire::BlockSelection& selection,
                                                   const InstanceTable& instances,
                                                   const BlockStore& store);

// Selects the blocks of the chain of `content_id` and `tokens`, or, if `tokens` is empty, those of
// selection.digests.  Returns InvalidArgument, with what to do, if that is more than kBlocksMax
// blocks.
[[nodiscard]] absl::StatusOr<SelectedBlocks> Select(const wire::BlockSelection& selection,
                                                    const Digest& content_id,
                                                    std::span<const uint32_t> tokens,
                                                    const InstanceTable& instances,
                                                    const BlockStore& store);

// Returns the worse of two statuses.  From best to worst: kMissing, kOk, kPending, kFull, kKept,
// kUnsupported, any other status.
[[nodiscard]] BlockStatus Worse(BlockStatus a, BlockStatus b);

// Returns one answer for each name: the worst status of the blocks that have it, kMissing if no
// block has it.  REQUIRES: `statuses` has one status for each block.
[[nodiscard]] std::vector<wire::BlockAnswer> AnswersOf(const SelectedBlocks& selected,
                                                       std::span<const BlockStatus> statuses);

// Returns about how many bytes a call with this selection takes, for the selection or for its
// answer, whichever is more.
[[nodiscard]] inline size_t AnswerBytesOf(const SelectedBlocks& selected) {
  constexpr size_t kEach = sizeof(Digest) + 1, kBeside = 64;  // a status is a varint of a byte
  constexpr size_t kEachBlock = sizeof(SelectedBlocks::Block) + sizeof(BlockStatus);
  return kBeside + std::max(kEach * selected.names.size(), kEachBlock * selected.blocks.size());
}

}  // namespace larder
