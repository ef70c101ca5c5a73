// The pins of a store: the table of all pins (PinTable), and the marks in the index by which
// evictions know pinned blocks (BlockIndex::SetPinned).
//
// A pin belongs to the name of a block (variant and digest): if the block is lost, and a block of
// this name is then published or found on disk again, the pin keeps the new block if the limits
// allow it (Entered).  A block keeps its mark until the last pin of its PinKey ends, or the block
// loses its name.
//
// Ownership: part of BlockStore; the index outlives it.
// Thread-safety: all methods from any thread.
// Locks: `mu_` is taken after BlockStore::mu_ and before that of an index shard.
// Limits: `pins_max` pins and, in each tier, the bytes of the blocks that pins keep, so that other
// blocks have capacity too.  If a limit of bytes is reached when the block of a pin enters the
// index, the pin does not keep the block.  In Add, a user (PinTable) that has a pin already gets
// another only if it then has at most three times as many pins as are still free; if no pin of the
// key keeps the block yet, the same holds for the bytes.  Pins that are renewed are not compared
// with these shares.
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

  // Adds a pin, or changes the deadline of an existing one.  kOk: the pin exists and the block is
  // in key.tier.  kPending: the pin exists, but the block is only in the other tier, from which it
  // has yet to be copied.  kMissing: there is no such block.  kFull: a limit is reached, so the pin
  // does not keep the block.  After kMissing and kFull nothing has changed, except perhaps the
  // deadline of a pin that the owner has already.  The deadline of a pin without owner (a prefetch)
  // never becomes earlier, since several callers share this pin.
  // REQUIRES: key.tier is kHost or kDisk.
  [[nodiscard]] BlockStatus Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms)
      LARDER_EXCLUDES(mu_);
  // Adds a pin that the daemon had before a restart, whether or not its block exists.  Returns
  // false if there are too many pins.
  [[nodiscard]] bool Restore(std::string_view owner, const PinKey& key, uint64_t deadline_ms)
      LARDER_EXCLUDES(mu_);
  // Returns false if there is no such pin.
  [[nodiscard]] bool Remove(std::string_view owner, const PinKey& key) LARDER_EXCLUDES(mu_);
  // Removes and returns the pins for which which(owner, key) is true.  O(pins).
  [[nodiscard]] std::vector<Pin> RemoveIf(
      absl::FunctionRef<bool(std::string_view owner, const PinKey& key)> which)
      LARDER_EXCLUDES(mu_);
  // Removes and returns pins whose deadline is `now_ms` or earlier, the earliest first, at most
  // `pins` of them.
  [[nodiscard]] std::vector<Pin> Expire(uint64_t now_ms, size_t pins) LARDER_EXCLUDES(mu_);

  // BlockStore calls this after it has published a block or entered one from disk: marks the
  // block's entry for each tier in which the name is pinned, if the limits allow it.  Takes no lock
  // if there are no pins.
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
  // Whether a pin of `tier` for this block would stay within the bytes that pins may keep.
  [[nodiscard]] bool HasRoom(Tier tier, const BlockIndex::Presence& block) const;
  // Whether the owner's user may have one more pin and, if this is the `first` pin that keeps the
  // block in `tier`, the block's bytes too.
  [[nodiscard]] bool HasShare(std::string_view owner, Tier tier, const BlockIndex::Presence& block,
                              bool first) const LARDER_REQUIRES(mu_);
  // Marks the key's block as pinned, if it exists and the limits allow it.
  void Mark(const PinKey& key) LARDER_REQUIRES(mu_);
  // Removes the mark from the key's block unless the table still has a pin of this key.
  void LetGo(const PinKey& key) LARDER_REQUIRES(mu_);
  void NoteSize() LARDER_REQUIRES(mu_) { size_.store(table_.size(), std::memory_order_relaxed); }

  const Limits limits_;
  BlockIndex& index_;
  mutable Mutex mu_;
  PinTable table_ LARDER_GUARDED_BY(mu_);
  std::atomic<size_t> size_{0};
};

}  // namespace larder
