// How much of its part of the disk a shard's catalog takes, and how many entries more it may have.
//
// RocksDB gives back what erased entries take when it compacts them away, so its files say little
// of what could be there: this counts what is alive, and compacts for want of room when that gives
// something back.  An estimate: of entries found at start the size is not known until the first
// compaction.
// Ownership: by DiskShard; the catalog outlives it.  Thread-safety: all methods from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "storage/clock.h"
#include "storage/disk/block_catalog.h"
#include "storage/types.h"

namespace larder {

class CatalogShare {
 public:
  CatalogShare(BlockCatalog& catalog, ByteCount limit) : catalog_(catalog), limit_(limit) {}

  void Found(uint64_t entries);
  void Committed(std::span<const CatalogEntry> entries);
  void Erased(uint64_t entries);
  // What its facts take, which is not the entries'.
  void SetFacts(ByteCount bytes) { fact_bytes_ = bytes.value(); }

  // So many entries fit beside those that are there: of their part, some is for what was erased.
  [[nodiscard]] uint64_t entries_left() const;
  // The files take all they may, and a compaction gives nothing back.  Seconds, where it compacts.
  [[nodiscard]] bool Full();

 private:
  [[nodiscard]] uint64_t EntryBytes() const;

  BlockCatalog& catalog_;
  const ByteCount limit_;
  std::atomic<uint64_t> entries_{0}, live_bytes_{0}, fact_bytes_{0};
  // As last looked at: what the files take, and had been written by then.
  std::atomic<uint64_t> disk_bytes_{0}, seen_written_{0};
  std::atomic<bool> seen_{false};
  std::atomic<TimePoint> look_again_{TimePoint()};  // though nothing was written
};

}  // namespace larder
