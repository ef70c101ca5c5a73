#include "storage/index/ghost_table.h"

#include <algorithm>
#include <bit>

namespace larder {
namespace {

constexpr size_t kCellsMin = 256;

// The highest bits of a hash choose the shard, the lowest bits the set of cells; the tag has bits
// between these.
uint16_t TagOf(uint64_t hash) { return static_cast<uint16_t>(hash >> 32 | 1); }

}  // namespace

void GhostTable::Remember(uint64_t hash, const Departed& departed, uint32_t blocks) {
  if (const size_t wanted = std::bit_floor(std::max<size_t>(kCellsMin, 2 * size_t{blocks}));
      wanted > cells_.size()) {
    cells_.assign(wanted, Cell());
  }
  Cell* const set = &cells_[hash * kWays & (cells_.size() - 1)];
  Cell* const cell = std::min_element(set, set + kWays, [](const Cell& a, const Cell& b) {
    return a.tag == 0 ? b.tag != 0 : b.tag != 0 && a.last_use_s < b.last_use_s;
  });
  *cell = {.last_use_s = departed.last_use_s, .tag = TagOf(hash), .history = departed.history};
}

std::optional<GhostTable::Departed> GhostTable::Take(uint64_t hash) {
  if (cells_.empty()) return std::nullopt;
  Cell* const set = &cells_[hash * kWays & (cells_.size() - 1)];
  Cell* const cell =
      std::find_if(set, set + kWays, [hash](const Cell& c) { return c.tag == TagOf(hash); });
  if (cell == set + kWays) return std::nullopt;
  const Departed found{cell->history, cell->last_use_s};
  *cell = Cell();
  return found;
}

}  // namespace larder
