// Keeps what lost sessions held until their process cannot touch it any more.
//
// A closed stream may leave a live process with a mapping and a copy under way, so its extents must
// not be reused. Handles wait here, by process, until the process is proven dead (pidfd) or has
// said that it unmapped (CLEAN).
//
// Ownership: owns the handles put in.  Thread-safety: all methods from any thread.
// Limits: none of its own; what waits here is bounded by the pool and shown in stats.
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
  // What one lost session held.  False: nothing to keep.  REQUIRES: once for each session.
  // `beside`: kept as long.
  bool Put(ProcessId process, SessionId session, std::vector<BlockLease> leases,
           std::vector<ExtentReservation> reservations, std::shared_ptr<const void> beside = {})
      LARDER_EXCLUDES(mu_);

  // Proven dead: everything of this process goes back to the store.  Answers how many bytes.
  ByteCount Release(ProcessId process) LARDER_EXCLUDES(mu_);
  // Unmapped: what this session held goes back.  nullopt: nothing of it is here.
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
