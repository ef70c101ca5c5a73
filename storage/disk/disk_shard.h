// One shard of a FileDiskTier, which can be damaged or lost alone: data files, the catalog that
// says what lies in them, and the allocator of their pages.
//
// A record lies in one extent of a data file: its header from the first page on, padded with zeros
// to a page, then the payload.  These are the steps of a put, each of which a crash may follow
// (FaultPoint):
//
//   step         on disk                                     after a crash here
//   allocated    nothing                                     the extent is free again
//   written      the record, in an extent that is free       the extent is free again
//   synced       the record, durable                         the extent is free again
//   committed    the catalog names it, durable               the block is on disk
//   reported     as in the step before                       the block is on disk
//
// An erasure has two steps: erased (the key is removed from the catalog, so the block is gone) and
// freed (the extent may be used again).  The catalog's log keeps the order of writes, so a new key
// names an extent only after the extent's former key was removed.
//
// If the catalog failed while it removed a key, the key may or may not be gone.  The key's extent
// is then held back, that is, not reused, until a retry of the erasure succeeds: an extent that a
// key may still name is never reused.
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
    ByteCount catalog_bytes_max;  // a catalog of this size accepts no more blocks
    CatalogMemory* memory = nullptr;
    FaultPoints* faults = nullptr;
    std::function<void(const std::string&)> warn;
  };
  // Returns DataLoss if the shard is damaged beyond use; no file stays open then.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<DiskShard>> Open(const Options& options);

  // As DiskTier::Entry, but with an extent of this shard, whose slab is a data file, instead of a
  // DiskLocation.
  struct Entry {
    BlockKey key;
    CatalogPlace place;
  };
  // Returns the entries of the catalog.  Returns DataLoss if the catalog is damaged, without
  // changing anything.  Entries whose extent lies outside the data files or overlaps the extent of
  // an earlier entry are left out, erased and counted as damaged.
  [[nodiscard]] absl::StatusOr<std::vector<Entry>> Recover();
  void SetOwner(const Extent& extent, uint32_t owner) LARDER_EXCLUDES(mu_);
  // Reports the blocks that are unplaced (DiskTier::kUnplaced) to `owner_of` again, as
  // DiskTier::Recover describes.
  [[nodiscard]] absl::Status TellUnplaced(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                          absl::FunctionRef<bool()> stop)
      LARDER_EXCLUDES(placing_mu_, mu_);
  [[nodiscard]] uint64_t unplaced() const { return unplaced_; }
  // As DiskTier::FindUntold, for this shard.  Unlike that, it also returns an error if Recover has
  // already failed to read this shard.
  [[nodiscard]] absl::StatusOr<std::optional<DiskTier::Description>> FindUntold(const BlockKey& key)
      LARDER_EXCLUDES(mu_);

  struct PutResult {
    DiskTier::PutStatus status = DiskTier::PutStatus::kFailed;
    Extent extent;
  };
  void Put(std::span<const DiskTier::NewBlock> blocks, std::span<PutResult> results)
      LARDER_EXCLUDES(mu_);
  // For each block whose key an unplaced block of this shard has, sets its result to kOk or kTaken,
  // as DiskTier::Put describes; leaves the other results unchanged.  Returns an error if the
  // catalog cannot be read, so that it is unknown which keys unplaced blocks have.
  [[nodiscard]] absl::Status PutUnplaced(std::span<const DiskTier::NewBlock> blocks,
                                         std::span<PutResult> results)
      LARDER_EXCLUDES(placing_mu_, mu_);
  // Which record this shard has of a key that is about to be put into this shard or another one.
  enum class Former : uint8_t {
    kNone,
    kErased,  // an erased record, which a loss of power may bring back until the catalog is synced
    kThere,   // there is or may be a record
  };
  // Returns the Former of each block.  A record at instead_of[i], which the block is to replace,
  // does not count; an extent without pages means that the block replaces no record of this shard.
  // Until the shard has reported all its blocks, a record with the same bytes does not count
  // either.  If the catalog cannot be read, returns kThere for every block; but kNone for every
  // block if the shard has not reported all its blocks, because it may never report them in this
  // process.
  [[nodiscard]] std::vector<Former> FormersOf(std::span<const DiskTier::NewBlock> blocks,
                                              std::span<const Extent> instead_of)
      LARDER_EXCLUDES(mu_);
  using Room = BlockCatalog::Room;
  [[nodiscard]] absl::Status Erase(std::span<const Room> asked) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status Describe(std::span<const BlockKey> keys,
                                      std::span<std::optional<DiskTier::Description>> out);
  [[nodiscard]] DiskTier::GetStatus Get(const DiskTier::Read& read, const Extent& extent);
  // As DiskTier::FindVictims, for this shard; sets *cost as
  // ExtentAllocator::FindWindow does.
  [[nodiscard]] std::vector<uint32_t> FindVictims(ByteCount payload_bytes, DiskTier::WorthOf worth,
                                                  double* cost) LARDER_EXCLUDES(mu_);

  [[nodiscard]] BlockCatalog& catalog() { return *catalog_; }
  // Returns ResourceExhausted if the catalog has reached its limit.  `what`: kForgotten if all
  // facts are deletions, which are written even to a full catalog.
  enum class Facts : uint8_t { kNew, kForgotten };
  [[nodiscard]] absl::Status PutFacts(std::span<const DiskTier::Fact> facts, Facts what);
  // Sets how many bytes of this shard's catalog all facts take.
  void SetFactBytes(ByteCount bytes) { share_.SetFacts(bytes); }
  // Returns false for a while after failed writes (DiskBreaker).
  [[nodiscard]] bool healthy() const { return !breaker_.open(SteadyNow()); }
  // Returns false from a failed write to the catalog until the catalog is writable again.
  [[nodiscard]] bool writable() const { return catalog_->writable(); }
  // Returns true if Recover has returned OK.
  [[nodiscard]] bool recovered() const { return recovered_; }
  // Called when all entries of Recover were reported to the caller of the tier, and the entries
  // that the caller did not want are erased.  Until then no block is put into this shard: its
  // record would take over the key of a record that is yet to be reported.
  void SetTold() { told_ = true; }
  [[nodiscard]] bool told() const { return told_; }
  // The bytes that unplaced blocks take.
  [[nodiscard]] ByteCount unplaced_bytes() const { return ByteCount(unplaced_bytes_); }
  // Returns the free space, including data files that are not allocated yet, but no more than the
  // space of as many blocks as the catalog has space for.  Returns 0 before SetTold.
  [[nodiscard]] ByteCount free_bytes() const;

  // Called when `blocks` blocks found no space.  If the catalog is full and the data files are not,
  // counts the blocks and warns, at most once a minute.
  void NoteNoRoom(size_t blocks);

  // Adds this shard's sizes and counters to *stats.
  void AddTo(DiskTier::Stats* stats) const LARDER_EXCLUDES(mu_);

 private:
  // The state of one call of Put.
  struct Writing;

  DiskShard(const Options& options, std::unique_ptr<DataFiles> files,
            std::unique_ptr<BlockCatalog> catalog);

  [[nodiscard]] bool IsUnplaced(const Extent& extent) const LARDER_EXCLUDES(mu_);
  // Returns true if this shard has a record of the block's key with the same bytes.
  [[nodiscard]] bool HasBytesOf(const DiskTier::NewBlock& block);
  void SetOwnerLocked(const Extent& extent, uint32_t owner) LARDER_REQUIRES(mu_);
  // Returns false if the catalog accepts no writes.
  [[nodiscard]] bool MakeWritable();
  // Returns true if another data file may be created: the limit allows it, and no attempt has
  // failed within the last second.
  [[nodiscard]] bool MayGrow() const;
  // Creates a data file, unless another thread has created one since the caller read `files` as
  // their number.  Returns false if there are still no more than `files`.
  [[nodiscard]] bool Grow(uint32_t files) LARDER_EXCLUDES(grow_mu_, mu_);
  // Allocates extents for the blocks that have none.  Returns false if some blocks found no space.
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
  // Holds back the extents of keys that the catalog may still have.  If ours[i] is true, no other
  // record owns the extent, so it is free as soon as its key is gone; if it is false, the catalog
  // has yet to say whether another record owns the extent.
  void HoldBack(std::span<const Room> rooms, const std::vector<bool>& ours) LARDER_EXCLUDES(mu_);
  // Retries the erasures of held-back extents.  Returns an error if some extents are still held
  // back; Unavailable, without a retry, if another thread is retrying or a retry has failed within
  // the last second.
  absl::Status EraseHeldBack() LARDER_EXCLUDES(mu_);
  // Returns true if the caller shall retry.  Returns false if no extent is held back, or with *why
  // set to Unavailable if EraseHeldBack does not retry now.
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
  std::atomic<uint64_t> free_bytes_{0};             // in the data files that exist
  std::atomic<TimePoint> grow_again_{TimePoint()};  // when to try again after a failed AddFile
  std::atomic<TimePoint> warn_again_{TimePoint()};  // when to warn again of a full catalog
  CatalogShare share_;
  DiskBreaker breaker_;  // for puts

  Mutex placing_mu_;  // held while an unplaced block is reported or put again; taken before mu_
  std::atomic<uint64_t> unplaced_{0}, unplaced_bytes_{0};
  Mutex grow_mu_;  // held while a data file is created; taken before mu_
  mutable Mutex mu_;
  ExtentAllocator allocator_ LARDER_GUARDED_BY(mu_);
  uint64_t window_cursor_ LARDER_GUARDED_BY(mu_) = 0;
  // The held-back extents.  The value is true if no other record is known to own the extent, so
  // that it is free as soon as its key is gone (HoldBack).
  absl::flat_hash_map<Room, bool> held_back_ LARDER_GUARDED_BY(mu_);
  bool erasing_held_back_ LARDER_GUARDED_BY(mu_) = false;  // a thread retries
  TimePoint erase_again_ LARDER_GUARDED_BY(mu_);           // the earliest next retry

  std::atomic<uint64_t> blocks_{0}, puts_{0}, gets_{0}, erased_{0}, put_bytes_{0}, got_bytes_{0},
      data_written_{0}, damaged_{0}, write_failures_{0}, read_failures_{0}, sync_failures_{0},
      catalog_failures_{0}, refused_catalog_{0};
};

}  // namespace larder
