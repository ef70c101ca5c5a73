// Counts how many stored blocks (children) continue each block of a shard.  Eviction uses the
// counts: a block is evicted after the last of its children, and the blocks of a chain that does
// not fork have one reuse history.
//
// Invariants: an entry that has `counted_in_parent` was counted in the parent that was in the index
// when the entry entered, or later by Count; the count is lowered once, when the entry leaves.  The
// `children` of an entry is only a hint: it saturates at 65,535, is too high while a child enters
// or leaves, and does not include children from before the entry itself left and entered again.
// A shard does not know of other shards: parent and child may lie in different ones, so BlockIndex
// raises the parent's count before a child enters, and lowers it after the child has left.
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

  // What Raise found at the parent of a block that is about to enter.  If the block enters, its
  // entry takes over this count, and `counted_by` is replaced by the parent that had counted the
  // entry before, or nullopt.  In any case the caller then lowers the count of the parent that
  // `counted_by` names, if any.
  struct Raised {
    std::optional<uint64_t> counted_by;  // hash of the parent whose `children` counts the block
    ReuseHistory history;                // the parent's, if no other block has followed the parent
    bool forked = false;  // another block has followed the parent, which is not yet marked shared
  };
  // Counts `child` in its parent.  Returns an empty Raised if the parent is not in this shard or
  // its count is saturated.
  [[nodiscard]] Raised Raise(VariantIndex variant, uint64_t parent, const Digest& child);
  // Marks a block, `parent`, that several blocks continue.  Returns the hash of that block's own
  // parent, which the caller must mark too; nullopt if the own parent is not known, the block was
  // marked before or is not in this shard.
  [[nodiscard]] std::optional<uint64_t> MarkShared(VariantIndex variant, uint64_t parent);
  // Lowers the count of `parent`, because a counted child has left or did not enter after all.
  // `child_last_use_s` is the last use of a child that has left.  If that was the last child, and
  // the parent was not used after it, the parent becomes the coldest of its list.  nullopt leaves
  // the parent's place unchanged: the child did not enter, another parent counts it now, or it was
  // evicted from disk for its location and not for its worth.
  void Lower(VariantIndex variant, uint64_t parent, std::optional<uint32_t> child_last_use_s);

  // A block that is in a tier, and that no parent's `children` counts.
  struct Uncounted {
    uint32_t slot = 0;
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    uint64_t parent = 0;  // its hash
  };
  // Looks at out.size() slots from slot `from` (1 at first) on.  Writes the uncounted blocks among
  // them to `out`, and their number to *count.  Returns the slot to continue with, 0 at the end.
  [[nodiscard]] uint32_t UncountedFrom(uint32_t from, std::span<Uncounted> out,
                                       size_t* count) const;
  // Marks the block as counted in `raised.counted_by`, and sets that to nullopt.  Does nothing if
  // the slot no longer has this block, or the block is counted already.
  void Count(const Uncounted& block, Raised& raised);

 private:
  ShardEntries& entries_;
  EvictionLists& lists_;
};

}  // namespace larder
