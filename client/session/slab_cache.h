// The slabs that a session has mapped, on demand, each at most once for reading and once for
// writing.
//
// SlabCache checks that an extent that the daemon named lies inside the mapping before it returns
// the extent's bytes.  No other class computes an address in a slab.
// Ownership: A mapping lives until this object drops it and its last MappedBytes is destroyed, so a
// copy under way keeps its memory.
// Thread-safety: All methods may be called from any thread.  Mapping a slab takes a while;
// meanwhile callers that want another slab, if that is mapped already, do not wait.
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

  // Returns the bytes of an extent.  Returns Internal if the extent is empty, not inside its slab
  // or not at a multiple of 64, Unavailable after Drop; other errors are those of mapping the slab.
  [[nodiscard]] absl::StatusOr<MappedBytes> Map(const wire::ExtentGrant& extent, bool writable)
      LARDER_EXCLUDES(mu_);
  // From now on Map fails, and this object keeps no mapping: each slab is unmapped when its last
  // MappedBytes is destroyed.
  void Drop() LARDER_EXCLUDES(mu_);

 private:
  [[nodiscard]] absl::StatusOr<MappedBytes> Slab(uint32_t slab, bool writable) LARDER_EXCLUDES(mu_);

  Mutex mu_;
  std::shared_ptr<SharedMemory> memory_ LARDER_GUARDED_BY(mu_);
  std::vector<MappedBytes> slabs_[2] LARDER_GUARDED_BY(mu_);         // for reading, for writing
  absl::flat_hash_set<uint32_t> mapping_[2] LARDER_GUARDED_BY(mu_);  // a thread is mapping it
  CondVar mapped_;
};

}  // namespace larder
