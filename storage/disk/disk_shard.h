// One shard of a FileDiskTier, which can be damaged or lost alone: data files, the catalog that
// says what lies in them, and the allocator of their pages.
//
// A record lies in one extent of a data file: its header from the first page on, padded with zeros
// to a page, then the payload.  These are the steps of a put, and what a crash after each of them
// leaves (tests crash after the first four: FaultPoint::kPutAllocated to kPutCommitted):
//
//   step         on disk                                     after a crash here
//   allocated    nothing                                     the extent is free again
//   written      the record, in an extent that is free       the extent is free again
//   synced       the record, durable                         the extent is free again
//   committed    the catalog names it, durable               the block is on disk
//   reported     as in the step before                       the block is on disk
//
// An erasure has two steps: erased (the key is removed from the catalog) and freed (the extent may
// be used again).  The catalog's log keeps the order of writes, so after a crash no two keys name
// the same extent.
//
// An extent that a key may still name is never reused.  If Put or Erase fails to write to the
// catalog, the extents of its keys are held back, that is, not reused, until the keys are erased
// successfully.
//
// Ownership: made by FileDiskTier.  Thread-safety: all methods from any thread; Recover from one
// thread, and not again after it has returned OK.
// Locks: `mu_` guards the allocator and must not be held while a record or the catalog is read or
// written; FindVictims calls `worth` under it.  placing_mu_ and grow_mu_ are taken before mu_, and
// are held while the disk works.
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
    ByteCount catalog_bytes_max;  // if its files still take this after a compaction, it is full
    CatalogMemory* memory = nullptr;
    FaultPoints* faults = nullptr;
    std::function<void(const std::string&)> warn;
  };
  // Opens the shard, or makes an empty one.  Returns DataLoss if its catalog is damaged;
  // FailedPrecondition if an operator must decide; after any other error a later attempt may
  // succeed.  After an error no file stays open.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<DiskShard>> Open(const Options& options);

  // A block in this shard: its key and where its record lies.  The slab of place.extent is the
  // number of a data file.
  struct Entry {
    BlockKey key;
    CatalogPlace place;
  };
  // Returns the entries of the catalog, and marks their extents as allocated.  Returns DataLoss if
  // the catalog is damaged, or another error if the disk failed; nothing is changed then.  Leaves
  // out entries whose extent lies outside the data files or overlaps the extent of an earlier
  // entry; it counts them as damaged and tries to erase them.
  [[nodiscard]] absl::StatusOr<std::vector<Entry>> Recover();
  void SetOwner(const Extent& extent, uint32_t owner) LARDER_EXCLUDES(mu_);
  // Reports again the blocks of this shard that are unplaced, that is, that the caller could not
  // take before (DiskTier::kUnplaced).  `owner_of` returns the new owner word of the block:
  // kUnplaced if it stays unplaced, 0 to have it erased.  Ends early if `stop` returns true,
  // usually with Cancelled.  Returns the catalog's error if the catalog cannot be read.
  [[nodiscard]] absl::Status TellUnplaced(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                          absl::FunctionRef<bool()> stop)
      LARDER_EXCLUDES(placing_mu_, mu_);
  [[nodiscard]] uint64_t unplaced() const { return unplaced_; }
  // Returns the description of this shard's block of that key, if the block is unplaced
  // (DiskTier::kUnplaced) or SetTold was not called yet; nullopt if there is no such block or its
  // description is damaged.  Returns an error if the catalog cannot be read.
  [[nodiscard]] absl::StatusOr<std::optional<DiskTier::Description>> FindUntold(const BlockKey& key)
      LARDER_EXCLUDES(mu_);

  struct PutResult {
    DiskTier::PutStatus status = DiskTier::PutStatus::kFailed;
    Extent extent;
  };
  // Writes the blocks to this shard and makes them durable.  Sets each result to kOk with the
  // extent of the record, kNoRoom, kTooLarge or kFailed; all are kNoRoom before SetTold.
  void Put(std::span<const DiskTier::NewBlock> blocks, std::span<PutResult> results)
      LARDER_EXCLUDES(mu_);
  // Sets the results of those blocks whose key an unplaced block of this shard has
  // (DiskTier::kUnplaced): if its segment table is the same, to kOk with the extent of the unplaced
  // block, which is not unplaced any more; otherwise to kTaken.  Leaves the other results
  // unchanged.  Returns an error, and changes nothing, if the catalog cannot be read.
  [[nodiscard]] absl::Status PutUnplaced(std::span<const DiskTier::NewBlock> blocks,
                                         std::span<PutResult> results)
      LARDER_EXCLUDES(placing_mu_, mu_);
  // Which record this shard has of a key, when a block of this key is about to be put into this
  // shard or another one.
  enum class Former : uint8_t {
    kNone,
    kErased,  // an erased record, which a loss of power may bring back until the catalog is synced
    kThere,   // there is or may be a record
  };
  // Returns the Former of each block.  instead_of[i] is the extent of the record in this shard that
  // block i is to replace, which does not count; an extent without pages means that there is none.
  // Before SetTold, a record with the same segment table does not count either.  The key of a
  // held-back extent (HoldBack) counts as kThere.  If the catalog cannot be read, returns kThere
  // for every block after SetTold, and kNone before it, because the shard may never report its
  // blocks in this process.
  [[nodiscard]] std::vector<Former> FormersOf(std::span<const DiskTier::NewBlock> blocks,
                                              std::span<const Extent> instead_of)
      LARDER_EXCLUDES(mu_);
  using Room = BlockCatalog::Room;
  // Erases these records (a Room is a key and an extent) from the catalog and frees their extents;
  // ignores Rooms that are unknown.  May also retry erasures that failed before.  After an error,
  // extents that are not freed stay allocated until a retry succeeds.
  [[nodiscard]] absl::Status Erase(std::span<const Room> asked) LARDER_EXCLUDES(mu_);
  // Sets out[i] to header and tokens of keys[i], or to nullopt if the catalog has no entry or the
  // entry is damaged.  Returns an error if the disk failed; a nullopt then says nothing.
  [[nodiscard]] absl::Status Describe(std::span<const BlockKey> keys,
                                      std::span<std::optional<DiskTier::Description>> out);
  // Reads the range of the record at `extent` into read.to and checks the hashes of its segments.
  // If the range is the whole payload, reads and checks the record's header too.
  [[nodiscard]] DiskTier::GetStatus Get(const DiskTier::Read& read, const Extent& extent);
  // For a block of `payload_bytes` that found no space: returns the owner words of blocks of this
  // shard that lie side by side, so that erasing them makes contiguous space for about that block,
  // and sets *cost to the sum over these blocks of worth times pages.  Returns an empty vector if
  // it found none, or if an eviction is not needed or would not help.
  [[nodiscard]] std::vector<uint32_t> FindVictims(ByteCount payload_bytes, DiskTier::WorthOf worth,
                                                  double* cost) LARDER_EXCLUDES(mu_);

  [[nodiscard]] BlockCatalog& catalog() { return *catalog_; }
  enum class Facts : uint8_t { kNew, kForgotten };
  // Writes facts to the catalog of this shard; durable on OK.  Returns ResourceExhausted if the
  // catalog is full and `what` is kNew.  A caller all of whose facts are deletions passes
  // kForgotten: they are written even to a full catalog.
  [[nodiscard]] absl::Status PutFacts(std::span<const DiskTier::Fact> facts, Facts what);
  // Sets how many bytes facts take in this shard's catalog (BlockCatalog::PutFacts).
  void SetFactBytes(ByteCount bytes) { share_.SetFacts(bytes); }
  // Returns false for a while after a failed Put (DiskBreaker).
  [[nodiscard]] bool healthy() const { return !breaker_.open(SteadyNow()); }
  // Returns false while the catalog must be made writable again after a failed write.
  [[nodiscard]] bool writable() const { return catalog_->writable(); }
  // Returns true if Recover has returned OK.
  [[nodiscard]] bool recovered() const { return recovered_; }
  // Called when all entries of Recover were reported to the caller of the tier, and Erase was
  // called for those that the caller did not want.  Before that, no block is put into this shard:
  // the new record could take over the key of one that is yet to be reported.
  void SetTold() { told_ = true; }
  [[nodiscard]] bool told() const { return told_; }
  // The bytes that unplaced blocks take.
  [[nodiscard]] ByteCount unplaced_bytes() const { return ByteCount(unplaced_bytes_); }
  // Returns an estimate of how many bytes this shard can still store, by the space in its data
  // files, those that it may create now included, and in its catalog.  Returns 0 before SetTold.
  [[nodiscard]] ByteCount free_bytes() const;

  // Called when `blocks` blocks found no space.  If the catalog seems to be the reason, adds them
  // to the count of refused blocks, and warns at most once per minute.
  void NoteNoRoom(size_t blocks);

  // Adds this shard's sizes and counters to *stats.
  void AddTo(DiskTier::Stats* stats) const LARDER_EXCLUDES(mu_);

 private:
  // The state of one call of Put.
  struct Writing;

  DiskShard(const Options& options, std::unique_ptr<DataFiles> files,
            std::unique_ptr<BlockCatalog> catalog);

  [[nodiscard]] bool IsUnplaced(const Extent& extent) const LARDER_EXCLUDES(mu_);
  // Returns true if the catalog has a record of the block's key with the same segment table; false
  // also if the catalog cannot be read.
  [[nodiscard]] bool HasBytesOf(const DiskTier::NewBlock& block);
  void SetOwnerLocked(const Extent& extent, uint32_t owner) LARDER_REQUIRES(mu_);
  // Makes the catalog writable again if a write to it has failed.  Warns and returns false if that
  // fails.
  [[nodiscard]] bool MakeWritable();
  // Returns true if another data file may be created: the limit allows it, and no attempt has
  // failed within the last second.
  [[nodiscard]] bool MayGrow() const;
  // Creates a data file, unless there are already more than `files` data files.  Returns true if
  // there are more than `files` then.
  [[nodiscard]] bool Grow(uint32_t files) LARDER_EXCLUDES(grow_mu_, mu_);
  // Allocates extents for the blocks whose status is kNoRoom; those that get one become kOk.
  // Returns false if some of them get none.
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
  // Holds back these extents, that is, keeps them from being reused until their keys are erased,
  // because the catalog may still have the keys.  If ours[i] is true, no other record owns extent
  // i, so it is free as soon as its key is gone; if it is false, the catalog has yet to say whether
  // another record owns it.
  void HoldBack(std::span<const Room> rooms, const std::vector<bool>& ours) LARDER_EXCLUDES(mu_);
  // Retries the erasures of held-back extents (HoldBack).  Returns OK if none is left; Unavailable,
  // without a retry, if another thread is retrying or a retry has failed within the last second.
  absl::Status EraseHeldBack() LARDER_EXCLUDES(mu_);
  // Returns true if the caller must retry the erasures of held-back extents (HoldBack).  Otherwise
  // sets *why to Unavailable if there are such extents.
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

  Mutex placing_mu_;  // held while unplaced blocks are reported or put again; taken before mu_
  std::atomic<uint64_t> unplaced_{0}, unplaced_bytes_{0};
  Mutex grow_mu_;  // held while a data file is created; taken before mu_
  mutable Mutex mu_;
  ExtentAllocator allocator_ LARDER_GUARDED_BY(mu_);
  uint64_t window_cursor_ LARDER_GUARDED_BY(mu_) = 0;
  // The held-back extents (HoldBack).  The value is true if it is known that no other record owns
  // the extent, so that the extent is free as soon as its key is gone.
  absl::flat_hash_map<Room, bool> held_back_ LARDER_GUARDED_BY(mu_);
  bool erasing_held_back_ LARDER_GUARDED_BY(mu_) = false;  // a thread retries
  TimePoint erase_again_ LARDER_GUARDED_BY(mu_);           // the earliest next retry

  std::atomic<uint64_t> blocks_{0}, puts_{0}, gets_{0}, erased_{0}, put_bytes_{0}, got_bytes_{0},
      data_written_{0}, damaged_{0}, write_failures_{0}, read_failures_{0}, sync_failures_{0},
      catalog_failures_{0}, refused_catalog_{0};
};

}  // namespace larder
