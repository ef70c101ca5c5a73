// Estimates how much of its share of the disk a shard's catalog takes, and how many more entries
// fit.
//
// RocksDB frees the space of erased entries only when it compacts them away, so the size of its
// files says little about how many entries fit.  This class estimates the bytes of live entries
// (those that are not erased), and Full compacts the files if they take the whole share and enough
// of it seems not to be live.
// Ownership: by DiskShard; the catalog outlives the CatalogShare.
// Thread-safety: all methods from any thread.
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

  // Sets the number of entries to `entries`, which a start has found.
  void Found(uint64_t entries);
  // Counts entries that were committed.
  void Committed(std::span<const CatalogEntry> entries);
  // Subtracts `entries` erased entries, which are assumed to be of average size.
  void Erased(uint64_t entries);
  // Sets the bytes that facts take, which are not available for entries.
  void SetFacts(ByteCount bytes) { fact_bytes_ = bytes.value(); }

  // Returns an estimate of how many more entries of average size fit.  Does not count a quarter of
  // the share, which is left to erased entries.
  [[nodiscard]] uint64_t entries_left() const;
  // Returns true if the files take the whole share, as far as is known, and compacting them did not
  // help or would free too little.  May compact, which may take seconds.
  [[nodiscard]] bool Full();

 private:
  [[nodiscard]] uint64_t EntryBytes() const;

  BlockCatalog& catalog_;
  const ByteCount limit_;
  std::atomic<uint64_t> entries_{0}, live_bytes_{0}, fact_bytes_{0};
  // disk_bytes_: the size of the files when it was last read.  seen_written_: an earlier value of
  // BlockCatalog::written_bytes().
  std::atomic<uint64_t> disk_bytes_{0}, seen_written_{0};
  std::atomic<bool> seen_{false};
  std::atomic<TimePoint> look_again_{TimePoint()};  // when to examine full files again
};

}  // namespace larder
