// Verify: reads the blocks of a tier once, at an operator's request, and drops damaged blocks.
//
// It reads one block at a time, at a rate that the caller may limit, and holds that block
// meanwhile.  Blocks that are stored while it runs may be read or not.  A disk that fails
// kFailuresMax reads in a row ends the call.
// Ownership: Daemon owns it; the store, the disk and the counters outlive it.
// Thread-safety: all methods from any thread.
// Locks: none of its own.
// Blocking: Verify waits for the disk; it returns when it has tried all blocks, or when it is
// cancelled or the disk fails.
// Limits: a block of HOST is read in place; a block on disk is read in pieces of at most
// DiskVerifier::kPieceBytes, or of one segment if that is larger.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "proto/messages/admin_messages.h"
#include "server/metrics/counters.h"
#include "server/verbs/call_progress.h"
#include "storage/store/block_store.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

class VerifyVerb {
 public:
  static constexpr int kFailuresMax = 16;  // failed reads of the disk in a row

  VerifyVerb(BlockStore& store, DiskParts disk, Counters& counters)
      : store_(store), disk_(disk), counters_(counters) {}

  // Called when the work begins and from time to time afterwards.  Returns false if the call is to
  // stop.
  using Report = CallProgress<wire::VerifyProgress>::Report;
  // Returns OK if it has tried every block of the tier (the progress counts those that could not be
  // read), Cancelled if `report` has stopped it, Unavailable if the disk failed or is not read yet,
  // or another error if the tier cannot be verified.
  [[nodiscard]] absl::Status Verify(const wire::VerifyQuery& query, const Report& report);

 private:
  struct Run;  // the state of one call
  [[nodiscard]] absl::Status CheckTier(Tier tier) const;
  void Count(Tier tier, wire::VerifyProgress* progress) const;
  void VerifyOne(Run& run, const BlockIndex::View& block);
  [[nodiscard]] DiskTier::GetStatus CheckInHost(const BlockIndex::Held& held);
  [[nodiscard]] DiskTier::GetStatus CheckOnDisk(const BlockIndex::Held& held,
                                                const BlockIndex::View& block);

  BlockStore& store_;
  const DiskParts disk_;
  Counters& counters_;
};

}  // namespace larder
