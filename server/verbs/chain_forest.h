// A snapshot of which stored blocks continue which other ones in their chains, taken at
// construction.
//
// The name of a block (variant and digest) is represented by its hash (IndexHash).  Two names with
// the same hash, which a client can construct, count as one.
// Thread-safety: any thread; it does not change after construction.
// Memory: about 32 B per block, and more during construction.
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

  // Pairs (parent, block).
  using Links = std::vector<std::pair<uint64_t, uint64_t>>;
  // `more`: links to add to those of the index.
  explicit ChainForest(const BlockIndex& index, const Links& more = {});

  // Returns these names, stored or not, and all blocks that continue them directly or indirectly.
  [[nodiscard]] Names Below(std::vector<uint64_t> names) const;
  // Returns true if the block's parent was not stored or is not known: the block begins its chain,
  // or may follow a hole.
  [[nodiscard]] bool IsHead(const ChainLink& block) const { return !names_.contains(block.parent); }

 private:
  Names names_;
  Links children_;  // ascending
};

}  // namespace larder
