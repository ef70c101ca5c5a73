// Counts how many stored blocks (children) continue each block of an index shard.  Eviction uses
// the counts to prefer blocks without children, so that a chain usually leaves from its end.  A
// block that enters may also take over the reuse history of its parent, if no other block has
// followed the parent.
//
// Invariants: while an entry has `counted_in_parent`, the `children` of a parent was raised for it
// and has not been lowered again.  The `children` of an entry is only a hint: it saturates at
// 65,535, is too high for a moment while a child enters or leaves, and can be wrong after the entry
// itself has left and entered again.
// Parent and child may lie in different shards, so BlockIndex raises and lowers the parent's count
// in separate calls, without the lock of the child's shard.
// Ownership: changes the entries of a ShardEntries and an EvictionLists, which outlive it.
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

  // Returns the IndexHash of the entry's parent.  If the parent is not known, returns nullopt, or 0
  // for a block that is on disk only.
  [[nodiscard]] static std::optional<uint64_t> ParentHash(const IndexEntry& entry);
  // Returns the IndexHash of the parent in which the entry is counted, or nullopt if there is none.
  [[nodiscard]] static std::optional<uint64_t> CountedBy(const IndexEntry& entry) {
    return entry.counted_in_parent ? ParentHash(entry) : std::nullopt;
  }

  // The result of Raise.  The call that then enters or counts the child may change `counted_by`.
  // In the end the caller calls Lower for the parent that `counted_by` names, if any.
  struct Raised {
    std::optional<uint64_t> counted_by;  // IndexHash of the parent whose `children` was raised
    ReuseHistory history;                // what the child may take over from the parent
    bool forked = false;  // another block has followed the parent, which is not yet marked shared
  };
  // Raises the `children` of the block whose IndexHash is `parent`, because `child` continues it.
  // Returns an empty Raised if the shard has no such block or its count is saturated.
  [[nodiscard]] Raised Raise(VariantIndex variant, uint64_t parent, const Digest& child);
  // Marks the block whose IndexHash is `parent` as shared (ReuseHistory), because several blocks
  // have followed it or a block after it.  Returns the IndexHash of the parent of the block that it
  // has marked, for the caller to mark next; nullopt or 0 if the caller need not go on.
  [[nodiscard]] std::optional<uint64_t> MarkShared(VariantIndex variant, uint64_t parent);
  // Lowers the `children` of the block whose IndexHash is `parent`, if this shard has that block.
  // If the count becomes 0, and the block is on a list of EvictionLists and was not used after
  // `child_last_use_s`, the block becomes the coldest of its list; with nullopt it does not.
  void Lower(VariantIndex variant, uint64_t parent, std::optional<uint32_t> child_last_use_s);

  // A stored block that is not counted in the `children` of its known parent.
  struct Uncounted {
    uint32_t slot = 0;
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    uint64_t parent = 0;  // IndexHash of its parent
  };
  // Looks at up to out.size() slots from slot `from` (1 at first) on.  Writes the Uncounted among
  // them to `out`, their number to *count.  Returns the slot to continue with, 0 at the end.
  [[nodiscard]] uint32_t UncountedFrom(uint32_t from, std::span<Uncounted> out,
                                       size_t* count) const;
  // Marks the block as counted in the `children` of `raised.counted_by`, which becomes nullopt.
  // Does nothing if that was nullopt, or the slot has no such uncounted block any more.
  void Count(const Uncounted& block, Raised& raised);

 private:
  ShardEntries& entries_;
  EvictionLists& lists_;
};

}  // namespace larder
