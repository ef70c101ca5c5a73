#include "storage/departed_table.h"

#include <algorithm>
#include <bit>

namespace larder {
namespace {

constexpr size_t kCellsMin = 256;
constexpr uint32_t kTagMask = (1u << 24) - 1;

// The index's shard is in the highest bits, the set in the lowest.
uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash >> 32 & kTagMask) | 1; }

}  // namespace

std::optional<DepartedTable::Departed> DepartedTable::Remember(uint64_t hash,
                                                               const Departed& departed,
                                                               uint32_t blocks) {
  if (const size_t wanted = std::bit_floor(std::max<size_t>(kCellsMin, blocks));
      wanted > cells_.size()) {
    cells_.assign(wanted, Cell());
  }
  Cell* const set = &cells_[hash * kWays & (cells_.size() - 1)];
  Cell* const cell = std::min_element(set, set + kWays, [](const Cell& a, const Cell& b) {
    return a.tag == 0 ? b.tag != 0 : b.tag != 0 && a.last_use_s < b.last_use_s;
  });
  std::optional<Departed> forgotten;
  if (cell->tag != 0) forgotten = Departed{cell->history, cell->last_use_s};
  *cell = {.last_use_s = departed.last_use_s,
           .tag = TagOf(hash) & kTagMask,
           .history = departed.history};
  return forgotten;
}

std::optional<DepartedTable::Departed> DepartedTable::Take(uint64_t hash) {
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
