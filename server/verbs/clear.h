// Clear: takes the blocks of a scope from the tiers that were chosen, whatever else goes on.
//
// Ownership: by Daemon; what it is made with outlives it.
// Thread-safety: all methods from any thread.  Blocking: waits for the disk, and takes seconds
// where there are millions of blocks.
#pragma once

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/messages/messages.h"
#include "server/metrics/counters.h"
#include "server/verbs/block_scope.h"
#include "server/verbs/pin.h"
#include "storage/disk/disk_tier.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"

namespace larder {

class ClearVerb {
 public:
  ClearVerb(BlockStore& store, DiskParts disk, PinVerb& pins, Counters& counters)
      : store_(store), disk_(disk), pins_(pins), counters_(counters) {}
  ~ClearVerb();
  ClearVerb(const ClearVerb&) = delete;
  ClearVerb& operator=(const ClearVerb&) = delete;

  struct What {
    BlockScope scope;
    TierSet tiers = 0;
    bool pinned = false;  // also these: all their pins end
    bool dry_run = false;
  };
  // OK: done, and no crash brings any of it back.  Unavailable: the disk failed, or not all of it
  // is known yet; what `result` says is done all the same, but for that.
  [[nodiscard]] absl::Status Clear(const What& what, wire::ClearResult* result);

 private:
  // Blocks that are leased still, so that the disk may have them.
  struct Leased {
    std::vector<DiskAddress> on_disk;
    std::vector<EntryRef> held;  // one each: their room is no other's until they are forgotten
    std::vector<std::pair<VariantIndex, Digest>> names;  // which may be on their way to disk
  };
  // One look over all blocks; how many it cleared.
  [[nodiscard]] absl::Status ClearOnce(const What& what, wire::ClearResult* result, Leased* leased,
                                       uint64_t* cleared);
  [[nodiscard]] BlockStatus ClearOne(const What& what, VariantIndex variant, const Digest& digest,
                                     wire::ClearResult* result, Leased* leased);
  // Those too that an earlier call could not.
  [[nodiscard]] absl::Status ForgetOnDisk(Leased leased) LARDER_EXCLUDES(owed_mu_);
  [[nodiscard]] absl::Status ForgetOwed() LARDER_REQUIRES(owed_mu_);
  [[nodiscard]] absl::Status EndPins(const ScopeMembers& members, bool dry_run,
                                     wire::ClearResult* result);

  BlockStore& store_;
  const DiskParts disk_;
  PinVerb& pins_;
  Counters& counters_;
  // Held while the disk is asked: nobody is answered before what others owe is done.
  Mutex owed_mu_;
  Leased owed_ LARDER_GUARDED_BY(owed_mu_);
};

}  // namespace larder
