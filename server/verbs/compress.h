// Compress: encodes the blocks of a scope where they lie, or decodes them, in windows, several
// blocks at once.
//
// Each copy of a block is by itself: what was done stays so, whoever ends the call, and how; doing
// it again does the rest.
// Ownership: by Daemon; what it is made with outlives it.
// Thread-safety: all methods from any thread.  Blocking: until all is done.
// Limits: kWindowBlocks and kWindowBytes of raw bytes under way for each call, and some blocks for
// each thread.
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

  // `threads` encode, beside the callers'.
  CompressVerb(size_t threads, BlockStore& store, DiskParts disk, Counters& counters);

  struct What {
    BlockScope scope;
    TierSet tiers = 0;  // HOST, DISK, or both
    Codec codec = Codec::kLossless;
    bool dry_run = false;  // reads and encodes, and leaves everything as it is
  };
  // Called after each window; false: stop.
  using Report = CallProgress<wire::CompressProgress>::Report;
  // OK: nothing is left to do but what was kept.  Cancelled: `report` said so.  Unimplemented: no
  // such codec.  FailedPrecondition: there is no disk.  Unavailable: the disk is not known yet, or
  // failed.
  [[nodiscard]] absl::Status Compress(const What& what, const Report& report);

 private:
  using Copy = BlockRecoder::Copy;
  struct Run;     // a call
  struct Window;  // copies that are prepared together
  // A copy that is yet to be done.
  struct Item {
    VariantIndex variant = VariantIndex::kNone;
    Digest digest;
    Tier tier = Tier::kHost;
  };
  [[nodiscard]] absl::Status Check(const What& what) const;
  // Copies of DISK after those of HOST.
  [[nodiscard]] absl::StatusOr<std::vector<Item>> ItemsOf(const What& what) const;
  // All of them, in windows, waiting until then for those that others hold.
  [[nodiscard]] absl::Status DoAll(Run& run, std::span<const Item> items, TimePoint until);
  // So many of the first as are done at once; takes them out of `left`.
  [[nodiscard]] absl::Status DoWindow(Run& run, std::span<const Item>* left, TimePoint until,
                                      PayloadCodec& codec);
  // How many of the first it took before they were kWindowBytes.
  [[nodiscard]] size_t Prepare(Codec to, std::span<Copy> copies, PayloadCodec& codec);
  // Those that others hold are tried again until then.
  void Write(Run& run, std::span<Copy> copies, TimePoint until, PayloadCodec& codec);
  [[nodiscard]] absl::Status Settle(Run& run, std::span<const Copy> copies);
  void Count(Codec to, const Copy& copy);

  BlockStore& store_;
  const DiskParts disk_;
  const BlockRecoder recoder_;
  Counters& counters_;
  WorkerPool encoders_;  // ends before what its jobs look at
};

}  // namespace larder
