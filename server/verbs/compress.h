// Compress: encodes or decodes (recodes) the blocks that a caller selects (BlockScope) in the tiers
// where they are, several at once.
//
// Each copy of a block is recoded independently: a copy that is done stays done, however the call
// ends, and a later call may recode the copies that are not done.
// Ownership: Daemon owns it; the store, the disk and the counters outlive it.
// Thread-safety: all methods from any thread.
// Locks: each group of copies that are recoded together (a window) has one, a leaf; it is not held
// while a copy is recoded or written.
// Blocking: Compress waits for the disk; it returns when it has tried all copies, or when it is
// cancelled or the disk fails.
// Limits: a window has at most kWindowBlocks copies and kWindowBytes of recoded bytes, plus up to
// one copy for each thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/messages/messages.h"
#include "server/metrics/counters.h"
#include "server/runtime/worker_pool.h"
#include "server/verbs/block_recoder.h"
#include "server/verbs/block_scope.h"
#include "server/verbs/call_progress.h"
#include "storage/store/block_store.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

class CompressVerb {
 public:
  static constexpr size_t kWindowBlocks = 64;
  static constexpr ByteCount kWindowBytes = MiB(16);

  // `threads` threads recode, in addition to the calling threads.
  CompressVerb(size_t threads, BlockStore& store, DiskParts disk, Counters& counters);

  struct What {
    BlockScope scope;
    TierSet tiers = 0;  // HOST, DISK, or both
    Codec codec = Codec::kLossless;
    bool dry_run = false;  // reads and recodes, but writes nothing
  };
  // Called when the work begins and from time to time afterwards.  Returns false if the call is to
  // stop.
  using Report = CallProgress<wire::CompressProgress>::Report;
  // Returns OK if it has tried every copy (the progress counts the outcomes), Cancelled if `report`
  // has stopped it, Unavailable if the disk failed or is not read yet, or another error if it
  // cannot be done here.  Lowers the priority of the calling thread and does not restore it.
  [[nodiscard]] absl::Status Compress(const What& what, const Report& report);

 private:
  using Copy = BlockRecoder::Copy;
  struct Run;     // the state of one call
  struct Window;  // copies that are prepared together
  // A copy that is to be recoded.
  struct Item {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    Tier tier = Tier::kHost;
  };
  [[nodiscard]] absl::Status Check(const What& what) const;
  // Returns the copies of the scope, those of HOST first.
  [[nodiscard]] absl::StatusOr<std::vector<Item>> ItemsOf(const What& what) const;
  // Recodes the items, several at once, until the call is to stop or the disk fails.  Waits until
  // `until` for blocks that are in use.
  [[nodiscard]] absl::Status DoAll(Run& run, std::span<const Item> items, TimePoint until);
  // Recodes several items from the front of *left at once, and removes them from *left.
  [[nodiscard]] absl::Status DoWindow(Run& run, std::span<const Item>* left, TimePoint until,
                                      PayloadCodec& codec);
  // Prepares copies from the front until all are prepared or their recoded bytes reach
  // kWindowBytes; returns how many it prepared.  REQUIRES: there are copies.
  [[nodiscard]] size_t Prepare(Codec to, std::span<Copy> copies, PayloadCodec& codec);
  // Writes the prepared copies.  Until `until`, or until the call is to stop, it tries again to
  // write those whose blocks are in use.  The outcome of those that remain is kInUse.
  void Write(Run& run, std::span<Copy> copies, TimePoint until, PayloadCodec& codec);
  [[nodiscard]] absl::Status Settle(Run& run, std::span<const Copy> copies);
  void Count(Codec to, const Copy& copy);

  BlockStore& store_;
  const DiskParts disk_;
  const BlockRecoder recoder_;
  Counters& counters_;
  WorkerPool encoders_;  // the last member: it must end before the members that its jobs use
};

}  // namespace larder
