// What one shard stores about its blocks besides their bytes, in RocksDB: where each record lies,
// its header and its token ids.  Also stores the tier's facts.  Only block_catalog.cc includes
// RocksDB.
//
// There are three column families besides RocksDB's default one, which holds the identity of the
// catalog.  The keys of the first two are variant id and digest (docs/format.md, "Disk tier"):
//   places   where a record lies; small, because a start reads all of this family
//   headers  the record's header, byte for byte as in the data file, and the token ids
//   facts    small values under keys of 1 to 512 bytes
// All families change through one write-ahead log, in order: after a crash the catalog holds a
// prefix of the writes that were made.
//
// An extent is superseded when a newer record takes over its key, or when its key is removed by
// Forget.  The catalog remembers superseded extents in memory until they are erased.  The next
// process finds only the extents that the catalog names.
// After a failed write RocksDB refuses all further writes until it is told to resume or, if the
// failed write was one to its log, until it is reopened.  The next write first does what is needed;
// it fails if the disk accepts no writes, if the catalog must be reopened while a thread scans all
// of it (ForEachPlace, Compact), or within 1 s after reopening has failed.  If the catalog cannot
// be reopened for writes, it is opened read-only.  So it can usually be read meanwhile; a reader
// waits while it is being reopened, and gets Unavailable if it cannot be opened at all.
// Ownership: made by DiskShard.  Thread-safety: all methods from any thread.  Blocking: all methods
// may wait for the disk, except MayComeBack, writable, unread_names and written_bytes.
// Memory: block cache and write buffers within `memory`, which all shards share; about 300 KiB for
// ErasedNames; the superseded extents.  Disk: until a compaction several times the live data;
// disk_bytes() returns how much.
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
  // cannot be opened; FailedPrecondition if RocksDB does not support its files.  Any other error
  // means that the disk fails now.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BlockCatalog>> Open(const Options& options);
  ~BlockCatalog();
  BlockCatalog(const BlockCatalog&) = delete;
  BlockCatalog& operator=(const BlockCatalog&) = delete;

  // Enters all entries or none.  On OK they are durable; after an error the catalog may or may not
  // have them.  A key that existed now names its new extent; its former extent is superseded until
  // it is erased.
  // If the disk fails to read whether a key existed (counted in unread_names), Commit assumes that
  // it did not: a former extent then stays allocated until the next start.
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
  // next Commit, or any other durable write, makes it survive a loss of power (MayComeBack).  If
  // the disk fails to read what one of the keys names, Erase returns an error and removes no key;
  // after any other error each key may or may not be removed.
  // If `erased` is not null, (*erased)[i] is set to true if the key of rooms[i] named its extent
  // until now or the extent was superseded, so that no other record owns the extent.  If it is
  // false, the extent may belong to another record.
  [[nodiscard]] absl::Status Erase(std::span<const Room> rooms, std::vector<bool>* erased = nullptr)
      LARDER_EXCLUDES(mu_);
  // Removes the key of each Room if the key still names the extent of the Room, or if its entry is
  // damaged.  The extent stays in use and becomes superseded, until Erase is called for it.  After
  // an error each key may or may not be removed.
  [[nodiscard]] absl::Status Forget(std::span<const Room> rooms) LARDER_EXCLUDES(mu_);

  // On OK everything written so far, erasures included, is durable.
  [[nodiscard]] absl::Status Sync() LARDER_EXCLUDES(mu_);
  // Returns, for each key, whether it was erased or forgotten since the last durable write, so that
  // a loss of power may bring it back.  Returns true for any other key with a probability of about
  // 10^-15.  Never waits for the disk.
  [[nodiscard]] std::vector<bool> MayComeBack(std::span<const BlockKey> keys) const;

  using Description = CatalogDescription;
  // Sets out[i] to header and tokens of keys[i] as they were committed, or to nullopt if there is
  // no entry or the entry is damaged.  Returns an error if the disk failed; out[i] may then be
  // unchanged, or nullopt although there is an entry.
  [[nodiscard]] absl::Status Describe(std::span<const BlockKey> keys,
                                      std::span<std::optional<Description>> out);
  // Sets out[i] to where the record of keys[i] lies, or to nullopt if there is no entry or the
  // entry is damaged.  Returns an error if the disk failed; out[i] may then be unchanged, or
  // nullopt although there is an entry.
  [[nodiscard]] absl::Status Places(std::span<const BlockKey> keys,
                                    std::span<std::optional<CatalogPlace>> out);
  // Visits the entries of the family `places` in key order, until `visit` returns false.  Returns
  // DataLoss at the first entry that is damaged, and another error if the disk fails.
  [[nodiscard]] absl::Status ForEachPlace(
      absl::FunctionRef<bool(const BlockKey&, const CatalogPlace&)> visit);

  // Writes all facts or none; a fact with an empty value is deleted.  On OK they are durable; after
  // an error the catalog may or may not have them.
  [[nodiscard]] absl::Status PutFacts(std::span<const DiskTier::Fact> facts) LARDER_EXCLUDES(mu_);
  // Visits all facts, in key order.  Returns an error if the disk fails, perhaps after some visits.
  // REQUIRES: `visit` does not call this catalog.
  [[nodiscard]] absl::Status ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit);

  // Returns which shard this catalog belongs to (TierDirectory::IdentityOf), or an empty string if
  // it has no identity.
  [[nodiscard]] absl::StatusOr<std::string> Identity();
  // Sets which shard this catalog belongs to (TierDirectory::IdentityOf).  Durable on OK.
  [[nodiscard]] absl::Status SetIdentity(const std::string& identity) LARDER_EXCLUDES(mu_);

  // Frees the disk space of erased entries as far as possible.  May keep the disk busy for seconds.
  // Does nothing if the catalog cannot be read.
  void Compact();

  [[nodiscard]] uint64_t unread_names() const;  // since Open: keys that Commit failed to read
  // Returns false from a failed write until the catalog has been made writable again.  Cheap.
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

  // Extents that are not yet erased and whose key names another extent by now or was forgotten.
  absl::flat_hash_set<Room> superseded_ LARDER_GUARDED_BY(mu_);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
