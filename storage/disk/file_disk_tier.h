// The disk tier: payloads in preallocated data files, read and written past the page cache straight
// from and to the pool; everything else in RocksDB.  In shards, each of which can be damaged alone.
//
//   DIR/LOCK            held while a daemon uses DIR
//   DIR/shard-00/       FORMAT, 00000000.kv ..., catalog/
//   DIR/set-aside/      the catalog of the shard that was last found damaged; may be deleted
//
// A batch of blocks goes to one shard, where most room is: so a chain lies mostly in one, and a
// damaged shard costs some chains whole and not a piece of each.  A name that a shard has a record
// of, though its caller has given it up, goes there again.
//
// Start succeeds whatever the files are, but for four things that an operator must decide: the
// directory cannot be used at all, another daemon has it, a newer version wrote it, other users may
// write to it.  A catalog that is another shard's, as after a restore to the wrong place, costs the
// shard where it lies, and no other.
//
// Ownership, threads, lifecycle: DiskTier's.
// Limits: 8 shards; data files of 16 to 256 MiB, and blocks a little smaller; a sixteenth of the
// limit (32 MiB at least) is kept for catalogs.  Files are allocated as they are needed and never
// shrink but when the limit does.
// A shard that is not opened in the life of a process, or cannot be read before it has told what it
// has, is not asked whether it has a name that is put elsewhere: if a later start finds it again,
// and it tells first, its older record is the block.
// Memory: `memory` for RocksDB; 4.25 B a page of 4 KiB of allocated data (1.1 GiB a TiB).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "storage/disk/disk_shard.h"
#include "storage/disk/disk_tier.h"
#include "storage/disk/tier_directory.h"
#include "storage/disk/tier_facts.h"

namespace larder {

class FileDiskTier final : public DiskTier {
 public:
  struct Options {
    std::string directory;                 // made when it is not there (its parent must be)
    ByteCount limit;                       // of all files; at least kLimitMin
    ByteCount memory = MiB(64);            // of all catalogs: caches and write buffers
    FaultPoints* faults = nullptr;         // nullptr: none
    std::optional<uint32_t> faulty_shard;  // where they are; nullopt: in all of them
    // What an operator should know; one sentence without a newline.  May be called from any thread.
    std::function<void(const std::string&)> warn;
  };
  static constexpr ByteCount kLimitMin = MiB(96);

  // InvalidArgument: the limit.  FailedPrecondition: another process has the directory, a newer
  // version wrote it, or other users may write to it.  Else what the file system said.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FileDiskTier>> Open(const Options& options);
  ~FileDiskTier() override;

  void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) override;
  [[nodiscard]] absl::Status Erase(std::span<const DiskAddress> blocks) override;
  [[nodiscard]] absl::Status Forget(std::span<const DiskAddress> blocks) override;
  [[nodiscard]] absl::Status SyncErasures() override;
  [[nodiscard]] absl::Status Describe(std::span<const DiskAddress> blocks,
                                      std::span<std::optional<Description>> out) override;
  [[nodiscard]] absl::StatusOr<std::optional<Description>> FindUntold(const BlockKey& key) override;
  [[nodiscard]] GetStatus Get(const Read& read) override;
  [[nodiscard]] absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                     absl::FunctionRef<bool()> stop) override;
  void SetOwner(DiskLocation location, uint32_t owner) override;
  [[nodiscard]] std::vector<uint32_t> FindVictims(ByteCount payload_bytes, WorthOf worth) override;
  [[nodiscard]] absl::Status PutFacts(std::span<const Fact> facts) override;
  void ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) override;
  [[nodiscard]] ByteCount block_bytes_max() const override;
  [[nodiscard]] ByteCount free_bytes() const override;
  [[nodiscard]] ByteCount batch_bytes() const override;
  [[nodiscard]] Stats stats() const override;

 private:
  using Geometry = TierDirectory::Geometry;
  using ShardRef = std::shared_ptr<DiskShard>;

  explicit FileDiskTier(const Options& options);
  [[nodiscard]] static Geometry GeometryFor(ByteCount limit);
  [[nodiscard]] absl::Status OpenShards();
  void ChooseId() LARDER_EXCLUDES(shards_mu_);
  // Whatever it says of itself.
  [[nodiscard]] absl::Status OpenShard(uint32_t number) LARDER_EXCLUDES(shards_mu_);
  // An open shard whose catalog is another's starts empty; one that does not say gets its identity.
  [[nodiscard]] absl::Status IdentifyShard(uint32_t number) LARDER_EXCLUDES(shards_mu_);
  [[nodiscard]] absl::Status OpenAndIdentify(uint32_t number) LARDER_EXCLUDES(shards_mu_);
  // nullptr while it is being replaced.
  [[nodiscard]] ShardRef At(uint32_t number) const LARDER_EXCLUDES(shards_mu_);
  [[nodiscard]] std::vector<ShardRef> All() const LARDER_EXCLUDES(shards_mu_);
  // Takes it out, and waits until nobody uses it.
  void CloseShard(uint32_t number) LARDER_EXCLUDES(shards_mu_);
  [[nodiscard]] absl::Status SetAside(uint32_t number, const absl::Status& why)
      LARDER_EXCLUDES(set_aside_mu_);
  [[nodiscard]] DiskShard::Options ShardOptions(uint32_t number) const;
  void Warn(const std::string& text) const;

  [[nodiscard]] absl::Status RecoverShard(uint32_t number,
                                          absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                          absl::FunctionRef<bool()> stop);
  // What the caller could not take before.
  [[nodiscard]] absl::Status TellUnplaced(uint32_t number,
                                          absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                          absl::FunctionRef<bool()> stop);
  void NoteUnplaced();
  [[nodiscard]] Entry EntryOf(uint32_t number, const DiskShard::Entry& found) const;
  // False: which of them are there unplaced could not be found out, so none may be put.
  [[nodiscard]] bool PutUnplaced(std::span<const NewBlock> blocks, std::span<PutResult> results);
  [[nodiscard]] std::vector<uint32_t> ShardsByRoom() const;
  // For each block the one shard that may take it, any, or none at all now.
  [[nodiscard]] std::vector<uint32_t> HomesOf(std::span<const NewBlock> blocks) const;
  void PutTo(uint32_t number, std::span<const NewBlock> blocks, std::span<const uint32_t> homes,
             std::span<PutResult> results);
  // OK: some shard that has told all has nothing to erase any more.
  [[nodiscard]] std::vector<DiskShard::Room> RoomsOf(std::span<const DiskAddress> blocks,
                                                     std::span<const size_t> which) const;
  [[nodiscard]] absl::Status EraseHeldBack();

  // {shard and file 16 | page 24 | pages 24}, as the index packs extents; never 0.
  [[nodiscard]] DiskLocation LocationOf(uint32_t shard, const Extent& extent) const;
  [[nodiscard]] Extent ExtentOf(DiskLocation location, uint32_t* shard) const;
  // Calls visit(shard, places): of the addresses, by shard; unknown ones are left out.
  template <class Visit>
  void ByShard(std::span<const DiskAddress> blocks, Visit visit) const;

  const Options options_;
  FaultPoints no_faults_;
  FaultPoints& faults_;
  CatalogMemory memory_;
  std::unique_ptr<TierDirectory> directory_;  // since Open
  Geometry geometry_;
  mutable Mutex shards_mu_;
  std::vector<ShardRef> shards_ LARDER_GUARDED_BY(shards_mu_);
  std::vector<std::atomic<uint32_t>> putting_;  // puts under way, by shard
  Mutex set_aside_mu_;
  std::atomic<uint32_t> set_aside_{0}, failed_{0};
  std::atomic<bool> recovered_once_{false};  // Recover has gone over all shards
  bool said_unplaced_ = false;               // of Recover
  bool opened_late_ = false;                 // likewise: a shard whose facts were not read
  std::atomic<uint64_t> set_aside_bytes_{0};
  std::optional<TierFacts> facts_;  // since Open
};

}  // namespace larder
