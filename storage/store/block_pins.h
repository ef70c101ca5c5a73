// The pins of a store: their names (PinTable), and the marks in the index by which eviction passes
// over pinned blocks.
//
// A pin belongs to a name: if its block is lost, and is then published or found again, the pin
// keeps the new one (Entered).  Each owner counts once; if two owners pin a block, it stays until
// both have removed their pins.
//
// Ownership: part of BlockStore; the index outlives it.
// Thread-safety: all methods from any thread.  Locks: `mu_` comes after BlockStore's, before a
// shard's.
// Limits: `pins_max` pins and, in each tier, the bytes of the blocks that pins keep, so that there
// is always capacity for other blocks.  A pin whose block enters when those bytes are used up does
// not keep it.  Within each limit, a user (PinTable) that has a pin already, and all prefetches
// together, get more only while they then hold no more than three times what is still free.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "storage/index/block_index.h"
#include "storage/mutex.h"
#include "storage/store/pin_table.h"
#include "storage/types.h"

namespace larder {

class BlockPins {
 public:
  struct Limits {
    size_t pins_max = 0;
    ByteCount host_bytes_max, disk_bytes_max;
  };
  BlockPins(const Limits& limits, BlockIndex& index)
      : limits_(limits), index_(index), table_(limits.pins_max) {}

  // Adds a pin, or gives one a new deadline.  kOk: the block is in that tier and stays there.
  // kPending: it is pinned, but still in another tier, from which Promoter or Spiller brings it.
  // kMissing: there is no such block; nothing has changed.  kFull: a limit is reached.  The
  // deadline of a pin without owner (a prefetch) only ever becomes later, since several callers
  // share it.
  // REQUIRES: key.tier is kHost or kDisk.
  [[nodiscard]] BlockStatus Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms)
      LARDER_EXCLUDES(mu_);
  // Adds a pin that an earlier process had, whether or not its block exists.  Returns false if
  // there are too many pins.
  [[nodiscard]] bool Restore(std::string_view owner, const PinKey& key, uint64_t deadline_ms)
      LARDER_EXCLUDES(mu_);
  // Returns false if there is no such pin.
  [[nodiscard]] bool Remove(std::string_view owner, const PinKey& key) LARDER_EXCLUDES(mu_);
  // As PinTable::RemoveIf.
  [[nodiscard]] std::vector<Pin> RemoveIf(
      absl::FunctionRef<bool(std::string_view owner, const PinKey& key)> which)
      LARDER_EXCLUDES(mu_);
  // Removes and returns pins whose deadline is `now_ms` or before, at most `pins` of them.
  [[nodiscard]] std::vector<Pin> Expire(uint64_t now_ms, size_t pins) LARDER_EXCLUDES(mu_);

  // A name has just entered the index: marks its entry if the name is pinned.  Cheap if there are
  // no pins.
  void Entered(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);

  // Returns nullopt if there is no such pin.
  [[nodiscard]] std::optional<uint64_t> DeadlineOf(std::string_view owner, const PinKey& key) const
      LARDER_EXCLUDES(mu_);
  // Returns how many owners pin the key.
  [[nodiscard]] uint32_t Count(const PinKey& key) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t size() const { return size_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::vector<Pin> All() const LARDER_EXCLUDES(mu_);
  void CheckInvariants() const LARDER_EXCLUDES(mu_);

 private:
  // Whether the bytes that pins may keep in `tier` suffice for this block too.
  [[nodiscard]] bool HasRoom(Tier tier, const BlockIndex::Presence& block) const;
  // Whether the owner's user may have one more pin and, if `first` (no other pin keeps this block),
  // its bytes.
  [[nodiscard]] bool HasShare(std::string_view owner, Tier tier, const BlockIndex::Presence& block,
                              bool first) const LARDER_REQUIRES(mu_);
  // Marks the key's block as pinned, if it exists and the limits allow it.
  void Mark(const PinKey& key) LARDER_REQUIRES(mu_);
  void LetGo(const PinKey& key) LARDER_REQUIRES(mu_);
  void NoteSize() LARDER_REQUIRES(mu_) { size_.store(table_.size(), std::memory_order_relaxed); }

  const Limits limits_;
  BlockIndex& index_;
  mutable Mutex mu_;
  PinTable table_ LARDER_GUARDED_BY(mu_);
  std::atomic<size_t> size_{0};
};

}  // namespace larder
