// Move: brings the blocks of a scope from one tier into the other, in windows, through the threads
// that move blocks in any case (Spiller, Promoter).
//
// Blocks leave their tier when all that can have come to the other, or the call is cancelled; and
// only where the other copy is still there.  Moving again does the rest, also when the process
// died.
// Ownership: by Daemon; what it is made with outlives it.
// Thread-safety: all methods from any thread.  Blocking: until all is moved.
// Limits: kWindowBlocks and kWindowBytes under way for each call.
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
    bool copy = false;  // they stay where they are, too
  };
  // Called after each window, and some times a second; false: stop.
  using Report = CallProgress<wire::MoveProgress>::Report;
  // OK: nothing is left to do.  Cancelled: `report` said so.  FailedPrecondition: there is no disk,
  // or it is more than the tier has room for.  Unavailable: the disk is not known yet, or failed.
  [[nodiscard]] absl::Status Move(const What& what, const Report& report);

 private:
  struct Item {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    uint32_t pages = 0;
  };
  struct Run;  // a call
  // What is to be moved, blocks of a variant together.
  [[nodiscard]] absl::StatusOr<std::vector<Item>> ItemsOf(const What& what) const;
  [[nodiscard]] absl::Status CheckFits(const What& what, ByteCount bytes) const;
  // How many of the first are moved at once; at least 1.
  [[nodiscard]] static size_t WindowOf(std::span<const Item> items);
  [[nodiscard]] absl::Status MoveWindow(Run& run, std::span<const Item> window);
  [[nodiscard]] bool IsIn(const Item& item, Tier tier) const;
  // Of each: kOk (it is there), kMissing (gone), kFull (no room), kPending (told to stop).
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
