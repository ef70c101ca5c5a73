// Copies blocks from HOST to the disk tier in the background, makes room there, and says when a
// block is durable.
//
// A queue of names: a block is held only while it is written, so that a slow disk keeps nothing in
// the pool.  What was evicted before its turn, or found the queue full, is lost to the disk and
// counted (that is the back-pressure: no engine ever waits for this).  One thread takes all that
// waits, up to a batch, so writes become larger the more there is to do.
//
// A writer's hash of a block is checked here, before it is believed.
// Ownership: by the daemon or a test; store, tier and clock outlive it.  Thread-safety: all methods
// from any thread; `durable` is called from the spiller's thread, which waits for it.
// Lifecycle: made (runs) -> destroyed (ends within one write; what waits is lost).
// Limits: `queue_max` names; `batch_bytes` held at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "storage/block_store.h"
#include "storage/clock.h"
#include "storage/disk/disk_tier.h"
#include "storage/disk/disk_breaker.h"
#include "storage/mutex.h"

namespace larder {

class Spiller {
 public:
  struct Options {
    size_t queue_max = 65'536;
    ByteCount batch_bytes = MiB(32);
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
  // There may be rooms to erase (BlockStore::TakeDiskRooms).
  void Nudge() LARDER_EXCLUDES(mu_);

  // Waits until the queue is empty and nothing is under way; false: not by then.
  [[nodiscard]] bool WaitIdle(TimePoint until) LARDER_EXCLUDES(mu_);

  struct Stats {
    uint64_t offered = 0, spilled = 0;
    uint64_t dropped_queue = 0;    // the queue was full
    uint64_t dropped_evicted = 0;  // gone from HOST before its turn
    uint64_t dropped_room = 0;     // no room on disk, or too large for it
    uint64_t dropped_failed = 0;   // the disk failed
    uint64_t damaged = 0;          // not what their writer's hashes say
    uint64_t queued = 0;
    uint64_t breaker_opened = 0;
    ByteCount spilled_bytes;
  };
  [[nodiscard]] Stats stats() const LARDER_EXCLUDES(mu_);

 private:
  struct Item {
    SessionId who;
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
  };
  struct Block;  // held while it is written
  struct Batch;

  void Run() LARDER_EXCLUDES(mu_);
  // Empty when there is nothing to write, or it ends.
  [[nodiscard]] std::vector<Item> TakeItems() LARDER_EXCLUDES(mu_);
  void EraseRooms();
  void HoldItem(const Item& item, Batch* batch) LARDER_EXCLUDES(mu_);
  void Write(Batch* batch);
  void PutWithRoom(Batch* batch) LARDER_EXCLUDES(mu_);
  void MakeRoomFor(std::span<const Block> blocks, bool windows_too, const Batch& batch);
  [[nodiscard]] std::vector<Block> PutOnce(std::vector<Block> blocks, Batch* batch)
      LARDER_EXCLUDES(mu_);
  void Settle(const Block& block, DiskLocation location, Batch* batch) LARDER_EXCLUDES(mu_);
  void Notify(const Batch& batch) const;

  const Options options_;
  BlockStore& store_;
  DiskTier& tier_;
  const Clock& clock_;
  const Durable durable_;
  DiskBreaker breaker_;

  mutable Mutex mu_;
  CondVar wake_, idle_;
  std::deque<Item> queue_ LARDER_GUARDED_BY(mu_);
  bool stop_ LARDER_GUARDED_BY(mu_) = false;
  bool nudged_ LARDER_GUARDED_BY(mu_) = false;
  bool paused_ LARDER_GUARDED_BY(mu_);
  bool busy_ LARDER_GUARDED_BY(mu_) = false;
  Stats stats_ LARDER_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace larder
