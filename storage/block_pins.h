// Who wants which blocks of a store kept: their names (PinTable), and the index's marks by which
// eviction passes them over.
//
// A pin is of a name: it comes back to a block that was lost and is published or found again
// (Entered).  An owner counts once; two owners keep a block until both have let go of it.
//
// Ownership: part of BlockStore; the index outlives it.
// Thread-safety: all methods from any thread.  Locks: `mu_` comes after BlockStore's, before a
// shard's.
// Limits: `pins_max` pins; the blocks that pins of HOST keep have `host_bytes_max` in all, so that
// there is always room for others.  What was pinned before it was there may exceed that, no more
// than pins_max allows.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "storage/block_index.h"
#include "storage/mutex.h"
#include "storage/pin_table.h"
#include "storage/types.h"

namespace larder {

class BlockPins {
 public:
  BlockPins(size_t pins_max, ByteCount host_bytes_max, BlockIndex& index)
      : host_bytes_max_(host_bytes_max), index_(index), table_(pins_max) {}

  // kOk: it is in that tier and stays there.  kPending: pinned, and in another tier; to bring it is
  // for Promoter and Spiller.  kMissing: no such block, so nothing is pinned.  kFull: a limit.
  // REQUIRES: key.tier is kHost or kDisk.
  [[nodiscard]] BlockStatus Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms)
      LARDER_EXCLUDES(mu_);
  // As a former process had it, whether the block is there or not.  False: too many.
  [[nodiscard]] bool Restore(std::string_view owner, const PinKey& key, uint64_t deadline_ms)
      LARDER_EXCLUDES(mu_);
  // False: no such pin.
  [[nodiscard]] bool Remove(std::string_view owner, const PinKey& key) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::vector<Pin> RemoveOwner(std::string_view owner) LARDER_EXCLUDES(mu_);
  // Those whose deadline is `now_ms` or before, at most so many.
  [[nodiscard]] std::vector<Pin> Expire(uint64_t now_ms, size_t pins) LARDER_EXCLUDES(mu_);

  // A name has just entered the index.  Cheap where nothing is pinned.
  void Entered(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);

  // Owners that pin it.
  [[nodiscard]] uint32_t Count(const PinKey& key) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t size() const { return size_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::vector<Pin> All() const LARDER_EXCLUDES(mu_);
  void CheckInvariants() const LARDER_EXCLUDES(mu_);

 private:
  [[nodiscard]] bool HostHasRoom(ByteCount bytes) const {
    return index_.pinned_bytes() + bytes <= host_bytes_max_;
  }
  void LetGo(const PinKey& key) LARDER_REQUIRES(mu_);
  void NoteSize() LARDER_REQUIRES(mu_) { size_.store(table_.size(), std::memory_order_relaxed); }

  const ByteCount host_bytes_max_;
  BlockIndex& index_;
  mutable Mutex mu_;
  PinTable table_ LARDER_GUARDED_BY(mu_);
  std::atomic<size_t> size_{0};
};

}  // namespace larder
