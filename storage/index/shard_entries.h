// The entries of one shard of the index, and the hash table that finds them by name.
//
// A slot is free, named (the table finds it) or doomed (readers hold it, and the table no longer
// finds it).  An entry's slot does not change until Free.
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

  // Keys of one call that fall to this shard: keys[order[i]], whose IndexHash is hashes[order[i]].
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

  // Starts the first cache miss of a later search for this hash.  From any thread.
  void Prefetch(uint64_t hash) const { table_.PrefetchUnlocked(hash); }
  // Returns the slot of this name, or kNone.
  [[nodiscard]] uint32_t Find(uint64_t hash, VariantIndex variant, const Digest& digest) const;
  // Finds all keys of a group in waves of cache misses: slots[i] belongs to keys[order[i]].
  void FindAll(const Group& group, std::span<uint32_t> slots) const;
  // Returns the slot of the block with this variant and IndexHash, or kNone.  A name that is only
  // claimed is no parent.  Two names with one hash, which a client may make up, are taken for one:
  // what is kept for parents is a hint.
  [[nodiscard]] uint32_t FindParent(VariantIndex variant, uint64_t hash) const;

  // Returns a new entry that has this name and is otherwise all zeros, or kNone if no slot is free.
  // REQUIRES: Find returns kNone for the name.
  [[nodiscard]] uint32_t Add(uint64_t hash, VariantIndex variant, const Digest& digest);
  // The table forgets the name; the entry stays.
  void Unname(uint32_t slot);
  // REQUIRES: unnamed.
  void Free(uint32_t slot) { slots_.Free(slot); }

  [[nodiscard]] EntrySlots& slots() { return slots_; }
  // Slots [1, end) were used at some time.
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
