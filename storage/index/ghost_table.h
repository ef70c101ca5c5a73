// What is remembered of blocks that have left the index: when each was used last, and its history.
// A block that comes back goes on where it was.
//
// A hint: the oldest of a few is forgotten for a new one, two names may be taken for one (one in
// eight thousand), and all is forgotten when the table grows.
// Ownership, thread-safety: a member of an IndexShard, under its lock.
// Memory: 8 to 16 bytes for each block that the index has.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "storage/index/eviction.h"

namespace larder {

class GhostTable {
 public:
  struct Departed {
    ReuseHistory history;
    uint32_t last_use_s = 0;
  };
  // `blocks`: how many the index has now; up to twice as many are remembered.
  void Remember(uint64_t hash, const Departed& departed, uint32_t blocks);
  // And forgets it.
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

  std::vector<Cell> cells_;  // sets of kWays; as many as a power of two
};

}  // namespace larder
