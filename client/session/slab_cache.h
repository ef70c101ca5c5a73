// The slabs that a session has mapped, on demand, each at most once for reading and once for
// writing.
//
// What the daemon says of an extent is checked against the mapping here, so nobody else computes an
// address from it.
// Ownership: a mapping lives until Drop and until the last MappedBytes of it is gone, whichever is
// later: a copy under way keeps its memory.
// Thread-safety: all methods from any thread.  Mapping a slab, which takes a while, keeps only
// those waiting who want the same.
// Limits: 65,536 slabs.
#pragma once

#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "client/session/session_channel.h"
#include "storage/mutex.h"

namespace larder {

class SlabCache {
 public:
  explicit SlabCache(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}

  // The bytes of an extent.  Internal when it does not lie inside its slab at a segment's border;
  // Unavailable after Drop; else what mapping the slab says.
  [[nodiscard]] absl::StatusOr<MappedBytes> Map(const wire::ExtentGrant& extent, bool writable)
      LARDER_EXCLUDES(mu_);
  // No new mappings from here on, and the cached ones go.
  void Drop() LARDER_EXCLUDES(mu_);

 private:
  [[nodiscard]] absl::StatusOr<MappedBytes> Slab(uint32_t slab, bool writable) LARDER_EXCLUDES(mu_);

  Mutex mu_;
  std::shared_ptr<SharedMemory> memory_ LARDER_GUARDED_BY(mu_);
  std::vector<MappedBytes> slabs_[2] LARDER_GUARDED_BY(mu_);         // for reading, for writing
  absl::flat_hash_set<uint32_t> mapping_[2] LARDER_GUARDED_BY(mu_);  // somebody is at it
  CondVar mapped_;
};

}  // namespace larder
