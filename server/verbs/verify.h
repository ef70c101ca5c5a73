// Verify: reads every block of a tier once, when an operator asks, and drops what is damaged.
//
// One block at a time, held meanwhile, at a rate that the caller may bound.  Blocks that come while
// it runs may be read or not.  A disk that gives nothing ends it.
// Ownership: by Daemon; what it is made with outlives it.
// Thread-safety: all methods from any thread.  Blocking: until all is read.
// Limits: a block of HOST where it lies; DiskVerifier::kPieceBytes of one on disk, or a segment.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "proto/messages/admin_messages.h"
#include "server/metrics/counters.h"
#include "storage/store/block_store.h"
#include "storage/tiering/tier_worker.h"

namespace larder {

class VerifyVerb {
 public:
  static constexpr int kFailuresMax = 16;  // in a row, of a disk

  VerifyVerb(BlockStore& store, DiskParts disk, Counters& counters)
      : store_(store), disk_(disk), counters_(counters) {}

  // Called some times a second; false: stop.
  using Report = std::function<bool(const wire::VerifyProgress&)>;
  // OK: every block was read that was there.  Cancelled: `report` said so.  FailedPrecondition:
  // there is no disk.  Unavailable: the disk is not known yet, or failed.  Unimplemented: another
  // tier.
  [[nodiscard]] absl::Status Verify(const wire::VerifyQuery& query, const Report& report);

 private:
  struct Run;  // a call
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
