// Keys that a catalog has erased, but not durably: a loss of power may bring them back.
//
// Keys are kept as hashes of 64 bits, so Contain may also, very rarely, return true for a key that
// was not noted; Put then syncs the catalog needlessly.
// Ownership: by BlockCatalog.  Thread-safety: all methods from any thread, except that Clear must
// not be called between Note and the end of the write that erases the noted keys.
// Memory: about 16 B per key.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "storage/format/block_key.h"
#include "storage/mutex.h"

namespace larder {

class ErasedNames {
 public:
  static constexpr size_t kMany = 16'384;

  // Notes keys; called before the keys are erased.  Returns true if at least kMany keys are noted
  // now; the caller should then make the erasures durable.
  [[nodiscard]] bool Note(std::span<const BlockKey> keys) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (const BlockKey& key : keys) hashes_.insert(absl::HashOf(key));
    return hashes_.size() >= kMany;
  }
  // Drops all keys; called when the erasures of all noted keys are durable.
  void Clear() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    hashes_.clear();
  }
  // Returns, for each key, whether its hash was noted since the last Clear.
  [[nodiscard]] std::vector<bool> Contain(std::span<const BlockKey> keys) const
      LARDER_EXCLUDES(mu_) {
    std::vector<bool> contain(keys.size());
    MutexLock lock(mu_);
    for (size_t i = 0; i < keys.size() && !hashes_.empty(); ++i)
      contain[i] = hashes_.contains(absl::HashOf(keys[i]));
    return contain;
  }

 private:
  mutable Mutex mu_;
  absl::flat_hash_set<size_t> hashes_ LARDER_GUARDED_BY(mu_);
};

}  // namespace larder
