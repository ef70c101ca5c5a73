// Counts how many stored blocks (children) continue each block of a shard.  Eviction uses the
// counts to prefer blocks without children, so that a chain usually leaves from its end.  A block
// that enters may also take over the reuse history of its parent, if no other block has followed
// the parent.
//
// Invariants: while an entry has `counted_in_parent`, the `children` of a parent was raised for it
// and has not been lowered again.  The `children` of an entry is only a hint: it saturates at
// 65,535, is too high while a child enters or leaves, and can be wrong after the entry itself has
// left and entered again.
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

  // Returns the IndexHash of the entry's parent.  If the parent is not known, returns nullopt, or 0
  // for a block that is on disk only.
  [[nodiscard]] static std::optional<uint64_t> ParentHash(const IndexEntry& entry);
  // Returns the IndexHash of the parent whose `children` counts the entry, or nullopt if none does.
  [[nodiscard]] static std::optional<uint64_t> CountedBy(const IndexEntry& entry) {
    return entry.counted_in_parent ? ParentHash(entry) : std::nullopt;
  }

  // The result of Raise.  A call that adds or counts the block afterwards takes over the count: it
  // replaces `counted_by` by the parent that counted the block before, or by nullopt.  In the end
  // the caller lowers the count of the parent that `counted_by` names, if any.
  struct Raised {
    std::optional<uint64_t> counted_by;  // IndexHash of the parent whose `children` was raised
    // The parent's history; empty if another block has followed the parent, or may have.
    ReuseHistory history;
    bool forked = false;  // another block has followed the parent, which is not yet marked shared
  };
  // Raises the `children` of the block whose IndexHash is `parent`, because `child` continues it.
  // Returns an empty Raised if the shard has no such block or its count is saturated.
  [[nodiscard]] Raised Raise(VariantIndex variant, uint64_t parent, const Digest& child);
  // Marks the block whose IndexHash is `parent` as shared, because several blocks continue it or a
  // block after it.  Returns the IndexHash of that block's own parent, for the caller to mark next.
  // Returns nullopt if the block is not in this shard or was marked before, and nullopt or 0 if its
  // own parent is not known.
  [[nodiscard]] std::optional<uint64_t> MarkShared(VariantIndex variant, uint64_t parent);
  // Lowers the count of the block whose IndexHash is `parent`, because a counted child has left,
  // did not enter after all, or is counted by another parent now.  `child_last_use_s` is the last
  // use of a child that has left.  If that was the last child, and the parent is listed and was not
  // used after it, the parent becomes the coldest of its list.  nullopt leaves the parent's place
  // unchanged: the child has not left, or was evicted from disk for its location and not for its
  // worth.
  void Lower(VariantIndex variant, uint64_t parent, std::optional<uint32_t> child_last_use_s);

  // A block in a tier whose parent is known, and that no parent's `children` counts.
  struct Uncounted {
    uint32_t slot = 0;
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    uint64_t parent = 0;  // IndexHash of its parent
  };
  // Looks at out.size() slots from slot `from` (1 at first) on.  Writes the Uncounted among them to
  // `out`, and their number to *count.  Returns the slot to continue with, 0 at the end.
  [[nodiscard]] uint32_t UncountedFrom(uint32_t from, std::span<Uncounted> out,
                                       size_t* count) const;
  // Marks the block as counted in the parent `raised.counted_by`, if any, and sets that to nullopt.
  // Does nothing if the slot no longer has this block with this parent in a tier, or if the block
  // is counted already.
  void Count(const Uncounted& block, Raised& raised);

 private:
  ShardEntries& entries_;
  EvictionLists& lists_;
};

}  // namespace larder
