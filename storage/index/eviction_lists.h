// The order in which the entries of one index shard may leave their tier, and how many pages pins
// keep in each tier.
//
// Invariants:
//   An entry is on at most one list: that of its state (in HOST alone, in HOST and on disk, on disk
//   alone) and of the class of its reuse history (ReuseClassOf).  `listed` says whether it is on
//   one.
//   An entry in one of these states that is neither held nor pinned (PinnedHere) is listed.  A held
//   entry may stay listed, as with HoldWhat::kUntouched; evictions skip it.
//   evictable_pages() is the number of pages of listed entries in HOST.  pinned_pages() counts the
//   pages of pinned entries (PinnedPages).
// Code that changes an entry's state, pages or pins must keep these invariants: it calls
// ChangeState or Resize, or what the change needs of Unlist, CountPinned and Relist.  A change
// between `disk` and `promoting` changes no sum, since both are on disk only.
// Ownership: does not own the entries, which belong to a ShardEntries that outlives it.
// Thread-safety: none; the shard's lock guards it, except evictable_pages, has_copies and
// pinned_pages, which any thread may call.
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
  // A search for an entry to evict looks at no more than this many entries of a list, from the
  // coldest on.
  static constexpr uint32_t kEvictionLook = 16;

  explicit EvictionLists(ShardEntries& entries);

  // Returns whether the entry is on a list and not held.  Evictions choose only such entries.
  [[nodiscard]] static bool MayLeave(const IndexEntry& entry) {
    return entry.listed && entry.holds == 0;
  }
  // Returns whether a pin keeps the entry off the lists.  A pin of DISK does not if the block is in
  // both tiers, since it may then leave HOST.
  [[nodiscard]] static bool PinnedHere(const IndexEntry& entry) {
    return entry.pinned_host || (entry.pinned_disk && entry.state != BlockState::kHostDisk);
  }
  // Return the entry's worth per byte (EvictionPolicy): WorthOf to the tier that evictions remove
  // it from first, which is HOST if it is there, and WorthOnDisk to the disk tier.  While HOST has
  // the block too, its record on disk is worth no less, since the record alone remains once the
  // block has left HOST, and after a restart.
  [[nodiscard]] static double WorthOf(const IndexEntry& entry, const EvictionPolicy& policy,
                                      uint32_t now_s);
  [[nodiscard]] static double WorthOnDisk(const IndexEntry& entry, const EvictionPolicy& policy,
                                          uint32_t now_s);

  // Puts the entry on its list or takes it off, as its state, holds and pins require.  An entry
  // that Relist puts on its list becomes the hottest there.
  void Relist(uint32_t slot);
  void Unlist(uint32_t slot);
  // Makes the entry the coldest of its list.  REQUIRES: the entry is listed.
  void MakeColdest(uint32_t slot);
  // A hint that Relist will take this entry off its list.
  void PrefetchRemove(const IndexEntry& entry) const { host_[0].PrefetchRemove(entry); }

  // Calls change(), which moves the entry to another state, and updates the lists and sums around
  // that call.  An entry that was listed becomes the hottest of its new list, even if it is held.
  // REQUIRES: the new state has a list if the entry was listed.
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
      Relist(slot);  // in the new state its pin may no longer keep it off the lists
    }
  }
  // Gives an entry in HOST another extent there.  The entry keeps its place on its list, if any.
  void Resize(uint32_t slot, const Extent& extent);
  // Adds `more` times the entry's pages to the sums of pinned_pages() that include the entry as it
  // is now.  Callers pass -1 before they change its pins, pages or tiers, and 1 after the change.
  void CountPinned(const IndexEntry& entry, int64_t more);

  // An entry that an eviction may choose.
  struct Candidate {
    static constexpr double kNothing = std::numeric_limits<double>::infinity();
    uint32_t slot = EntrySlots::kNone;
    double worth = kNothing;
    uint32_t among = 0;  // the number of entries on its list
    // If two candidates are worth the same, as blocks published within one second may be, the one
    // on the longer list is less: a short list would otherwise lose even its newest entry.
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return a.worth < b.worth || (a.worth == b.worth && a.among > b.among);
    }
  };
  // LeastInHost searches the entries in HOST, LeastOnDiskAlone those on disk only: they choose at
  // most one of the kEvictionLook coldest of each list, and return the one of those chosen that is
  // worth least, or a Candidate without slot if there is none.  Held entries are never chosen.
  // Entries with children that are in one tier only are chosen only if `parents_too`; such entries
  // that are skipped may become the hottest, so that they do not hide other entries forever.  An
  // entry with children that is in both tiers may be chosen in any case: it stays in the index, so
  // its children keep their prefix.
  [[nodiscard]] Candidate LeastInHost(const EvictionPolicy& policy, bool parents_too,
                                      uint32_t now_s);
  [[nodiscard]] Candidate LeastOnDiskAlone(const EvictionPolicy& policy, bool parents_too,
                                           uint32_t now_s);
  // Returns one of the coldest entries in both tiers, of little worth, whose copy on disk the
  // caller can drop: it is not held, and no pin keeps the copy.  Returns a Candidate without slot
  // if it finds none.
  [[nodiscard]] Candidate LeastCopied(const EvictionPolicy& policy, uint32_t now_s);

  // Returns how many pages evictions from HOST may free.  May include entries that the daemon holds
  // for a moment (HoldWhat::kUntouched), which evictions skip.  From any thread.
  [[nodiscard]] uint64_t evictable_pages() const {
    return listed_pages_.load(std::memory_order_relaxed);
  }
  // Returns whether any listed entry is in both tiers.  A hint, from any thread.
  [[nodiscard]] bool has_copies() const { return copies_.load(std::memory_order_relaxed) > 0; }
  // Sums of the pages of pinned blocks, even of pages that are not in the tier yet.  From any
  // thread.
  struct PinnedPages {
    // Blocks with a pin of HOST, and blocks with a pin of DISK that are in HOST alone.
    std::atomic<uint64_t> host{0};
    std::atomic<uint64_t> disk{0};  // blocks with a pin of DISK
  };
  [[nodiscard]] const PinnedPages& pinned_pages() const { return pinned_; }

  // Checks lists and sums against all entries.
  void CheckInvariants() const;

 private:
  using Lists = std::array<RecencyList, kReuseClasses>;

  // Returns the list for the entry's state and class, or nullptr if there is no list for the state.
  [[nodiscard]] RecencyList* ListFor(const IndexEntry& entry);
  void List(uint32_t slot);
  // The sums are written only under the shard's lock, so a load and a store suffice to change one.
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

  // Returns the coldest entry that is not held and, unless `parents_too`, has no children; kNone if
  // the kEvictionLook coldest include no such entry.  Makes the entries that it skips the hottest.
  [[nodiscard]] uint32_t Coldest(RecencyList& list, bool parents_too);
  // Returns the coldest entry that is not held and whose copy on disk is not pinned; kNone if the
  // kEvictionLook coldest include no such entry.  Makes the entries that it skips the hottest.
  [[nodiscard]] uint32_t ColdestUnpinnedCopy(RecencyList& list);
  // Of the kEvictionLook coldest entries, returns the coldest that is not held and has no children,
  // or otherwise the coldest that is not held; kNone if all are held.  Moves no entry.
  [[nodiscard]] uint32_t ColdestOfCopied(const RecencyList& list) const;
  // Returns the least (operator<) of the entries that choose(list) returns for the lists.
  template <class Choose>
  [[nodiscard]] Candidate LeastWorthy(Lists& lists, const EvictionPolicy& policy, uint32_t now_s,
                                      Choose choose);

  ShardEntries& entries_;
  // Lists by ReuseClassOf, of blocks in HOST alone, in HOST and on disk, and on disk alone.
  Lists host_, copied_, disk_;
  std::atomic<uint32_t> copies_{0};        // number of entries on the lists of copied_
  std::atomic<uint64_t> listed_pages_{0};  // pages of the listed entries in HOST
  PinnedPages pinned_;
};

}  // namespace larder
