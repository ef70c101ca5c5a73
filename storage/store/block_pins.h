// Who wants which blocks of a store kept: their names (PinTable), and the index's marks by which
// eviction passes them over.
//
// A pin is of a name: it comes back to a block that was lost and is published or found again
// (Entered).  An owner counts once; two owners keep a block until both have let go of it.
//
// Ownership: part of BlockStore; the index outlives it.
// Thread-safety: all methods from any thread.  Locks: `mu_` comes after BlockStore's, before a
// shard's.
// Limits: `pins_max` pins, and the bytes of the blocks that they keep in either tier, so that there
// is always room for others.  A pin whose block comes (back) when there is none does not keep it.
// Of each limit a user (PinTable), and all prefetches together, get more while they then hold no
// more than three times what is free.
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

  // kOk: it is in that tier and stays there.  kPending: pinned, and in another tier; to bring it is
  // for Promoter and Spiller.  kMissing: no such block, so nothing was changed.  kFull: a limit.
  // A pin of no owner (a prefetch) only ever gets a later deadline: several callers share it.
  // REQUIRES: key.tier is kHost or kDisk.
  [[nodiscard]] BlockStatus Add(std::string_view owner, const PinKey& key, uint64_t deadline_ms)
      LARDER_EXCLUDES(mu_);
  // As a former process had it, whether the block is there or not.  False: too many.
  [[nodiscard]] bool Restore(std::string_view owner, const PinKey& key, uint64_t deadline_ms)
      LARDER_EXCLUDES(mu_);
  // False: no such pin.
  [[nodiscard]] bool Remove(std::string_view owner, const PinKey& key) LARDER_EXCLUDES(mu_);
  // As PinTable::RemoveIf.
  [[nodiscard]] std::vector<Pin> RemoveIf(
      absl::FunctionRef<bool(std::string_view owner, const PinKey& key)> which)
      LARDER_EXCLUDES(mu_);
  // Those whose deadline is `now_ms` or before, at most so many.
  [[nodiscard]] std::vector<Pin> Expire(uint64_t now_ms, size_t pins) LARDER_EXCLUDES(mu_);

  // A name has just entered the index.  Cheap where nothing is pinned.
  void Entered(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);

  // nullopt: no such pin.
  [[nodiscard]] std::optional<uint64_t> DeadlineOf(std::string_view owner, const PinKey& key) const
      LARDER_EXCLUDES(mu_);
  // Owners that pin it.
  [[nodiscard]] uint32_t Count(const PinKey& key) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t size() const { return size_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::vector<Pin> All() const LARDER_EXCLUDES(mu_);
  void CheckInvariants() const LARDER_EXCLUDES(mu_);

 private:
  // For one block more.
  [[nodiscard]] bool HasRoom(Tier tier, const BlockIndex::Presence& block) const;
  // Of the pins and, with `first`, of the bytes that are left, once its owner has this one.
  [[nodiscard]] bool HasShare(std::string_view owner, Tier tier, const BlockIndex::Presence& block,
                              bool first) const LARDER_REQUIRES(mu_);
  // Where its block is there, and there is room.
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
