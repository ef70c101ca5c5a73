// Names that a catalog has erased and not yet for good: a loss of power may bring them back.
//
// As hashes: of another name it says so too, once in 10^15.
// Ownership: by BlockCatalog.  Thread-safety: all methods from any thread; no Note beside a Clear.
// Memory: some 16 B a name.
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

  // Before they are erased.  True: there are many now, so they are to be made durable.
  [[nodiscard]] bool Note(std::span<const BlockKey> keys) LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    for (const BlockKey& key : keys) hashes_.insert(absl::HashOf(key));
    return hashes_.size() >= kMany;
  }
  // All that was noted is durable.
  void Clear() LARDER_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    hashes_.clear();
  }
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
