// One part of a FileDiskTier, damaged or whole by itself: data files, the catalog that says what
// lies in them, and the allocator of their pages.
//
// A record lies in one extent of a data file: its header from the first page on, padded with zeros
// to a page, then the payload.  The steps of a put, each of which a crash may follow
// (FaultPoint):
//
//   step         on disk                                     after a crash here
//   allocated    nothing                                     room is free again
//   written      the record, in room that is free            the same
//   synced       the record, durable                         the same
//   committed    the catalog names it, durable               the block is there
//   reported     -                                           the block is there
//
// and of an erasure: erased (the name is gone: so is the block), freed (room may be used again).
// The catalog's log keeps order, so whoever names a room names it after its former name went.
//
// A name that may or may not have gone (the catalog failed meanwhile) keeps its room until an
// erasure succeeds: the room of a name is never another's.
//
// Ownership: made by FileDiskTier.  Thread-safety: all methods from any thread, Recover from one,
// and not again once it has answered OK.
// Locks: `mu_` guards the allocator and is never held while the disk is asked.
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
    ByteCount catalog_bytes_max;  // beyond it nothing is put
    CatalogMemory* memory = nullptr;
    FaultPoints* faults = nullptr;
    std::function<void(const std::string&)> warn;
  };
  // DataLoss: damaged beyond use; nothing stays open.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<DiskShard>> Open(const Options& options);

  // As DiskTier's, with extents of this shard (slab: data file) in place of locations.
  struct Entry {
    BlockKey key;
    CatalogPlace place;
  };
  // What is there.  DataLoss: the catalog is damaged, nothing was changed.  Entries without a room
  // of their own inside the data files are left out and counted as damaged.
  [[nodiscard]] absl::StatusOr<std::vector<Entry>> Recover();
  void SetOwner(const Extent& extent, uint32_t owner) LARDER_EXCLUDES(mu_);
  // Tells what is DiskTier::kUnplaced again, as DiskTier::Recover says.
  [[nodiscard]] absl::Status TellUnplaced(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                          absl::FunctionRef<bool()> stop)
      LARDER_EXCLUDES(placing_mu_, mu_);
  [[nodiscard]] uint64_t unplaced() const { return unplaced_; }
  // As DiskTier's; not OK also where Recover has failed.
  [[nodiscard]] absl::StatusOr<std::optional<DiskTier::Description>> FindUntold(const BlockKey& key)
      LARDER_EXCLUDES(mu_);

  struct PutResult {
    DiskTier::PutStatus status = DiskTier::PutStatus::kFailed;
    Extent extent;
  };
  void Put(std::span<const DiskTier::NewBlock> blocks, std::span<PutResult> results)
      LARDER_EXCLUDES(mu_);
  // Answers kOk or kTaken, as DiskTier::Put says, for those whose name an unplaced block of this
  // shard has; leaves the other results alone.  Not OK: the catalog does not say which.
  [[nodiscard]] absl::Status PutUnplaced(std::span<const DiskTier::NewBlock> blocks,
                                         std::span<PutResult> results)
      LARDER_EXCLUDES(placing_mu_, mu_);
  // What this shard has of a name that is to be put, be it here or elsewhere.
  enum class Former : uint8_t {
    kNone,
    kErased,  // and a loss of power may bring it back, until the catalog is synced
    kThere,   // or it cannot be told
  };
  // Nothing to fear is the record that a block is put instead of (extents of this shard; no pages:
  // none), or, until all is told, one of the same bytes.  Where the catalog cannot be read before
  // all is told, kNone: then this shard may not tell in this process at all.
  [[nodiscard]] std::vector<Former> FormersOf(std::span<const DiskTier::NewBlock> blocks,
                                              std::span<const Extent> instead_of)
      LARDER_EXCLUDES(mu_);
  using Room = BlockCatalog::Room;
  [[nodiscard]] absl::Status Erase(std::span<const Room> asked) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status Describe(std::span<const BlockKey> keys,
                                      std::span<std::optional<DiskTier::Description>> out);
  [[nodiscard]] DiskTier::GetStatus Get(const DiskTier::Read& read, const Extent& extent);
  // *cost: what they are worth in all.
  [[nodiscard]] std::vector<uint32_t> FindVictims(ByteCount payload_bytes, DiskTier::WorthOf worth,
                                                  double* cost) LARDER_EXCLUDES(mu_);

  [[nodiscard]] BlockCatalog& catalog() { return *catalog_; }
  // ResourceExhausted: the catalog has its share.
  // Those that only forget something it takes though it has.
  enum class Facts : uint8_t { kNew, kForgotten };
  [[nodiscard]] absl::Status PutFacts(std::span<const DiskTier::Fact> facts, Facts what);
  // What all facts take of its catalog.
  void SetFactBytes(ByteCount bytes) { share_.SetFacts(bytes); }
  // Writes have not just failed.
  [[nodiscard]] bool healthy() const { return !breaker_.open(std::chrono::steady_clock::now()); }
  // False: a write to its catalog failed, and the next finds out whether it takes them again.
  [[nodiscard]] bool writable() const { return catalog_->writable(); }
  // Recover has answered.
  [[nodiscard]] bool recovered() const { return recovered_; }
  // What it answered was told to who asked, and what nobody wants is erased.  Until then nothing is
  // put here: a newer copy would take the name of one that is yet to be told.
  void SetTold() { told_ = true; }
  [[nodiscard]] bool told() const { return told_; }
  // What those take that are unplaced.
  [[nodiscard]] ByteCount unplaced_bytes() const { return ByteCount(unplaced_bytes_); }
  // Free room, what is not yet allocated included, as far as the catalog has room for its blocks; 0
  // before all is told.
  [[nodiscard]] ByteCount free_bytes() const;

  // Blocks found no room: counted and logged where it is the catalog's share that is used up.
  void NoteNoRoom(size_t blocks);

  // Adds what this shard did to `stats`.
  void AddTo(DiskTier::Stats* stats) const LARDER_EXCLUDES(mu_);

 private:
  // A put under way.
  struct Writing;

  DiskShard(const Options& options, std::unique_ptr<DataFiles> files,
            std::unique_ptr<BlockCatalog> catalog);

  // Blocks are refused for want of room in the catalog: counts them, and says so now and then.
  [[nodiscard]] bool IsUnplaced(const Extent& extent) const LARDER_EXCLUDES(mu_);
  // The record of that name has the same bytes.
  [[nodiscard]] bool HasBytesOf(const DiskTier::NewBlock& block);
  void SetOwnerLocked(const Extent& extent, uint32_t owner) LARDER_REQUIRES(mu_);
  // False: no name can be written to the catalog.
  [[nodiscard]] bool MakeWritable();
  // Another data file may be made: within the limit, and the disk did not refuse one just now.
  [[nodiscard]] bool MayGrow() const;
  // Makes it, unless there are more than `files` by now; false: there are not more.
  [[nodiscard]] bool Grow(uint32_t files) LARDER_EXCLUDES(grow_mu_, mu_);
  // False: some found no room.
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
  // Names that may still be there, their rooms held back until they are gone; and which of those
  // are free then, whatever else the catalog says of them.
  void HoldBack(std::span<const Room> rooms, const std::vector<bool>& ours) LARDER_EXCLUDES(mu_);
  // Unavailable: some are left, which another thread may be erasing.
  absl::Status EraseHeldBack() LARDER_EXCLUDES(mu_);
  // False: none is left (`why` is OK), or it is not the time.
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
  std::atomic<uint64_t> free_bytes_{0};             // in the files that there are
  std::atomic<TimePoint> grow_again_{TimePoint()};  // after a file could not be made
  std::atomic<TimePoint> warn_again_{TimePoint()};  // that the catalog is full
  CatalogShare share_;
  DiskBreaker breaker_;  // of writes

  Mutex placing_mu_;  // held while an unplaced block is told or put again, before mu_
  std::atomic<uint64_t> unplaced_{0}, unplaced_bytes_{0};
  Mutex grow_mu_;  // held while a data file is made, before mu_
  mutable Mutex mu_;
  ExtentAllocator allocator_ LARDER_GUARDED_BY(mu_);
  uint64_t window_cursor_ LARDER_GUARDED_BY(mu_) = 0;
  // True: it was this shard's to free when it was held back.  False: that is to be asked yet.
  absl::flat_hash_map<Room, bool> held_back_ LARDER_GUARDED_BY(mu_);
  bool erasing_held_back_ LARDER_GUARDED_BY(mu_) = false;  // one thread does
  TimePoint erase_again_ LARDER_GUARDED_BY(mu_);           // after they could not be

  std::atomic<uint64_t> blocks_{0}, puts_{0}, gets_{0}, erased_{0}, put_bytes_{0}, got_bytes_{0},
      data_written_{0}, damaged_{0}, write_failures_{0}, read_failures_{0}, sync_failures_{0},
      catalog_failures_{0}, refused_catalog_{0};
};

}  // namespace larder
