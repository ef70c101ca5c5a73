// What one shard knows of its blocks beside their bytes, in RocksDB: where each lies, its record's
// header and its token ids; and a few facts.  block_catalog.cc alone includes RocksDB.
//
// Three column families, keys are variant id and digest (docs/format.md, "Disk tier"):
//   places   where a block lies: small, so that a start reads nothing else
//   headers  the record's header, byte for byte as in the data file, and the token ids
//   facts    small values under text keys
// and RocksDB's default one, which says whose catalog it is.
// All change by one write-ahead log, in order: what is found after a crash is a prefix of
// what was done.
//
// A room that lost its name to a newer one of the same key is remembered until it is erased (not
// beyond the process: the next one starts with the rooms that have names).
// After a write that failed RocksDB refuses all others, until it is told to go on or, if it was one
// of its log, is opened anew: the next write sees to that, once the disk takes writes and nothing
// reads it whole (ForEachPlace, Compact).  Until then it can be read; who reads just then waits.
// Where it does not open, it is opened to be read, and a write tries again a second later.
// Ownership: made by DiskShard.  Thread-safety: all methods from any thread.  Blocking: all of them
// may wait for the disk.
// Memory: within `memory`, shared by all shards; 300 KiB beside it (ErasedNames).  Disk: some
// multiple of what it holds until compaction; disk_bytes() says how much.
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

// Memory that the catalogs of all shards share: block cache and write buffers, one budget.
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
    std::string directory;                         // made when it is not there
    ByteCount disk_bytes_max;                      // what its log and buffers are sized by
    CatalogMemory* memory = nullptr;               // not null
    FaultPoints* faults = nullptr;                 // not null
    std::function<void(const std::string&)> warn;  // what RocksDB warns of; may be empty
  };
  // DataLoss: damaged, cannot be opened as it is.  Anything else: the disk's fault now.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<BlockCatalog>> Open(const Options& options);
  ~BlockCatalog();
  BlockCatalog(const BlockCatalog&) = delete;
  BlockCatalog& operator=(const BlockCatalog&) = delete;

  // All or nothing; durable on OK.  A key that was there lies at its new place; its former room is
  // superseded until it is erased.
  // Where the disk does not say whether the key was there (unread_names), it goes as if it was not:
  // a former room stays taken until the next start.
  [[nodiscard]] absl::Status Commit(std::span<const CatalogEntry> entries) LARDER_EXCLUDES(mu_);
  // Names that still stand for this room; others stay.  Survives the process on OK; the next Commit
  // makes it durable, or another write that is (MayComeBack).
  // `erased`, if not null: which of `rooms` had that name until now or were superseded, so are
  // nobody's any more; others may be another's.  Fails whole where the disk does not say what one
  // of the keys has.
  struct Room {
    BlockKey key;
    Extent extent;
    friend bool operator==(const Room&, const Room&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Room& room) {
      return H::combine(std::move(h), room.key, room.extent.slab, room.extent.page);
    }
  };
  [[nodiscard]] absl::Status Erase(std::span<const Room> rooms, std::vector<bool>* erased = nullptr)
      LARDER_EXCLUDES(mu_);
  // Names that go before their rooms: Erase calls these erased when it is their turn.
  [[nodiscard]] absl::Status Forget(std::span<const Room> rooms) LARDER_EXCLUDES(mu_);

  // What was written until now is durable on OK, erasures too.
  [[nodiscard]] absl::Status Sync() LARDER_EXCLUDES(mu_);
  // Which of these were erased or forgotten since the last write that is durable: a loss of power
  // may bring them back.  Never waits for the disk.
  [[nodiscard]] std::vector<bool> MayComeBack(std::span<const BlockKey> keys) const;

  // Header and tokens as they were committed; nullopt: none, or damaged.  Not OK: the disk's fault.
  using Description = CatalogDescription;
  [[nodiscard]] absl::Status Describe(std::span<const BlockKey> keys,
                                      std::span<std::optional<Description>> out);
  // Where blocks lie; nullopt: nowhere, or it is damaged.  Not OK: the disk's fault.
  [[nodiscard]] absl::Status Places(std::span<const BlockKey> keys,
                                    std::span<std::optional<CatalogPlace>> out);
  // In key order, until `visit` answers false.  DataLoss: some of it is damaged.
  [[nodiscard]] absl::Status ForEachPlace(
      absl::FunctionRef<bool(const BlockKey&, const CatalogPlace&)> visit);

  // All or none; an empty value forgets.  Durable on OK.
  [[nodiscard]] absl::Status PutFacts(std::span<const DiskTier::Fact> facts) LARDER_EXCLUDES(mu_);
  // REQUIRES: `visit` calls nothing of this catalog.
  [[nodiscard]] absl::Status ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit);

  // Whose catalog it is, in the directory's words; empty: it does not say.  Durable on OK.
  [[nodiscard]] absl::StatusOr<std::string> Identity();
  [[nodiscard]] absl::Status SetIdentity(const std::string& identity) LARDER_EXCLUDES(mu_);

  // Gives back what erased entries take, as far as it can; seconds of disk work.
  void Compact();

  [[nodiscard]] uint64_t unread_names() const;  // of Commit, since Open
  // False: a write failed, and the next finds out whether it can write again.  Cheap.
  [[nodiscard]] bool writable() const;
  // Tries to be writable again, as the next write would.
  [[nodiscard]] absl::Status MakeWritable() LARDER_EXCLUDES(mu_);
  [[nodiscard]] ByteCount disk_bytes() const;     // of all its files; reads the directory
  [[nodiscard]] ByteCount written_bytes() const;  // since Open: log, flushes, compactions

 private:
  struct Impl;
  explicit BlockCatalog(std::unique_ptr<Impl> impl);
  Mutex mu_;  // of writers: between a look at a name and its end nobody gives it to another room
  [[nodiscard]] absl::Status EraseNames(std::span<const Room> rooms, std::vector<bool>* named)
      LARDER_REQUIRES(mu_);

  // Whose names stand for other rooms by now, or were forgotten.
  absl::flat_hash_set<Room> superseded_ LARDER_GUARDED_BY(mu_);
  std::unique_ptr<Impl> impl_;
};

}  // namespace larder
