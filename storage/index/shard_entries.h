// The entries of one shard of the index, and the hash table that finds them by name.
//
// A slot is free, named (the table finds it) or doomed (the entry is still held, but the table no
// longer finds it).  An entry's slot does not change until Free.
// Ownership: owns the entries' memory, not the metadata that they point to.
// Thread-safety: none; the shard's lock guards it, except Prefetch.
// Limits: `slots_max` slots, at most EntrySlots::kSlotsMax.
#pragma once

#include <cstdint>
#include <span>

#include "storage/index/block_state.h"
#include "storage/index/index_entry.h"
#include "storage/index/slot_table.h"
#include "storage/types.h"

namespace larder {

class ShardEntries {
 public:
  static constexpr size_t kKeysMax = 1024;  // in a group
  static constexpr uint32_t kNone = EntrySlots::kNone;

  explicit ShardEntries(uint32_t slots_max) : slots_(slots_max) {}

  // Keys that belong to this shard: keys[k] for each k in `order`.  hashes[k] is the IndexHash of
  // keys[k].
  // REQUIRES: order.size() <= kKeysMax.
  struct Group {
    VariantIndex variant = VariantIndex::kNone;
    std::span<const Digest> keys;
    std::span<const uint64_t> hashes;
    std::span<const uint16_t> order;
  };

  [[nodiscard]] IndexEntry& operator[](uint32_t slot) const { return slots_[slot]; }
  [[nodiscard]] static uint64_t HashOf(const IndexEntry& entry) {
    return IndexHash(entry.variant, entry.digest);
  }
  [[nodiscard]] static bool Is(const IndexEntry& entry, VariantIndex variant,
                               const Digest& digest) {
    return entry.digest == digest && entry.variant == variant;
  }
  // Returns whether the slot has an entry, named or doomed.
  [[nodiscard]] bool InUse(uint32_t slot) const {
    return slot != kNone && slot < slots_.end() && slots_[slot].state != BlockState::kAbsent;
  }

  // Starts the first cache miss of a later search for this hash.  Callable from any thread, without
  // the shard's lock.
  void Prefetch(uint64_t hash) const { table_.PrefetchUnlocked(hash); }
  // Returns the slot of this name, or kNone.
  [[nodiscard]] uint32_t Find(uint64_t hash, VariantIndex variant, const Digest& digest) const;
  // Sets slots[i] to the slot of keys[order[i]], or kNone.  Searches in waves of keys whose cache
  // misses overlap.
  void FindAll(const Group& group, std::span<uint32_t> slots) const;
  // Returns the slot of the block with this variant and IndexHash, or kNone if there is none or its
  // name is only claimed.  If a client invents two names with the same hash, this may return the
  // wrong block: what the index keeps about parents is only a hint.
  [[nodiscard]] uint32_t FindParent(VariantIndex variant, uint64_t hash) const;

  // Adds an entry that has this name and is otherwise all zeros, and returns its slot; kNone if all
  // slots are used.
  // REQUIRES: Find returns kNone for the name.
  [[nodiscard]] uint32_t Add(uint64_t hash, VariantIndex variant, const Digest& digest);
  // Removes the entry's name from the hash table; the entry remains in its slot.
  void Unname(uint32_t slot);
  // Makes the slot free for a later Add.  REQUIRES: Unname was called for the slot.
  void Free(uint32_t slot) { slots_.Free(slot); }

  [[nodiscard]] EntrySlots& slots() { return slots_; }
  // Slots [1, end) have an entry or had one.
  [[nodiscard]] uint32_t end() const { return slots_.end(); }
  [[nodiscard]] uint32_t used() const { return slots_.used(); }
  [[nodiscard]] uint32_t named() const { return table_.size(); }
  [[nodiscard]] uint64_t memory_bytes() const {
    return slots_.memory_bytes() + table_.memory_bytes();
  }
  void CheckInvariants() const { slots_.CheckInvariants(); }

 private:
  EntrySlots slots_;
  SlotTable table_;
};

}  // namespace larder
