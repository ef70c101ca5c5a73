// The hash table of a shard: from the hash of a key to slots whose entry may be that key.
//
// A cell is 4 bytes, {8-bit tag | 24-bit slot}; the tag is taken from hash bits that choose neither
// shard nor cell, so that 255 of 256 foreign cells are passed over without touching an entry.  Open
// addressing with linear probing; erasing shifts cells back, so there are no tombstones and no
// churn that makes it slow.
//
// Hashes must be uniform.  Digests are cut from SHA-256, but a client may claim any: it can make
// long probes in its own tenant's index and in nobody else's.
// Ownership: its own memory.
// Thread-safety: none, under the shard's lock; PrefetchUnlocked from any thread.
// Limits: slots 1 .. 2^24 - 1 (0 is none), at most 7/8 full, doubles; never shrinks.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "storage/memory/zeroed_memory.h"

namespace larder {

class SlotTable {
 public:
  static constexpr uint32_t kNone = 0;
  static constexpr uint32_t kSlotBits = 24;

  SlotTable();

  // Brings the cell near where a probe for `hash` begins, or where it began before the table grew.
  // Only a hint: nothing is read, so that a batch can start its misses before it has any lock.
  // Into L2: a batch has more of them than L1 takes at a time (500 cold keys: 14 us, by L1 18).
  void PrefetchUnlocked(uint64_t hash) const {
    const uintptr_t home = hash & hint_mask_.load(std::memory_order_relaxed);
    const uintptr_t cells = hint_cells_.load(std::memory_order_relaxed);
    __builtin_prefetch(reinterpret_cast<const void*>(cells + home * sizeof(uint32_t)), 0, 1);
  }

  // Walks the slots with the tag of `hash`; slot kNone: no more.
  struct Probe {
    uint32_t cell = 0;
    uint32_t slot = kNone;
  };
  [[nodiscard]] Probe First(uint64_t hash) const { return From(hash, Home(hash)); }
  [[nodiscard]] Probe Next(uint64_t hash, Probe probe) const {
    return From(hash, (probe.cell + 1) & mask_);
  }

  // hash_of(slot) answers the hash of a slot that is in the table; prefetch(slot) hints that it
  // will be asked. REQUIRES: `slot` is not in the table.
  template <class HashOf, class PrefetchSlot>
  void Insert(uint64_t hash, uint32_t slot, HashOf hash_of, PrefetchSlot prefetch) {
    if (size_ + 1 > CellsUsedMax()) Grow(hash_of, prefetch);
    Place(hash, slot);
    ++size_;
  }

  // REQUIRES: `slot` is in the table under `hash` (CHECKed).
  template <class HashOf, class PrefetchSlot>
  void Erase(uint64_t hash, uint32_t slot, HashOf hash_of, PrefetchSlot prefetch) {
    uint32_t hole = CellOf(hash, slot);
    // The run behind the hole is read twice, so that its entries come in one wave of misses.
    for (uint32_t cell = hole; cells()[cell] != 0; cell = (cell + 1) & mask_)
      prefetch(SlotIn(cells()[cell]));
    for (uint32_t cell = (hole + 1) & mask_; cells()[cell] != 0; cell = (cell + 1) & mask_) {
      const uint32_t home = Home(hash_of(SlotIn(cells()[cell])));
      if (((cell - home) & mask_) < ((cell - hole) & mask_))
        continue;  // its home lies behind the hole
      cells()[hole] = cells()[cell];
      hole = cell;
    }
    cells()[hole] = 0;
    --size_;
  }

  [[nodiscard]] uint32_t size() const { return size_; }
  [[nodiscard]] uint64_t memory_bytes() const { return memory_.bytes(); }

 private:
  [[nodiscard]] uint32_t* cells() const { return memory_.as<uint32_t>(); }
  [[nodiscard]] uint32_t Home(uint64_t hash) const { return static_cast<uint32_t>(hash) & mask_; }
  [[nodiscard]] static uint32_t SlotIn(uint32_t cell) { return cell & ((1u << kSlotBits) - 1); }
  [[nodiscard]] static uint32_t TagOf(uint64_t hash) {
    return static_cast<uint32_t>(hash >> 52) & 0xFF;
  }
  [[nodiscard]] uint32_t CellsUsedMax() const { return (mask_ + 1) / 8 * 7; }

  [[nodiscard]] Probe From(uint64_t hash, uint32_t cell) const {
    const uint32_t tag = TagOf(hash);
    for (;; cell = (cell + 1) & mask_) {
      const uint32_t value = cells()[cell];
      if (value == 0) return {.cell = cell, .slot = kNone};
      if (value >> kSlotBits == tag) return {.cell = cell, .slot = SlotIn(value)};
    }
  }
  [[nodiscard]] uint32_t CellOf(uint64_t hash, uint32_t slot) const;
  void Place(uint64_t hash, uint32_t slot);

  template <class HashOf, class PrefetchSlot>
  void Grow(HashOf hash_of, PrefetchSlot prefetch) {
    constexpr uint32_t kAhead = 16;  // misses under way at once
    const ZeroedMemory old = std::exchange(memory_, Memory(uint64_t{2} * (mask_ + 1)));
    const uint32_t old_cells = mask_ + 1;
    mask_ = 2 * old_cells - 1;
    SetHint();
    const uint32_t* from = old.as<uint32_t>();
    for (uint32_t i = 0; i < old_cells; ++i) {
      if (i + kAhead < old_cells && from[i + kAhead] != 0) prefetch(SlotIn(from[i + kAhead]));
      if (from[i] != 0) Place(hash_of(SlotIn(from[i])), SlotIn(from[i]));
    }
  }
  [[nodiscard]] static ZeroedMemory Memory(uint64_t cells);
  void SetHint();

  ZeroedMemory memory_;
  uint32_t mask_ = 0;
  uint32_t size_ = 0;
  std::atomic<uintptr_t> hint_cells_{0};  // where memory_ is, for PrefetchUnlocked
  std::atomic<uint32_t> hint_mask_{0};
};

}  // namespace larder
