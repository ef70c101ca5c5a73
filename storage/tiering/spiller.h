// Copies blocks from HOST to the disk tier in the background, evicts blocks from disk to make
// space, and reports when a block is durable.
//
// The queue contains names of blocks (variant and digest).  The spiller holds a block only while
// the block is in a batch (the blocks that one thread writes together), so that blocks in the queue
// can be evicted from the pool.  Offer never waits: a name that finds the queue full, or whose
// block has left all tiers before its turn, is dropped.  A block that the disk failed to write is
// usually tried again.  The more names wait, the larger the batches are, up to a limit.
//
// A name is in at most one batch at a time, since two records of one name would race for its entry
// in the catalog.  Before a block is written, its bytes are checked against its hashes, or hashed
// if its writer sent none.
// Ownership: the daemon or a test; store, tier and clock outlive it.  Thread-safety: all methods
// from any thread; `durable` is called from the spiller's threads, possibly from several at the
// same time, and they wait until it returns.
// Lifecycle: made (runs) -> destroyed (waits for the operations of the disk that are under way;
// queued names are lost).
// Limits: `queue_max` names in the queue.  A batch takes no more blocks once it has `batch_bytes`,
// or less if the pool or the disk is small.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/clock.h"
#include "storage/disk/disk_breaker.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"

namespace larder {

class Spiller {
 public:
  struct Options {
    size_t queue_max = 65'536;
    ByteCount batch_bytes = MiB(32);
    size_t threads = 4;
    bool paused = false;  // names wait until Resume: the free space is known only after recovery
  };
  // Called with blocks of one session that are durable now.
  using Durable = std::function<void(SessionId, VariantIndex, std::span<const Digest>)>;

  Spiller(const Options& options, BlockStore& store, DiskTier& tier, const Clock& clock,
          Durable durable);
  ~Spiller();
  Spiller(const Spiller&) = delete;
  Spiller& operator=(const Spiller&) = delete;

  // Queues a block that was published.  `who`: the session that `durable` receives.  Does not wait:
  // if the queue is full, the block is not queued (Stats::dropped_queue).
  void Offer(SessionId who, VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);
  // Called once, when the spiller is done with the block, from any thread and possibly under the
  // spiller's lock, so it must not call the spiller.  `on_disk` is true if the spiller has found or
  // put the block on disk; the block may have left it since.
  using Done = std::function<void(bool on_disk)>;
  // Queues a block; `done` is called with the outcome.  Does not wait.
  void Offer(VariantIndex variant, const Digest& digest, Done done) LARDER_EXCLUDES(mu_);
  void Resume() LARDER_EXCLUDES(mu_);
  // Requests an EraseFreedExtents on a thread of the spiller.
  void Nudge() LARDER_EXCLUDES(mu_);
  // Claims the name of a block that the caller writes to disk itself.  Until Unclaim, the spiller
  // does not write the block.  Returns false if the name is in a batch or claimed already.
  [[nodiscard]] bool Claim(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);
  void Unclaim(std::span<const std::pair<VariantIndex, Digest>> names) LARDER_EXCLUDES(mu_);
  // Evicts blocks from the disk if necessary, so that the next put probably finds space for
  // `bytes`.  May wait for the disk.
  void MakeRoom(ByteCount bytes) LARDER_EXCLUDES(mu_, erase_mu_);
  // Erases the records that blocks have left on disk (BlockStore::TakeFreedExtents).  Waits for the
  // disk.
  void EraseFreedExtents() LARDER_EXCLUDES(erase_mu_);

  // Returns true while the block is in a batch of the spiller, or its name is claimed.  During that
  // time a reader may find the location of the old record in the index and the description of the
  // new record on disk.
  [[nodiscard]] bool IsWriting(VariantIndex variant, const Digest& digest) const
      LARDER_EXCLUDES(mu_);
  // Waits, for one name after the other, until no batch has the name and it is not claimed, but not
  // beyond `until`.  Returns false only if `until` has passed.
  [[nodiscard]] bool WaitWritten(std::span<const std::pair<VariantIndex, Digest>> names,
                                 TimePoint until) LARDER_EXCLUDES(mu_);
  // Waits until the queue is empty, no batch is under way and no Nudge waits for a thread.  Returns
  // false if `until` passes first.
  [[nodiscard]] bool WaitIdle(TimePoint until) LARDER_EXCLUDES(mu_);

  struct Stats {
    uint64_t offered = 0, spilled = 0;
    uint64_t dropped_queue = 0;    // the queue was full
    uint64_t dropped_evicted = 0;  // found in no tier at its turn
    // Blocks that were given up although the disk had not failed, mostly for lack of space.
    uint64_t dropped_room = 0;
    // Blocks that were given up, mostly because the disk failed to write them.
    uint64_t dropped_failed = 0;
    uint64_t damaged = 0;  // blocks in HOST that do not match their hashes
    uint64_t queued = 0;   // names in the queue, in batches, and claimed
    uint64_t breaker_opened = 0;
    ByteCount spilled_bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  // Calls `done` when the last copy of the offer's Item is destroyed.
  struct Offered {
    explicit Offered(Done to_call) : done(std::move(to_call)) {}
    ~Offered() { done(on_disk); }
    Offered(const Offered&) = delete;
    Offered& operator=(const Offered&) = delete;
    const Done done;
    bool on_disk = false;
  };
  struct Item {
    SessionId who;
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    std::shared_ptr<Offered> offered = nullptr;  // null if the offer has no `done`
    // How often the disk failed to write this block while other blocks could be written.
    uint8_t failed_alone = 0;
    // `puts_` after the latest put in which this block failed; nullopt if it has not failed.
    std::optional<uint64_t> failed_after = std::nullopt;
    // How often the block was postponed (Postpone).
    uint8_t postponed = 0;
  };
  struct Block;  // a block that is held while it is written
  struct Batch;
  using Name = std::pair<VariantIndex, Digest>;

  void Queue(Item item) LARDER_EXCLUDES(mu_);
  void Run() LARDER_EXCLUDES(mu_);
  // Returns false if the spiller is stopping.
  [[nodiscard]] bool WaitForWork() LARDER_EXCLUDES(mu_);
  // Takes the next queued name that is in no batch and not claimed, into *batch and *item.  Returns
  // false if there is none, or if the spiller is stopping.
  [[nodiscard]] bool Take(Batch* batch, Item* item) LARDER_EXCLUDES(mu_);
  void Fill(Batch* batch) LARDER_EXCLUDES(mu_);
  void Erase(std::span<const DiskAddress> blocks);
  void HoldItem(const Item& item, Batch* batch) LARDER_EXCLUDES(mu_);
  // Adds a held block to the batch.  Returns false if the block cannot be written.
  [[nodiscard]] bool AddBlock(const Item& item, const BlockIndex::Held& held, Batch* batch)
      LARDER_EXCLUDES(mu_);
  void Write(Batch* batch) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool stopping() const LARDER_EXCLUDES(mu_);
  void Failed();  // the disk failed: opens the breaker, so that no batch begins for a while
  void PutWithRoom(Batch* batch) LARDER_EXCLUDES(mu_);
  // Tries to free contiguous space on disk for each of these blocks, by evicting blocks that
  // DiskTier::FindVictims names.
  void MakeWindows(std::span<const Block> blocks);
  [[nodiscard]] std::vector<Block> PutOnce(std::vector<Block> blocks, Batch* batch)
      LARDER_EXCLUDES(mu_);
  // Called if the block found no space, or DiskTier::Put returned kNotNow.  Adds the block to
  // batch->postponed for a later batch, or drops it.
  void Postpone(Item item, Batch* batch) LARDER_EXCLUDES(mu_);
  // Called if the disk failed to write the block.  Adds the block to batch->again for a later
  // batch, or drops it.  `mates_written`: whether other blocks of the same put were written.
  void TryAgain(Item item, bool mates_written, Batch* batch) LARDER_EXCLUDES(mu_);
  void Settle(const Block& block, DiskLocation location, Batch* batch) LARDER_EXCLUDES(mu_);
  void Release(const Batch& batch) LARDER_EXCLUDES(mu_);
  void EndWriting(std::span<const Name> names) LARDER_REQUIRES(mu_);
  // Returns how many items found the queue full.
  [[nodiscard]] size_t Requeue(std::span<const Item> items) LARDER_REQUIRES(mu_);
  void Notify(const Batch& batch) const;

  const Options options_;
  BlockStore& store_;
  DiskTier& tier_;
  const Clock& clock_;
  const Durable durable_;
  DiskBreaker breaker_;
  std::atomic<uint64_t> puts_{0};  // puts that wrote at least one block

  mutable Mutex mu_;
  CondVar wake_, idle_, written_;
  std::deque<Item> queue_ LARDER_GUARDED_BY(mu_);
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  bool nudged_ LARDER_GUARDED_BY(mu_) = false;
  bool paused_ LARDER_GUARDED_BY(mu_);
  size_t busy_ LARDER_GUARDED_BY(mu_) = 0;
  // Names that are in a batch or claimed, each with the items of the same name whose turn came
  // meanwhile.  These items return to the queue, if it is not full, when the batch or the claim
  // ends.
  absl::flat_hash_map<Name, std::vector<Item>> writing_ LARDER_GUARDED_BY(mu_);
  Stats stats_ LARDER_GUARDED_BY(mu_);
  // Held from BlockStore::TakeFreedExtents until the extents are erased, so that another thread
  // that needs space waits for the erasure.
  Mutex erase_mu_;
  std::vector<std::thread> threads_;
};

}  // namespace larder
