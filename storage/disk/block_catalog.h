// What one shard of the disk tier stores about its blocks besides their bytes, in RocksDB: where
// each record lies, its header and its token ids.  Also stores the tier's facts, which are small
// values such as pins.  Only block_catalog.cc includes RocksDB.
//
// There are three column families besides RocksDB's default one, which holds the identity of the
// catalog.  The keys of places and headers are variant id and digest (docs/format.md, "Disk tier"):
//   places   where a record lies; small, because a start reads all of this family
//   headers  the record's header, byte for byte as in the data file, and the token ids
//   facts    values under keys of 1 to 512 bytes
// All families change through one write-ahead log, in order: after a crash the catalog holds a
// prefix of the writes that were made.
//
// An extent is called superseded when its key names a newer record, or when Forget has removed the
// key.  The catalog remembers superseded extents in memory until they are erased.
// After a failed write RocksDB may refuse further writes until it is told to resume or is reopened.
// The next write first tells it to resume, and if that fails, tries to reopen the database.  A
// database that cannot be reopened for writes is opened read-only if possible.  Readers wait while
// it is reopened.
// Ownership: made by DiskShard.  Thread-safety: all methods from any thread.  Blocking: all
// methods may wait for the disk, except MayComeBack, writable, unread_names and written_bytes.
// Memory: block cache and write buffers from Options::memory, which all shards share; usually at
// most about 300 KiB for ErasedNames; the superseded extents.  Disk: the files may take several
// times the live data until a compaction.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/disk/catalog_values.h"
#include "storage/disk/disk_tier.h"
#include "storage/fault_points.h"
#include "storage/format/block_key.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

// The memory that the catalogs of all shards share for block cache and write buffers, with one
// budget for both.
class CatalogMemory {
 public:
  explicit CatalogMemory(ByteCount budget);
  ~CatalogMemory();
  CatalogMemory(const CatalogMemory&) = delete;
  CatalogMemory& operator=(const CatalogMemory&) = delete;
  [[nodiscard]] ByteCount used() const;

 private:
  friend class BlockCatalog;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class BlockCatalog {
 public:
  struct Options {
    std::string directory;                         // created if it does not exist
    ByteCount disk_bytes_max;                      // determines the sizes of log and buffers
    CatalogMemory* memory = nullptr;               // not null
    FaultPoints* faults = nullptr;                 // not null
    std::function<void(const std::string&)> warn;  // receives RocksDB's warnings; may be empty
  };
  // Opens the catalog, or creates an empty one.  Returns DataLoss if the catalog is damaged and
  // cannot be opened; FailedPrecondition if RocksDB does not support its files.  After any other
  // error a later attempt may succeed.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BlockCatalog>> Open(const Options& options);
  ~BlockCatalog();
  BlockCatalog(const BlockCatalog&) = delete;
  BlockCatalog& operator=(const BlockCatalog&) = delete;

  // Writes all entries or none.  On OK they are durable; after an error the catalog may or may not
  // have them.  A key that existed now names its new extent; its former extent stays in use until
  // it is erased.
  // If the former entry of a key cannot be read (counted in unread_names), the extent in that entry
  // may stay allocated until the next start.
  [[nodiscard]] absl::Status Commit(std::span<const CatalogEntry> entries) LARDER_EXCLUDES(mu_);
  // A record's extent and the key under which the record was put.
  struct Room {
    BlockKey key;
    Extent extent;
    friend bool operator==(const Room&, const Room&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Room& room) {
      return H::combine(std::move(h), room.key, room.extent.slab, room.extent.page);
    }
  };
  // Removes the key of each Room if the key still names the extent of the Room, or if its entry is
  // damaged; a key that names another extent stays.  On OK the removal survives the process; the
  // next Commit, or any other durable write, makes it survive a loss of power (MayComeBack).  After
  // an error each key may or may not be removed.
  // If `erased` is not null, (*erased)[i] is set to true if no other record owns the extent of
  // rooms[i], and to false if another record may own it.
  [[nodiscard]] absl::Status Erase(std::span<const Room> rooms, std::vector<bool>* erased = nullptr)
      LARDER_EXCLUDES(mu_);
  // Removes the key of each Room if the key still names the extent of the Room, or if its entry is
  // damaged.  The extent stays in use until it is erased.  After an error each key may or may not
  // be removed.
  [[nodiscard]] absl::Status Forget(std::span<const Room> rooms) LARDER_EXCLUDES(mu_);

  // On OK everything written so far, erasures included, is durable.
  [[nodiscard]] absl::Status Sync() LARDER_EXCLUDES(mu_);
  // Returns, for each key, whether a loss of power may bring it back because its removal is not
  // durable yet.  May also be true for other keys.  Never waits for the disk.
  [[nodiscard]] std::vector<bool> MayComeBack(std::span<const BlockKey> keys) const;

  using Description = CatalogDescription;
  // Sets out[i] to the header and tokens in the entry of keys[i], or to nullopt if there is no
  // entry or it is found damaged.  Returns an error if the disk failed; out[i] may then be
  // unchanged, or nullopt although there is an entry.
  [[nodiscard]] absl::Status Describe(std::span<const BlockKey> keys,
                                      std::span<std::optional<Description>> out);
  // Sets out[i] to where the record of keys[i] lies, or to nullopt if there is no entry or it is
  // found damaged.  Returns an error if the disk failed; out[i] may then be unchanged, or nullopt
  // although there is an entry.
  [[nodiscard]] absl::Status Places(std::span<const BlockKey> keys,
                                    std::span<std::optional<CatalogPlace>> out);
  // Visits the entries of the family `places` in key order, until `visit` returns false.  Returns
  // DataLoss at the first damaged entry, and another error if the disk fails.
  [[nodiscard]] absl::Status ForEachPlace(
      absl::FunctionRef<bool(const BlockKey&, const CatalogPlace&)> visit);

  // Writes all facts or none; a fact with an empty value is deleted.  On OK they are durable; after
  // an error the catalog may or may not have them.
  [[nodiscard]] absl::Status PutFacts(std::span<const DiskTier::Fact> facts) LARDER_EXCLUDES(mu_);
  // Visits all facts, in key order.  Returns an error if the facts cannot all be read, perhaps
  // after some visits.  REQUIRES: `visit` does not call this catalog.
  [[nodiscard]] absl::Status ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit);

  // Returns which shard this catalog belongs to (TierDirectory::IdentityOf), or an empty string if
  // it has no identity.
  [[nodiscard]] absl::StatusOr<std::string> Identity();
  // Sets which shard this catalog belongs to (TierDirectory::IdentityOf).  Durable on OK.
  [[nodiscard]] absl::Status SetIdentity(const std::string& identity) LARDER_EXCLUDES(mu_);

  // Frees the disk space of erased entries as far as possible.  May keep the disk busy for seconds.
  // Does nothing if that is not possible now.
  void Compact();

  [[nodiscard]] uint64_t unread_names() const;  // since Open: keys that Commit failed to read
  // Returns false while the catalog must be made writable again after a failed write.  Cheap.
  [[nodiscard]] bool writable() const;
  // Makes the catalog writable again if a write has failed, as the next write would do.  Returns an
  // error if that fails.
  [[nodiscard]] absl::Status MakeWritable() LARDER_EXCLUDES(mu_);
  [[nodiscard]] ByteCount disk_bytes() const;     // of all its files; reads the directory
  [[nodiscard]] ByteCount written_bytes() const;  // since Open: log, flushes, compactions

 private:
  struct Impl;
  explicit BlockCatalog(std::unique_ptr<Impl> impl);
  // Held by each writer, so that no other writer changes what a key names between a writer's read
  // of the key and the write that depends on what it has read.
  Mutex mu_;
  [[nodiscard]] absl::Status EraseNames(std::span<const Room> rooms, std::vector<bool>* named)
      LARDER_REQUIRES(mu_);

  // Extents that are not erased yet although their keys may no longer name them.
  absl::flat_hash_set<Room> superseded_ LARDER_GUARDED_BY(mu_);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
