#include "storage/index/slot_table.h"

#include "storage/check.h"

namespace larder {
namespace {

constexpr uint32_t kCellsFirst = 1024;  // one page

}  // namespace

SlotTable::SlotTable() : memory_(Memory(kCellsFirst)), mask_(kCellsFirst - 1) { SetHint(); }

void SlotTable::SetHint() {
  hint_cells_.store(reinterpret_cast<uintptr_t>(cells()), std::memory_order_relaxed);
  hint_mask_.store(mask_, std::memory_order_relaxed);
}

ZeroedMemory SlotTable::Memory(uint64_t cells) {
  return ZeroedMemory(cells * sizeof(uint32_t), /*huge=*/true);
}

uint32_t SlotTable::CellOf(uint64_t hash, uint32_t slot) const {
  Probe probe = First(hash);
  while (probe.slot != slot) {
    LARDER_CHECK(probe.slot != kNone);
    probe = Next(hash, probe);
  }
  return probe.cell;
}

void SlotTable::Place(uint64_t hash, uint32_t slot) {
  uint32_t cell = Home(hash);
  while (cells()[cell] != 0) cell = (cell + 1) & mask_;
  cells()[cell] = TagOf(hash) << kSlotBits | slot;
}

}  // namespace larder
