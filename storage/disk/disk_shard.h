// One shard of a FileDiskTier, which can be damaged or lost alone: data files, the catalog that
// says what lies in them, and the allocator of their pages.
//
// A record lies in one extent of a data file: its header from the first page on, padded with zeros
// to a page, then the payload.  These are the steps of a put, each of which a crash may follow
// (FaultPoint):
//
//   step         on disk                                     after a crash here
//   allocated    nothing                                     the extent is free again
//   written      the record, in an extent that is free       the same
//   synced       the record, durable                         the same
//   committed    the catalog names it, durable               the block is on disk
//   reported     -                                           the block is on disk
//
// and those of an erasure: erased (the key is removed from the catalog, so the block is gone),
// freed (the extent may be used again).  The catalog's log keeps the order of writes, so a new key
// names an extent only after the extent's former key was removed.
//
// If the catalog failed while it removed a key, the key may or may not be gone.  Its extent is then
// held back until an erasure succeeds: an extent that a key may still name is never reused.
//
// Ownership: made by FileDiskTier.  Thread-safety: all methods from any thread; Recover from one
// thread, and not again after it has returned OK.
// Locks: `mu_` guards the allocator and is never held during disk operations.  placing_mu_ and
// grow_mu_ are taken before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/clock.h"
#include "storage/disk/block_catalog.h"
#include "storage/disk/catalog_share.h"
#include "storage/disk/data_files.h"
#include "storage/disk/disk_breaker.h"
#include "storage/disk/disk_tier.h"
#include "storage/fault_points.h"
#include "storage/memory/extent_allocator.h"
#include "storage/mutex.h"

namespace larder {

class DiskShard {
 public:
  struct Options {
    std::string directory;  // exists
    ByteCount file_bytes;   // of each data file
    uint32_t files_max = 1;
    ByteCount catalog_bytes_max;  // a catalog that has reached it takes no more blocks
    CatalogMemory* memory = nullptr;
    FaultPoints* faults = nullptr;
    std::function<void(const std::string&)> warn;
  };
  // Returns DataLoss if the shard is damaged beyond use; no file stays open then.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<DiskShard>> Open(const Options& options);

  // As DiskTier::Entry, with an extent of this shard (slab: data file) in place of the location.
  struct Entry {
    BlockKey key;
    CatalogPlace place;
  };
  // Returns the entries of the catalog.  Returns DataLoss if the catalog is damaged; nothing was
  // changed then.  Entries whose extent lies outside the data files or overlaps that of an earlier
  // entry are left out, erased and counted as damaged.
  [[nodiscard]] absl::StatusOr<std::vector<Entry>> Recover();
  void SetOwner(const Extent& extent, uint32_t owner) LARDER_EXCLUDES(mu_);
  // Reports the blocks that are unplaced (DiskTier::kUnplaced) again, as DiskTier::Recover says.
  [[nodiscard]] absl::Status TellUnplaced(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                          absl::FunctionRef<bool()> stop)
      LARDER_EXCLUDES(placing_mu_, mu_);
  [[nodiscard]] uint64_t unplaced() const { return unplaced_; }
  // As DiskTier::FindUntold; also returns the errors of a shard whose Recover has failed.
  [[nodiscard]] absl::StatusOr<std::optional<DiskTier::Description>> FindUntold(const BlockKey& key)
      LARDER_EXCLUDES(mu_);

  struct PutResult {
    DiskTier::PutStatus status = DiskTier::PutStatus::kFailed;
    Extent extent;
  };
  void Put(std::span<const DiskTier::NewBlock> blocks, std::span<PutResult> results)
      LARDER_EXCLUDES(mu_);
  // Sets kOk or kTaken, as DiskTier::Put says, for the blocks whose key an unplaced block of this
  // shard has; leaves the other results alone.  Returns an error if the catalog cannot be read, so
  // that it is unknown which blocks these are.
  [[nodiscard]] absl::Status PutUnplaced(std::span<const DiskTier::NewBlock> blocks,
                                         std::span<PutResult> results)
      LARDER_EXCLUDES(placing_mu_, mu_);
  // Which record this shard has of a key that is about to be put, here or in another shard.
  enum class Former : uint8_t {
    kNone,
    kErased,  // erased, but until the catalog is synced a loss of power may bring it back
    kThere,   // there is a record, or the catalog could not be read
  };
  // Returns kNone also for the record that a block is to replace (`instead_of`: extents of this
  // shard; one without pages replaces none) and, until the shard has reported all its blocks, for a
  // record with the same bytes.  If the catalog cannot be read before the shard has reported all
  // its blocks, returns kNone for every block, because the shard may never report them in this
  // process.
  [[nodiscard]] std::vector<Former> FormersOf(std::span<const DiskTier::NewBlock> blocks,
                                              std::span<const Extent> instead_of)
      LARDER_EXCLUDES(mu_);
  using Room = BlockCatalog::Room;
  [[nodiscard]] absl::Status Erase(std::span<const Room> asked) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status Describe(std::span<const BlockKey> keys,
                                      std::span<std::optional<DiskTier::Description>> out);
  [[nodiscard]] DiskTier::GetStatus Get(const DiskTier::Read& read, const Extent& extent);
  // As DiskTier::FindVictims; *cost is set to the total worth of the victims.
  [[nodiscard]] std::vector<uint32_t> FindVictims(ByteCount payload_bytes, DiskTier::WorthOf worth,
                                                  double* cost) LARDER_EXCLUDES(mu_);

  [[nodiscard]] BlockCatalog& catalog() { return *catalog_; }
  // Returns ResourceExhausted if the catalog has reached its limit.  Facts that only delete
  // something (kForgotten) are written even then.
  enum class Facts : uint8_t { kNew, kForgotten };
  [[nodiscard]] absl::Status PutFacts(std::span<const DiskTier::Fact> facts, Facts what);
  // Sets how many bytes of its catalog all facts take.
  void SetFactBytes(ByteCount bytes) { share_.SetFacts(bytes); }
  // Returns false for a while after failed writes (DiskBreaker).
  [[nodiscard]] bool healthy() const { return !breaker_.open(SteadyNow()); }
  // Returns false from a failed write to the catalog until the catalog is writable again.
  [[nodiscard]] bool writable() const { return catalog_->writable(); }
  // Whether Recover has returned OK.
  [[nodiscard]] bool recovered() const { return recovered_; }
  // Called when all entries of Recover were reported to the caller of the tier, and those that the
  // caller did not want are erased.  Until then nothing is put into this shard: a newer record
  // would take over the key of one that is yet to be reported.
  void SetTold() { told_ = true; }
  [[nodiscard]] bool told() const { return told_; }
  // The bytes that unplaced blocks take.
  [[nodiscard]] ByteCount unplaced_bytes() const { return ByteCount(unplaced_bytes_); }
  // Free space, data files that are not yet allocated included, as far as the catalog has space for
  // the entries of as many blocks.  Returns 0 before SetTold.
  [[nodiscard]] ByteCount free_bytes() const;

  // Called when blocks found no space.  If the catalog is what is full, counts them and warns, at
  // most once a minute.
  void NoteNoRoom(size_t blocks);

  // Adds what this shard did to `stats`.
  void AddTo(DiskTier::Stats* stats) const LARDER_EXCLUDES(mu_);

 private:
  // The state of a put under way.
  struct Writing;

  DiskShard(const Options& options, std::unique_ptr<DataFiles> files,
            std::unique_ptr<BlockCatalog> catalog);

  [[nodiscard]] bool IsUnplaced(const Extent& extent) const LARDER_EXCLUDES(mu_);
  // Whether the record of the block's key has the same bytes as the block.
  [[nodiscard]] bool HasBytesOf(const DiskTier::NewBlock& block);
  void SetOwnerLocked(const Extent& extent, uint32_t owner) LARDER_REQUIRES(mu_);
  // Returns false if the catalog accepts no writes.
  [[nodiscard]] bool MakeWritable();
  // Whether another data file may be created: the limit allows it, and creating one has not failed
  // within the last second.
  [[nodiscard]] bool MayGrow() const;
  // Creates a data file unless there are more than `files` by now.  Returns false if there are
  // still not more.
  [[nodiscard]] bool Grow(uint32_t files) LARDER_EXCLUDES(grow_mu_, mu_);
  // Returns false if some blocks found no space.
  [[nodiscard]] bool AllocateOpen(Writing* put) LARDER_EXCLUDES(mu_);
  void AllocateAll(Writing* put) LARDER_EXCLUDES(grow_mu_, mu_);
  void WriteAll(Writing* put);
  void SyncAll(Writing* put);
  void CommitAll(Writing* put) LARDER_EXCLUDES(mu_);
  void FailAt(FaultPoint point, Writing* put);
  void Fail(Writing* put, size_t i);
  void FreeFailed(const Writing& put) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool WriteRun(const Writing& put, std::span<const size_t> run);
  void WriteApart(Writing* put, std::span<const size_t> run);
  // Holds back the extents of keys that the catalog may still have.  ours[i]: the extent is known
  // to be free once its key is gone; otherwise the catalog has yet to say whether another record
  // owns it.
  void HoldBack(std::span<const Room> rooms, const std::vector<bool>& ours) LARDER_EXCLUDES(mu_);
  // Retries the erasures of held-back extents.  Returns an error if some are left; Unavailable if
  // another thread may be erasing them.
  absl::Status EraseHeldBack() LARDER_EXCLUDES(mu_);
  // Returns false if none is held back (`why` is OK) or this is not the time to retry.
  [[nodiscard]] bool MayEraseHeldBack(absl::Status* why) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::vector<Room> SomeHeldBack() const LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status EraseAgain(std::span<const Room> rooms) LARDER_EXCLUDES(mu_);
  void CountErased(uint64_t blocks);
  void Free(std::span<const Room> rooms, const std::vector<bool>& which) LARDER_EXCLUDES(mu_);
  void NoteFree() LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::Status ReadRecord(const Extent& extent, uint32_t first_page,
                                        std::span<const std::span<std::byte>> to);

  const Options options_;
  const std::unique_ptr<DataFiles> files_;
  const std::unique_ptr<BlockCatalog> catalog_;
  std::atomic<bool> recovered_{false}, told_{false};
  std::atomic<uint64_t> free_bytes_{0};             // in the files that exist
  std::atomic<TimePoint> grow_again_{TimePoint()};  // after a file could not be created
  std::atomic<TimePoint> warn_again_{TimePoint()};  // of a full catalog
  CatalogShare share_;
  DiskBreaker breaker_;  // for writes

  Mutex placing_mu_;  // held while an unplaced block is reported or put again; taken before mu_
  std::atomic<uint64_t> unplaced_{0}, unplaced_bytes_{0};
  Mutex grow_mu_;  // held while a data file is created; taken before mu_
  mutable Mutex mu_;
  ExtentAllocator allocator_ LARDER_GUARDED_BY(mu_);
  uint64_t window_cursor_ LARDER_GUARDED_BY(mu_) = 0;
  // True: the extent is known to be this shard's to free.  False: the catalog has yet to say so.
  absl::flat_hash_map<Room, bool> held_back_ LARDER_GUARDED_BY(mu_);
  bool erasing_held_back_ LARDER_GUARDED_BY(mu_) = false;  // by one thread
  TimePoint erase_again_ LARDER_GUARDED_BY(mu_);           // after a retry failed

  std::atomic<uint64_t> blocks_{0}, puts_{0}, gets_{0}, erased_{0}, put_bytes_{0}, got_bytes_{0},
      data_written_{0}, damaged_{0}, write_failures_{0}, read_failures_{0}, sync_failures_{0},
      catalog_failures_{0}, refused_catalog_{0};
};

}  // namespace larder
