// Move: brings the blocks of a scope from one tier (`from`) into another one (`to`), in windows, on
// the threads that move blocks for all purposes (Spiller, Promoter).
//
// Unless the call copies, blocks that have arrived in `to` are removed from `from` at its end, also
// if it was cancelled or failed, and only if their copy in `to` still exists.  A later call moves
// the blocks that were not moved, also after a crash of the daemon.
// Ownership: Daemon owns it; the store, the disk and the counters outlive it.
// Thread-safety: all methods from any thread.
// Locks: each window has one, a leaf; the spiller may acquire it under its own lock.
// Blocking: Move waits for the disk, and returns when all blocks are moved.
// Limits: each call has at most kWindowBlocks and kWindowBytes under way, or one larger block.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/messages/messages.h"
#include "server/metrics/counters.h"
#include "server/verbs/block_scope.h"
#include "server/verbs/call_progress.h"
#include "storage/store/block_store.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

class MoveVerb {
 public:
  static constexpr size_t kWindowBlocks = 256;
  static constexpr ByteCount kWindowBytes = MiB(64);

  MoveVerb(BlockStore& store, DiskParts disk, Counters& counters)
      : store_(store), disk_(disk), counters_(counters) {}

  struct What {
    BlockScope scope;
    Tier from = Tier::kHost, to = Tier::kDisk;
    bool copy = false;  // the blocks stay in `from`, too
  };
  // Called after each window and several times per second.  Returns false if the call is to stop.
  using Report = CallProgress<wire::MoveProgress>::Report;
  // Returns OK if nothing is left to do, Cancelled if `report` returned false, FailedPrecondition
  // if there is no disk or `to` cannot hold the blocks, Unavailable if the disk failed or is not
  // read yet.
  [[nodiscard]] absl::Status Move(const What& what, const Report& report);

 private:
  struct Item {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    uint32_t pages = 0;
  };
  struct Run;  // the state of one call
  // Returns the blocks to be moved, grouped by variant.
  [[nodiscard]] absl::StatusOr<std::vector<Item>> ItemsOf(const What& what) const;
  [[nodiscard]] absl::Status CheckFits(const What& what, ByteCount bytes) const;
  // Returns how many items from the front are moved at once: at least 1, and all of one variant.
  [[nodiscard]] static size_t WindowOf(std::span<const Item> items);
  [[nodiscard]] absl::Status MoveWindow(Run& run, std::span<const Item> window);
  [[nodiscard]] bool IsIn(const Item& item, Tier tier) const;
  // Returns kOk if the block is on disk, kMissing if it is in no tier, otherwise kPending.
  [[nodiscard]] BlockStatus OnDisk(const Item& item) const;
  // ToDisk and ToHost return a status for each block: kOk if it has arrived, kMissing if it has
  // left `from`, kFull if `to` has no space for it, kPending if the call is to stop.  ToHost also
  // returns the other statuses of a promotion.
  [[nodiscard]] std::vector<BlockStatus> ToDisk(Run& run, std::span<const Item> window,
                                                absl::Status* status);
  [[nodiscard]] std::vector<BlockStatus> ToHost(Run& run, std::span<const Item> window);
  void Settle(Run& run, const Item& item, BlockStatus status);
  void LeaveFrom(Run& run);

  BlockStore& store_;
  const DiskParts disk_;
  Counters& counters_;
};

}  // namespace larder
