// Move: brings the blocks that a caller selects (BlockScope) from one tier (`from`) into another
// one (`to`), several at a time, on the threads of the Spiller or the Promoter.
//
// Unless the call copies (What::copy), it ends by removing from `from` the blocks that have arrived
// in `to`, except those that are pinned or in use or have left `to` again.  A later call may move
// what was not moved.
// Ownership: Daemon owns it; the store, the disk and the counters outlive it.
// Thread-safety: all methods from any thread.
// Locks: each group of blocks that are moved together (a window) has one, a leaf; the spiller may
// acquire that lock under its own.
// Blocking: Move waits for the disk; it returns when it has tried all blocks, or when it is
// cancelled or the disk fails.
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
  // Called when the work begins and from time to time afterwards.  Returns false if the call is to
  // stop.
  using Report = CallProgress<wire::MoveProgress>::Report;
  // Returns OK if it has tried all blocks (wire::MoveProgress counts the outcomes); Cancelled if
  // `report` has stopped it; FailedPrecondition if there is no disk or `to` is too small for the
  // blocks; Unavailable if the disk failed or is not read yet; or another error.
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
  // Returns how many items from the front are to be moved together: at least 1, and all of one
  // variant.  REQUIRES: there are items.
  [[nodiscard]] static size_t WindowOf(std::span<const Item> items);
  [[nodiscard]] absl::Status MoveWindow(Run& run, std::span<const Item> window);
  [[nodiscard]] bool IsIn(const Item& item, Tier tier) const;
  // Returns kOk if the block is on disk, kMissing if it is in no tier, otherwise kPending.
  [[nodiscard]] BlockStatus OnDisk(const Item& item) const;
  // Returns a status for each block; kPending if the status is not known when the call is to stop,
  // or when the disk has written nothing for too long.  In the latter case *status becomes
  // Unavailable.
  [[nodiscard]] std::vector<BlockStatus> ToDisk(Run& run, std::span<const Item> window,
                                                absl::Status* status);
  // Returns for each block the status that TierWorker::Promote reports, or kPending if the call is
  // to stop before that.
  [[nodiscard]] std::vector<BlockStatus> ToHost(Run& run, std::span<const Item> window);
  void Settle(Run& run, const Item& item, BlockStatus status);
  void LeaveFrom(Run& run);

  BlockStore& store_;
  const DiskParts disk_;
  Counters& counters_;
};

}  // namespace larder
