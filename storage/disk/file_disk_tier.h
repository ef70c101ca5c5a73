// The disk tier in files.  It consists of shards, each of which can be damaged without the others.
// In each shard records lie in preallocated data files, which are read and written past the page
// cache where possible; a RocksDB catalog describes the records.
//
//   DIR/LOCK            locked while a daemon uses DIR
//   DIR/shard-00/       FORMAT, 00000000.kv ..., catalog/
//   DIR/set-aside/      the catalog that was last set aside, if any; may be deleted
//
// The blocks of one Put usually go to one shard, preferably one into which no other thread puts, so
// that damage to a shard costs fewer chains.  A key of which a shard has or may have a record is
// usually put into that shard again or not at all (file_disk_tier_put.cc).
//
// Open succeeds if at least one shard can be opened, unless an operator must decide, for example
// because a newer version wrote the directory.  A shard with a damaged catalog starts empty, and so
// does a shard that has the catalog of another shard, as after a backup was restored to the wrong
// place; the other shards keep their blocks.
//
// Ownership, thread-safety and lifecycle are those of DiskTier.
// Limits: 1 to 8 shards; data files of 16 to 256 MiB, and blocks a little smaller; 1/16 of the
// limit (at least 32 MiB) is reserved for catalogs.  Data files are created as they are needed; a
// start with a lower limit may remove some.
// A key may be put although a closed or unreadable shard has an older record of it.  A later start
// that can read that shard may take the older record as the block.
// Memory: Options::memory for RocksDB, and mainly 4.25 B per page of 4 KiB of data files (1.1 GiB
// per TiB).
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
    std::string directory;                 // created if missing; its parent must exist
    ByteCount limit;                       // of all files; at least kLimitMin
    ByteCount memory = MiB(64);            // for caches and write buffers of all catalogs
    FaultPoints* faults = nullptr;         // nullptr: no faults
    std::optional<uint32_t> faulty_shard;  // the shard that has the faults; nullopt: all shards
    // Receives messages for the operator, RocksDB's warnings included, without a newline at the
    // end.  May be empty.  May be called from any thread.
    std::function<void(const std::string&)> warn;
  };
  static constexpr ByteCount kLimitMin = MiB(96);

  // Opens the tier, or makes an empty one.  Returns InvalidArgument if the limit is too small;
  // FailedPrecondition if an operator must decide, for example because another process uses the
  // directory or a newer version wrote it; or another error.
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
  // Opens a shard, without checking the identity in its catalog.  If the catalog is damaged, sets
  // it aside and opens an empty shard.
  [[nodiscard]] absl::Status OpenShard(uint32_t number) LARDER_EXCLUDES(shards_mu_);
  // Checks the identity in the catalog of an open shard, and writes the shard's FORMAT file.  If
  // the catalog belongs to another shard or the identity is damaged, sets the catalog aside and
  // opens an empty shard; a catalog without an identity gets one.
  [[nodiscard]] absl::Status IdentifyShard(uint32_t number) LARDER_EXCLUDES(shards_mu_);
  [[nodiscard]] absl::Status OpenAndIdentify(uint32_t number) LARDER_EXCLUDES(shards_mu_);
  // Returns the shard with that number, or nullptr if it is closed or being replaced.
  [[nodiscard]] ShardRef At(uint32_t number) const LARDER_EXCLUDES(shards_mu_);
  [[nodiscard]] std::vector<ShardRef> All() const LARDER_EXCLUDES(shards_mu_);
  // Removes the shard from shards_ and waits until no thread uses it.
  void CloseShard(uint32_t number) LARDER_EXCLUDES(shards_mu_);
  [[nodiscard]] absl::Status SetAside(uint32_t number, const absl::Status& why)
      LARDER_EXCLUDES(set_aside_mu_);
  [[nodiscard]] DiskShard::Options ShardOptions(uint32_t number) const;
  void Warn(const std::string& text) const;

  [[nodiscard]] absl::Status RecoverShard(uint32_t number,
                                          absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                          absl::FunctionRef<bool()> stop);
  // Reports the shard's unplaced blocks again.
  [[nodiscard]] absl::Status TellUnplaced(uint32_t number,
                                          absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                          absl::FunctionRef<bool()> stop);
  void NoteUnplaced();
  [[nodiscard]] Entry EntryOf(uint32_t number, const DiskShard::Entry& found) const;
  // Sets the results of those blocks whose key an unplaced block has (DiskTier::kUnplaced), to kOk
  // or kTaken.  Returns false if the catalog of a shard with unplaced blocks cannot be read; then
  // no further block may be put.
  [[nodiscard]] bool PutUnplaced(std::span<const NewBlock> blocks, std::span<PutResult> results);
  // Returns the numbers of the shards that have reported all their blocks, in the order in which
  // Put tries them.
  [[nodiscard]] std::vector<uint32_t> ShardsByRoom() const;
  // Returns, for each block, the number of the one shard that may take the block, kAnywhere if any
  // shard may, or kNowhere if no shard may take it now.
  [[nodiscard]] std::vector<uint32_t> HomesOf(std::span<const NewBlock> blocks) const;
  void PutTo(uint32_t number, std::span<const NewBlock> blocks, std::span<const uint32_t> homes,
             std::span<PutResult> results);
  [[nodiscard]] std::vector<DiskShard::Room> RoomsOf(std::span<const DiskAddress> blocks,
                                                     std::span<const size_t> which) const;
  // Retries the erasures of held-back extents (DiskShard) in the shards that have reported all
  // their blocks, but in no shard within 1 s of a failed retry.  Returns OK if at least one of
  // these shards has no held-back extents any more.
  [[nodiscard]] absl::Status EraseHeldBack();

  // The bits of a location are {shard and file 16 | page 24 | pages 24}, as in a PackedExtent.
  // LocationOf never returns 0.
  [[nodiscard]] DiskLocation LocationOf(uint32_t shard, const Extent& extent) const;
  [[nodiscard]] Extent ExtentOf(DiskLocation location, uint32_t* shard) const;
  // Calls visit(shard, places) for each open shard that has some of the blocks; `places` are their
  // indices into `blocks`.
  template <class Visit>
  void ByShard(std::span<const DiskAddress> blocks, Visit visit) const;

  const Options options_;
  FaultPoints no_faults_;
  FaultPoints& faults_;
  CatalogMemory memory_;
  std::unique_ptr<TierDirectory> directory_;  // set by Open
  Geometry geometry_;
  mutable Mutex shards_mu_;
  std::vector<ShardRef> shards_ LARDER_GUARDED_BY(shards_mu_);
  std::vector<std::atomic<uint32_t>> putting_;  // puts under way in each shard
  Mutex set_aside_mu_;
  std::atomic<uint32_t> set_aside_{0}, failed_{0};
  std::atomic<bool> recovered_once_{false};  // a call of Recover has tried all shards
  // Whether the last Recover left unplaced blocks: the next then does not warn of them again.  Used
  // by Recover only.
  bool said_unplaced_ = false;
  // Whether a shard was opened since the facts were loaded.  Used by Recover only.
  bool opened_late_ = false;
  std::atomic<uint64_t> set_aside_bytes_{0};
  std::optional<TierFacts> facts_;  // set by Open
};

}  // namespace larder
