// Clear: removes the blocks that a caller selects (BlockScope) from the chosen tiers, while other
// calls continue to work.
//
// Ownership: Daemon owns it; the store, the disk, the pins and the counters outlive it.
// Thread-safety: all methods from any thread.
// Locks: owed_mu_ is held while the disk forgets blocks; it is acquired before the locks of the
// spiller, of the disk's parts and of the store.
// Blocking: waits for the disk, and may take seconds with millions of blocks.
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
    bool pinned = false;  // clears pinned blocks too, and ends all their pins
    bool dry_run = false;
  };
  // Clears the blocks that it finds, except those that *result counts as kept; with `dry_run` it
  // only counts them.  If it returns OK, a crash does not bring cleared blocks back; after an error
  // it may.
  [[nodiscard]] absl::Status Clear(const What& what, wire::ClearResult* result);

 private:
  // Cleared blocks that are still leased.  The disk may still have their records.
  struct Leased {
    std::vector<DiskAddress> on_disk;
    std::vector<EntryRef> held;  // one hold per address, so that the space is not reused before
                                 // the disk has forgotten the record
    std::vector<std::pair<VariantIndex, Digest>> names;  // blocks that the spiller may be writing
  };
  // Visits the blocks of the scope once; sets *cleared to the number of blocks that it cleared.
  [[nodiscard]] absl::Status ClearOnce(const What& what, wire::ClearResult* result, Leased* leased,
                                       uint64_t* cleared);
  [[nodiscard]] BlockStatus ClearOne(const What& what, VariantIndex variant, const Digest& digest,
                                     wire::ClearResult* result, Leased* leased);
  // Makes the disk forget these blocks, and those that it should have forgotten in earlier calls.
  [[nodiscard]] absl::Status ForgetOnDisk(Leased leased) LARDER_EXCLUDES(owed_mu_);
  [[nodiscard]] absl::Status ForgetOwed() LARDER_REQUIRES(owed_mu_);
  [[nodiscard]] absl::Status EndPins(const ScopeMembers& members, bool dry_run,
                                     wire::ClearResult* result);

  BlockStore& store_;
  const DiskParts disk_;
  PinVerb& pins_;
  Counters& counters_;
  // Held while the disk forgets blocks, so that no call that clears blocks returns OK while the
  // disk may still have blocks that another call put into owed_.
  Mutex owed_mu_;
  Leased owed_ LARDER_GUARDED_BY(owed_mu_);
};

}  // namespace larder
