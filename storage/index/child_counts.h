// How many stored blocks continue each block of a shard, for eviction: a block with children stays
// longer than the last of them, and a chain that one engine alone extends keeps one history.
//
// Invariants: an entry's `children` is at least the number of entries, of any shard, that name it
// as their parent and have `counted_in_parent`; it saturates and may be too high, so it is a hint.
// An entry counts in the parent that was there when it entered, or later by Count; it is lowered
// there once, when it leaves.
// A shard does not know of other shards: parent and child may lie in different ones, so BlockIndex
// raises the parent before a child enters, and lowers it after the child has left.
// Ownership: changes entries of a ShardEntries and their lists; both outlive it.
// Thread-safety: none; the shard's lock guards it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "storage/index/eviction_lists.h"
#include "storage/index/shard_entries.h"

namespace larder {

class ChildCounts {
 public:
  ChildCounts(ShardEntries& entries, EvictionLists& lists) : entries_(entries), lists_(lists) {}

  // Returns the IndexHash of the entry's parent, or nullopt if it is not known.
  [[nodiscard]] static std::optional<uint64_t> ParentHash(const IndexEntry& entry);
  // Returns the hash of the parent whose `children` counts the entry, if one does.
  [[nodiscard]] static std::optional<uint64_t> CountedBy(const IndexEntry& entry) {
    return entry.counted_in_parent ? ParentHash(entry) : std::nullopt;
  }

  // What a block that is about to enter has from its parent.  The entry takes over the count in
  // `counted_by`, and leaves there the parent that counted it until now, if any.  Whatever is in
  // `counted_by` afterwards, whether the block entered or not, the caller lowers again.
  struct Raised {
    std::optional<uint64_t> counted_by;  // hash of the parent whose `children` counts it
    ReuseHistory history;                // the parent's, if only this block follows it
    bool forked = false;  // another block has followed the parent, which is not yet marked shared
  };
  // Counts `child` in its parent.  Returns an empty Raised if the parent is not here.
  [[nodiscard]] Raised Raise(VariantIndex variant, uint64_t parent, const Digest& child);
  // Marks a block that several blocks continue.  Returns the hash of its own parent, which is to be
  // marked too; nullopt if that is not known or the block was marked before.
  [[nodiscard]] std::optional<uint64_t> MarkShared(VariantIndex variant, uint64_t parent);
  // A child that was counted has left, or has not entered after all.  If it was the last one, left
  // for its worth, and its parent was used no later, the parent is the next to leave.
  // `child_last_use_s`: nullopt if the child never entered or did not leave for its worth.
  void Lower(VariantIndex variant, uint64_t parent, std::optional<uint32_t> child_last_use_s);

  // A block in a tier that no parent counts.
  struct Uncounted {
    uint32_t slot = 0;
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    uint64_t parent = 0;  // its hash
  };
  // Writes those from slot `from` (1 at first) on until `out` is full.  Returns the slot to
  // continue with, 0 at the end.
  [[nodiscard]] uint32_t UncountedFrom(uint32_t from, std::span<Uncounted> out,
                                       size_t* count) const;
  // Counts the block from now on, as one that enters, if its entry still is that block.
  void Count(const Uncounted& block, Raised& raised);

 private:
  ShardEntries& entries_;
  EvictionLists& lists_;
};

}  // namespace larder
