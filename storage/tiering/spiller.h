// Copies blocks from HOST to the disk tier in the background, makes room there, and says when a
// block is durable.
//
// A queue of names: a block is held only while it is written, so that a slow disk keeps nothing in
// the pool.  What was evicted before its turn, or found the queue full, is lost to the disk and
// counted (that is the back-pressure: no engine ever waits for this); what the disk failed to take
// waits again.  A thread takes all that waits, up to a batch, so writes become larger the more
// there is to do; what it leaves another takes, so that one batch is checked and synced while the
// next is written.
//
// A name is in one batch at a time: two records of it would race for its entry in the catalog.
// A writer's hash of a block is checked here, before it is believed.
// Ownership: by the daemon or a test; store, tier and clock outlive it.  Thread-safety: all methods
// from any thread; `durable` is called from the spiller's threads, several at once, which wait for
// it.
// Lifecycle: made (runs) -> destroyed (ends within one write; what waits is lost).
// Limits: `queue_max` names, beside those that are offered again while they are written; held by
// each thread `batch_bytes`, a 32nd of the pool or what the tier calls a batch, the least of them,
// and a block.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
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
    bool paused = false;  // names wait until Resume: there is no room before all of it is known
  };
  // Blocks of one session that are durable now.
  using Durable = std::function<void(SessionId, VariantIndex, std::span<const Digest>)>;

  Spiller(const Options& options, BlockStore& store, DiskTier& tier, const Clock& clock,
          Durable durable);
  ~Spiller();
  Spiller(const Spiller&) = delete;
  Spiller& operator=(const Spiller&) = delete;

  // A block that was published; who wants to hear of it.  Never waits.
  void Offer(SessionId who, VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);
  void Resume() LARDER_EXCLUDES(mu_);
  // There may be rooms to erase (BlockStore::TakeFreedExtents).
  void Nudge() LARDER_EXCLUDES(mu_);
  // A name that the caller writes himself, until Unclaim; what is offered of it waits.  False: it
  // is being written.
  [[nodiscard]] bool Claim(VariantIndex variant, const Digest& digest) LARDER_EXCLUDES(mu_);
  void Unclaim(std::span<const std::pair<VariantIndex, Digest>> names) LARDER_EXCLUDES(mu_);
  // Takes blocks from the disk until one put takes so much whole, or it seems in vain.
  void MakeRoom(ByteCount bytes) LARDER_EXCLUDES(mu_, erase_mu_);
  // Erases them now.  Waits for the disk.
  void EraseRooms() LARDER_EXCLUDES(erase_mu_);

  // Which of these wait in the queue, or are being written.  O(queue).
  [[nodiscard]] std::vector<bool> Waiting(
      std::span<const std::pair<VariantIndex, Digest>> names) const LARDER_EXCLUDES(mu_);
  // By the spiller, or by who claimed it.  While it is, a reader that goes by the index may find
  // the new record's description and the old one's place.
  [[nodiscard]] bool IsWriting(VariantIndex variant, const Digest& digest) const
      LARDER_EXCLUDES(mu_);
  // Waits until none of these is being written, as they were when it was called; false: not by
  // then.
  [[nodiscard]] bool WaitWritten(std::span<const std::pair<VariantIndex, Digest>> names,
                                 TimePoint until) LARDER_EXCLUDES(mu_);
  // Waits until the queue is empty and nothing is under way; false: not by then.
  [[nodiscard]] bool WaitIdle(TimePoint until) LARDER_EXCLUDES(mu_);

  struct Stats {
    uint64_t offered = 0, spilled = 0;
    uint64_t dropped_queue = 0;    // the queue was full
    uint64_t dropped_evicted = 0;  // gone from HOST before its turn
    // No room on disk, too large for it, another record of the name was there first, or may be in a
    // part that cannot be asked.
    uint64_t dropped_room = 0;
    // The disk failed, and the queue was full by then; or it fails on this block alone, always.
    uint64_t dropped_failed = 0;
    uint64_t damaged = 0;  // not what their writer's hashes say
    uint64_t queued = 0;   // and what is being written
    uint64_t breaker_opened = 0;
    ByteCount spilled_bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  struct Item {
    SessionId who;
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    // Times that others were written and it was not: of its put, or since it failed before.
    uint8_t failed_alone = 0;
    std::optional<uint64_t> failed_after = std::nullopt;  // puts that wrote something, its own too
    uint8_t unplaced = 0;  // batches in which it found no room, or the disk could not take its name
  };
  struct Block;  // held while it is written
  struct Batch;
  using Name = std::pair<VariantIndex, Digest>;

  void Run() LARDER_EXCLUDES(mu_);
  // False: it ends.
  [[nodiscard]] bool WaitForWork() LARDER_EXCLUDES(mu_);
  // Of the next name that nobody writes; false: there is none.
  [[nodiscard]] bool Take(Batch* batch, Item* item) LARDER_EXCLUDES(mu_);
  void Fill(Batch* batch) LARDER_EXCLUDES(mu_);
  void Erase(std::span<const DiskAddress> blocks);
  void HoldItem(const Item& item, Batch* batch) LARDER_EXCLUDES(mu_);
  // False: nothing to write of it.
  [[nodiscard]] bool AddBlock(const Item& item, const BlockIndex::Held& held, Batch* batch)
      LARDER_EXCLUDES(mu_);
  void Write(Batch* batch) LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool stopping() const LARDER_EXCLUDES(mu_);
  void Failed();  // the disk did; it is left alone for a while
  void PutWithRoom(Batch* batch) LARDER_EXCLUDES(mu_);
  // A window for each, whoever is in it.
  void MakeWindows(std::span<const Block> blocks);
  [[nodiscard]] std::vector<Block> PutOnce(std::vector<Block> blocks, Batch* batch)
      LARDER_EXCLUDES(mu_);
  // It had no place this time, and is tried again in a later batch, or dropped after the last try.
  void Postpone(Item item, Batch* batch) LARDER_EXCLUDES(mu_);
  // `mates_written`: of the same put.
  void TryAgain(Item item, bool mates_written, Batch* batch) LARDER_EXCLUDES(mu_);
  void Settle(const Block& block, DiskLocation location, Batch* batch) LARDER_EXCLUDES(mu_);
  void Release(const Batch& batch) LARDER_EXCLUDES(mu_);
  void EndWriting(std::span<const Name> names) LARDER_REQUIRES(mu_);
  // How many found the queue full.
  [[nodiscard]] size_t Requeue(std::span<const Item> items) LARDER_REQUIRES(mu_);
  void Notify(const Batch& batch) const;

  const Options options_;
  BlockStore& store_;
  DiskTier& tier_;
  const Clock& clock_;
  const Durable durable_;
  DiskBreaker breaker_;
  std::atomic<uint64_t> puts_{0};  // that wrote something

  mutable Mutex mu_;
  CondVar wake_, idle_, written_;
  std::deque<Item> queue_ LARDER_GUARDED_BY(mu_);
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  bool nudged_ LARDER_GUARDED_BY(mu_) = false;
  bool paused_ LARDER_GUARDED_BY(mu_);
  size_t busy_ LARDER_GUARDED_BY(mu_) = 0;
  // Names in a batch, or claimed, and who offered them again meanwhile: back in the queue when that
  // is done.
  absl::flat_hash_map<Name, std::vector<Item>> writing_ LARDER_GUARDED_BY(mu_);
  Stats stats_ LARDER_GUARDED_BY(mu_);
  Mutex erase_mu_;  // held until what was taken is erased: who waits for room finds it
  std::vector<std::thread> threads_;
};

}  // namespace larder
