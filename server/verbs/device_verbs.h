// Clear and Compress of DEVICE: which blocks of a scope engines have, and what they say when they
// are asked to drop or encode them.
//
// Ownership: by Daemon; what it is made with outlives it.
// Thread-safety: all methods from any thread.  Blocking: Find, as ScopeMembers; nothing waits for
// an engine.
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
  // Those of the scope, by what engines say and by what is stored: so to be asked for before any of
  // that is cleared.  Unavailable: as ScopeMembers::Find; the others are found.
  [[nodiscard]] absl::Status Find(const BlockScope& scope, Blocks* blocks) const;

  struct Drop {
    bool pinned = false;  // also what engines have pinned
    bool dry_run = false;
  };
  // Adds what becomes of them to `result`, which HOST and DISK may have begun.  `done` as
  // DirectiveQueue::Answer.
  void Clear(const BlockScope& scope, const Drop& drop, Blocks blocks, wire::ClearResult result,
             std::function<void(const wire::ClearResult&)> done);
  // Likewise to `progress`, which counts them among its `blocks` already.
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
