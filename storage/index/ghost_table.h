// Ghost entries: the last use and the reuse history of blocks that have left the index.  A block
// that enters the index again may continue with its history.
//
// The table is a hint: a new ghost entry may overwrite another one, a key is now and then taken for
// another (about one in eight thousand), and all ghost entries are dropped when the table grows.
// Ownership: part of an IndexShard.  Thread-safety: none; the shard's lock guards it.
// Memory: none until a block leaves; then 2 KiB, or at most 16 bytes for each entry that the shard
// had at its largest if that is more.
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
  // Adds a ghost entry.  `blocks`: how many entries the shard has now; the table may grow to twice
  // as many cells (or to 256, its least size) and never shrinks.
  void Remember(uint64_t hash, const Departed& departed, uint32_t blocks);
  // Removes and returns the ghost entry of this hash, or rarely that of another hash.  Returns
  // nullopt if it finds none.
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
