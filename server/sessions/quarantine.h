// Keeps the leases and reservations of lost sessions until their processes cannot access them any
// more.
//
// When a session's stream closes without a `bye` message, the process may still be alive, with the
// pool mapped and a copy under way, so the session's extents must not be reused.  The session's
// leases and reservations wait here until the process is proven dead (pidfd) or has reported that
// it unmapped what the session used (sideband frame CLEAN).
// Ownership: owns what is put in.
// Thread-safety: all methods from any thread.
// Locks: mu_ is a leaf; leases and reservations are destroyed without it.
// Limits: none of its own.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/mutex.h"
#include "storage/store/block_store.h"
#include "storage/types.h"

namespace larder {

class Quarantine {
 public:
  // Keeps the leases and reservations of one lost session, and `beside` with them, until one of the
  // Release methods is called for them.  Returns false if there is nothing to keep.  REQUIRES:
  // called at most once for each session.
  bool Put(ProcessId process, SessionId session, std::vector<BlockLease> leases,
           std::vector<ExtentReservation> reservations, std::shared_ptr<const void> beside = {})
      LARDER_EXCLUDES(mu_);

  // To be called when the process is proven dead.  Returns all leases and reservations of the
  // process to the store, and returns how many bytes they held.
  ByteCount Release(ProcessId process) LARDER_EXCLUDES(mu_);
  // To be called when the process has unmapped a session.  Returns its leases and reservations to
  // the store, and returns how many bytes they held, or nullopt if none are kept.
  std::optional<ByteCount> Release(ProcessId process, SessionId session) LARDER_EXCLUDES(mu_);

  [[nodiscard]] ByteCount bytes() const LARDER_EXCLUDES(mu_);
  [[nodiscard]] size_t processes() const LARDER_EXCLUDES(mu_);

 private:
  struct Held {
    std::vector<BlockLease> leases;
    std::vector<ExtentReservation> reservations;
    ByteCount bytes;
    std::shared_ptr<const void> beside;
  };
  using Sessions = absl::flat_hash_map<SessionId, Held>;
  mutable Mutex mu_;
  absl::flat_hash_map<ProcessId, Sessions> held_ LARDER_GUARDED_BY(mu_);
  ByteCount bytes_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
