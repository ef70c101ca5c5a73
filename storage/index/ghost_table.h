// Ghost entries: the last use and the reuse history of blocks that have left the index.  A block
// that enters the index again may continue with its history.
//
// The table is a hint: a new ghost entry overwrites the least recently used of four if none of the
// four cells is free, one key in eight thousand is taken for another, and all ghost entries are
// dropped when the table grows.
// Ownership: part of an IndexShard.  Thread-safety: none; the shard's lock guards it.
// Memory: none until a block leaves; then, for the greatest number of entries that the shard had
// when a block left, 8 to 16 bytes each, and at least 2 KiB.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "storage/index/eviction_policy.h"

namespace larder {

class GhostTable {
 public:
  struct Departed {
    ReuseHistory history;
    uint32_t last_use_s = 0;
  };
  // Adds a ghost entry.  `blocks`: how many entries the shard has now; the table grows to at most
  // twice as many cells (or to 256, its least size) and never shrinks.
  void Remember(uint64_t hash, const Departed& departed, uint32_t blocks);
  // Removes and returns the ghost entry of this hash, or rarely that of another with the same tag.
  // Returns nullopt if there is none.
  [[nodiscard]] std::optional<Departed> Take(uint64_t hash);
  [[nodiscard]] uint64_t memory_bytes() const { return cells_.capacity() * sizeof(Cell); }

 private:
  static constexpr size_t kWays = 4;
  struct Cell {
    uint32_t last_use_s = 0;
    uint16_t tag = 0;  // 0: free
    ReuseHistory history;
  };
  static_assert(sizeof(Cell) == 8);

  std::vector<Cell> cells_;  // sets of kWays cells; the size is 0 or a power of two
};

}  // namespace larder
