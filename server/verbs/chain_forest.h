// Which stored blocks continue which, as it was when this was made.
//
// Chains are known by hash (IndexHash), as parents are in the index: two names of one hash, which a
// client may make up, are taken for one.
// Thread-safety: none needed: it does not change.
// Memory: about 32 B a block, and as much while it is made.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "storage/index/block_index.h"

namespace larder {

class ChainForest {
 public:
  using Names = absl::flat_hash_set<uint64_t>;  // hashes

  // And `more`, that are not in the index: parent, block.
  using Links = std::vector<std::pair<uint64_t, uint64_t>>;
  explicit ChainForest(const BlockIndex& index, const Links& more = {});

  // These names, stored or not, and all blocks that continue them.
  [[nodiscard]] Names Below(std::vector<uint64_t> names) const;
  // No block before it was stored: it begins its chain, or stands behind a hole.
  [[nodiscard]] bool IsHead(const ChainLink& block) const { return !names_.contains(block.parent); }

 private:
  Names names_;
  Links children_;  // ascending
};

}  // namespace larder
