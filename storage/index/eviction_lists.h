// The order in which the entries of one shard may leave their tier, and what pins keep there.
//
// Invariants:
//   An entry is on at most one list: that of its state (in HOST alone, in HOST and on disk, on disk
//   alone) and of the class of its reuse history.  `listed` says whether it is on one.
//   An entry that is not held and that no pin keeps in its tier is listed.  A held entry may stay
//   listed if it was held untouched (HoldWhat); evictions pass it over.
//   evictable_pages() is the sum over listed entries in HOST; pinned_pages() the sum over pinned
//   ones.
// So whatever changes an entry's state, pages or pins does it through ChangeState, Resize or
// CountPinned.
// Ownership: links the entries of a ShardEntries, which outlives it.
// Thread-safety: none; the shard's lock guards it, except the three sums that say so.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>

#include "storage/index/eviction_policy.h"
#include "storage/index/recency_list.h"
#include "storage/index/shard_entries.h"

namespace larder {

class EvictionLists {
 public:
  static constexpr uint32_t kEvictionLook = 16;  // coldest of a class that one eviction looks at

  explicit EvictionLists(ShardEntries& entries);

  // Returns whether an eviction may take this entry from the tier of its list.
  [[nodiscard]] static bool MayLeave(const IndexEntry& entry) {
    return entry.listed && entry.holds == 0;
  }
  // Returns whether a pin keeps the entry in the tier that its list is of.
  [[nodiscard]] static bool PinnedHere(const IndexEntry& entry) {
    return entry.pinned_host || (entry.pinned_disk && entry.state != BlockState::kHostDisk);
  }
  [[nodiscard]] static double WorthOf(const IndexEntry& entry, const EvictionPolicy& policy,
                                      uint32_t now_s);

  // Lists or unlists the entry as its state, holds and pins say; a newly listed one is the hottest.
  void Relist(uint32_t slot);
  void Unlist(uint32_t slot);
  // The entry becomes the first of its list to leave.  REQUIRES: listed.
  void MakeColdest(uint32_t slot);
  // Hints that Relist will take a listed entry from its list.
  void PrefetchRemove(const IndexEntry& entry) const { host_[0].PrefetchRemove(entry); }

  // Calls change(), which moves the entry to another state, and brings lists and sums up to date.
  // An entry that was listed comes to the hot end of its new list, though it may be held.
  template <class Change>
  void ChangeState(uint32_t slot, Change change) {
    const bool listed = entries_[slot].listed;
    Unlist(slot);
    CountPinned(entries_[slot], -1);
    change();
    CountPinned(entries_[slot], 1);
    if (listed) {
      List(slot);
    } else {
      Relist(slot);  // its pin may not keep it in the new state
    }
  }
  // Gives an entry in HOST another extent there; it keeps its place on its list.
  void Resize(uint32_t slot, const Extent& extent);
  // Adds `more` times the entry's pages to the sums of what pins keep: -1 before a change of its
  // pins, pages or state, 1 after it.
  void CountPinned(const IndexEntry& entry, int64_t more);

  // What an eviction may take.
  struct Candidate {
    static constexpr double kNothing = std::numeric_limits<double>::infinity();
    uint32_t slot = EntrySlots::kNone;
    double worth = kNothing;
    uint32_t among = 0;  // as many entries have this history and are at least as recent
    // Of equals, such as all blocks that were published within a second, the one on the longest
    // list is less: a short list would otherwise lose its newest entry.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.worth < b.worth || (a.worth == b.worth && a.among > b.among);
    }
  };
  // The least worthy entry among the kEvictionLook coldest of each class.  Entries with children
  // are passed over unless `parents_too`; they go to the hot end of their list, so that they do not
  // hide the rest forever.  An entry that is on disk too may leave HOST in any case: it stays in
  // the index, so its children keep their prefix.
  [[nodiscard]] Candidate LeastInHost(const EvictionPolicy& policy, bool parents_too,
                                      uint32_t now_s);
  [[nodiscard]] Candidate LeastOnDiskAlone(const EvictionPolicy& policy, bool parents_too,
                                           uint32_t now_s);
  // The least worthy of those in both tiers whose copy on disk no pin keeps.
  [[nodiscard]] Candidate LeastCopied(const EvictionPolicy& policy, uint32_t now_s);

  // Pages in HOST that evictions may take; some may be held untouched.  From any thread.
  [[nodiscard]] uint64_t evictable_pages() const {
    return listed_pages_.load(std::memory_order_relaxed);
  }
  // Returns whether a listed block is in both tiers.  A hint, from any thread.
  [[nodiscard]] bool has_copies() const { return copies_.load(std::memory_order_relaxed) > 0; }
  // What pins keep, or will keep once the block is in the tier that they want.  From any thread.
  struct PinnedPages {
    // Of pins of HOST, and of pins of DISK while the block is in HOST alone.
    std::atomic<uint64_t> host{0};
    std::atomic<uint64_t> disk{0};  // of pins of DISK
  };
  [[nodiscard]] const PinnedPages& pinned_pages() const { return pinned_; }

  // Checks lists and sums against all entries.
  void CheckInvariants() const;

 private:
  using Lists = std::array<RecencyList, kReuseClasses>;

  // Returns the list of an entry that may leave the tier that its state names, or nullptr if no
  // list is of that state.
  [[nodiscard]] RecencyList* ListFor(const IndexEntry& entry);
  void List(uint32_t slot);
  // Sums are written under the shard's lock alone, so a load and a store will do.
  void CountListed(uint32_t pages, bool more) {
    const uint64_t before = listed_pages_.load(std::memory_order_relaxed);
    listed_pages_.store(more ? before + pages : before - pages, std::memory_order_relaxed);
  }
  void CountCopies(int32_t more) {
    copies_.store(copies_.load(std::memory_order_relaxed) + static_cast<uint32_t>(more),
                  std::memory_order_relaxed);
  }
  [[nodiscard]] static bool TakesHostForPins(const IndexEntry& entry) {
    return InATier(entry.state) &&
           (entry.pinned_host || (entry.pinned_disk && entry.state == BlockState::kHost));
  }

  // The coldest entry that may leave and is no parent, unless `parents_too`; entries before it go
  // to the hot end.  kNone if it is none of the kEvictionLook coldest.
  [[nodiscard]] uint32_t Coldest(RecencyList& list, bool parents_too);
  // The coldest entry whose copy on disk is not pinned, likewise.
  [[nodiscard]] uint32_t ColdestUnpinnedCopy(RecencyList& list);
  // The first leaf among the kEvictionLook coldest that may leave, otherwise the coldest parent of
  // these.  All keep their places: a parent may leave too, so it hides no entry.
  [[nodiscard]] uint32_t ColdestOfCopied(const RecencyList& list) const;
  // The least worthy of what choose(list) returns for each class; the first of equals.
  template <class Choose>
  [[nodiscard]] Candidate LeastWorthy(Lists& lists, const EvictionPolicy& policy, uint32_t now_s,
                                      Choose choose);

  ShardEntries& entries_;
  // By class of reuse history: blocks in HOST alone, in HOST and on disk, on disk alone.
  Lists host_, copied_, disk_;
  std::atomic<uint32_t> copies_{0};        // listed in copied_
  std::atomic<uint64_t> listed_pages_{0};  // of what is listed and in HOST
  PinnedPages pinned_;
};

}  // namespace larder
