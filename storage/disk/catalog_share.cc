#include "storage/disk/catalog_share.h"

#include <algorithm>

#include "storage/clock.h"

namespace larder {
namespace {

// Full reads the size of the files again at the latest when another 1/kLooks of the limit has been
// written.
constexpr uint64_t kLooks = 16;
// Files that have reached the limit are compacted if they seem to have limit / kCompactions bytes
// or more that are not live.
constexpr uint64_t kCompactions = 16;
// The assumed size in bytes of an entry that a start has found, and of an average entry while there
// are none.
constexpr uint64_t kEntryBytesFound = 1024;
// The assumed bytes of an entry besides header and token ids: two keys, a CatalogPlace, and
// RocksDB's own data.
constexpr uint64_t kEntryBytesBeside = 192;

constexpr Duration kBetweenLooks = std::chrono::seconds(1);

}  // namespace

void CatalogShare::Found(uint64_t entries) {
  entries_ = entries;
  live_bytes_ = std::min(entries * kEntryBytesFound, catalog_.disk_bytes().value());
}

void CatalogShare::Committed(std::span<const CatalogEntry> entries) {
  uint64_t bytes = 0;
  for (const CatalogEntry& entry : entries)
    bytes += entry.header.size() + entry.tokens.size_bytes() + kEntryBytesBeside;
  entries_ += entries.size();
  live_bytes_ += bytes;
}

void CatalogShare::Erased(uint64_t entries) {
  live_bytes_ -= std::min(live_bytes_.load(), entries * EntryBytes());
  entries_ -= std::min(entries_.load(), entries);
}

uint64_t CatalogShare::EntryBytes() const {
  const uint64_t entries = entries_;
  return entries == 0 ? kEntryBytesFound : std::max<uint64_t>(1, live_bytes_ / entries);
}

uint64_t CatalogShare::entries_left() const {
  const uint64_t may_live = limit_.value() / 4 * 3;
  const uint64_t live = live_bytes_ + fact_bytes_;
  return live >= may_live ? 0 : (may_live - live) / EntryBytes();
}

bool CatalogShare::Full() {
  const uint64_t limit = limit_.value();
  const uint64_t written = catalog_.written_bytes().value();
  // RocksDB may delete the input files of a compaction a little later, and little is written while
  // the catalog is full.  So the size of full files is read again after kBetweenLooks even without
  // writes.
  const TimePoint now = SteadyNow();
  const bool again = disk_bytes_ >= limit && now >= look_again_.load();
  if (!seen_.exchange(true) || again || written - seen_written_ >= limit / kLooks) {
    look_again_ = now + kBetweenLooks;
    seen_written_ = written;
    disk_bytes_ = catalog_.disk_bytes().value();
    live_bytes_ = std::min(live_bytes_.load(), disk_bytes_.load());
  }
  if (disk_bytes_ < limit) return false;
  const uint64_t live = live_bytes_ + fact_bytes_;
  if (disk_bytes_ - std::min(disk_bytes_.load(), live) < limit / kCompactions) return true;
  catalog_.Compact();
  disk_bytes_ = catalog_.disk_bytes().value();
  live_bytes_ = disk_bytes_ - std::min(disk_bytes_.load(), fact_bytes_.load());  // exact now
  return disk_bytes_ >= limit;
}

}  // namespace larder
