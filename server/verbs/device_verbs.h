// Clear and Compress of DEVICE: finds the blocks that a caller selects (BlockScope) and that
// engines report, and asks the engines to drop or recode (encode or decode) them.
//
// Ownership: Daemon owns it; the store, the disk, the DeviceTable and the DirectiveQueue outlive
// it.
// Thread-safety: all methods from any thread.
// Locks: none of its own.
// Blocking: Find may wait for the disk; no method waits for an engine.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "proto/messages/messages.h"
#include "server/instances/directive_queue.h"
#include "server/verbs/block_scope.h"
#include "storage/disk/disk_tier.h"
#include "storage/store/block_store.h"

namespace larder {

class DeviceVerbs {
 public:
  // `disk` may be null.
  DeviceVerbs(BlockStore& store, DiskTier* disk, const DeviceTable& devices,
              DirectiveQueue& directives)
      : store_(store), disk_(disk), devices_(devices), directives_(directives) {}

  using Blocks = std::vector<DirectiveQueue::Block>;
  // Finds the blocks of the scope by what engines report and by what is stored, so it must be
  // called before any of these blocks is cleared.  Returns Unavailable if the content or the writer
  // of some blocks could not be read from the disk; *blocks then has the blocks that were found.
  [[nodiscard]] absl::Status Find(const BlockScope& scope, Blocks* blocks) const;

  struct Drop {
    bool pinned = false;  // drops blocks that engines have pinned, too
    bool dry_run = false;
  };
  // Asks the engines to drop the blocks, or, with `dry_run`, assumes that they would, and adds
  // their answers to `result`, which may have counts of HOST and DISK already.  Calls `done` once,
  // on this thread or on another one (DirectiveQueue::Answer).
  void Clear(const BlockScope& scope, const Drop& drop, Blocks blocks, wire::ClearResult result,
             std::function<void(const wire::ClearResult&)> done);
  // Asks the engines to recode the blocks and adds their answers to `progress`, whose field
  // `blocks` must count these blocks already.  Calls `done` once, on this thread or on another one
  // (DirectiveQueue::Answer).
  void Compress(const BlockScope& scope, Codec codec, Blocks blocks,
                wire::CompressProgress progress,
                std::function<void(const wire::CompressProgress&)> done);

 private:
  BlockStore& store_;
  DiskTier* const disk_;
  const DeviceTable& devices_;
  DirectiveQueue& directives_;
};

}  // namespace larder
