// The facts of a FileDiskTier.  Every shard stores every fact, and the newest version of a fact is
// the valid one, so damage to one shard loses no fact; Load copies facts that a shard lacks from
// the other shards to it.  The facts of each kind stay within the kind's budget (fact_budget.h).
//
// A fact is deleted by writing it without a value to all shards, and its key is removed when every
// shard has the version without a value: otherwise a shard that was closed during the deletion
// would bring the fact back.
// Ownership: by FileDiskTier.  Thread-safety: all methods from any thread.  Blocking: all methods
// wait for the disk, except uses(), which never waits for a thread that does.
// Memory: that of FactBudget; also all facts while they are read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "storage/disk/disk_shard.h"
#include "storage/disk/disk_tier.h"
#include "storage/disk/fact_budget.h"
#include "storage/mutex.h"

namespace larder {

class TierFacts {
 public:
  using Shards = std::vector<std::shared_ptr<DiskShard>>;  // the open shards
  using Warn = std::function<void(const std::string&)>;    // may be empty

  // `shards`: how many shards the tier has, open or not.  `catalog`: the bytes that the catalog of
  // each shard may take.
  TierFacts(uint32_t shards, ByteCount catalog, Warn warn)
      : shards_(shards), warn_(std::move(warn)), budget_(catalog) {}

  // Counts the facts of the shards, and copies the facts that a shard lacks to that shard.  Facts
  // beyond the budget, which an older daemon may have left, are deleted, because blocks need the
  // space: of each kind the oldest first, and pins only if nothing else is left to delete.
  void Load(const Shards& open) LARDER_EXCLUDES(mu_);
  [[nodiscard]] absl::Status Put(const Shards& open, std::span<const DiskTier::Fact> facts)
      LARDER_EXCLUDES(mu_);
  void ForEach(const Shards& open,
               absl::FunctionRef<void(const std::string& key, const std::string& value)> visit)
      LARDER_EXCLUDES(mu_);
  [[nodiscard]] DiskTier::FactUses uses() const LARDER_EXCLUDES(uses_mu_);

 private:
  struct Known {
    std::string key;
    uint64_t sequence = 0;
    size_t value_bytes = 0;  // 0: deleted
  };
  using Visit =
      absl::FunctionRef<void(const std::string& key, uint64_t sequence, std::string_view value)>;
  // The newest version of a key among those read so far.
  struct Newest {
    uint64_t sequence = 0;
    size_t value_bytes = 0;
    size_t shards = 0;  // the number of shards that have this version
  };
  // Visits the facts of each shard in turn, so a key is visited more than once.  Returns the shards
  // that could be read to the end.
  Shards Read(const Shards& open, Visit visit) LARDER_REQUIRES(mu_);
  // Copies the newest versions of the facts in `lacking` to the shards in `whole` that do not have
  // them.  `whole`: the shards that could be read to the end.
  void CopyToAll(const Shards& whole, const std::map<std::string, Newest>& lacking)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::Status Write(const Shards& open, std::span<const DiskTier::Fact> facts)
      LARDER_REQUIRES(mu_);
  // As Write, without retrying the deletions in owed_.
  [[nodiscard]] absl::Status WriteNow(const Shards& open, std::span<const DiskTier::Fact> facts)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] std::vector<DiskTier::Fact> BeyondBudget(std::vector<Known> known) const
      LARDER_REQUIRES(mu_);

  // Passes the current counts of the budget on to the shards and to uses().
  void TellUses(const Shards& open) LARDER_REQUIRES(mu_) LARDER_EXCLUDES(uses_mu_);

  const uint32_t shards_;
  const Warn warn_;
  Mutex mu_;                                      // taken before uses_mu_
  uint64_t sequence_ LARDER_GUARDED_BY(mu_) = 0;  // of the newest fact
  FactBudget budget_ LARDER_GUARDED_BY(mu_);
  // Keys of deleted facts that a shard may still have.  They count against the budget until the
  // deletion succeeds, so later writes try it again.
  absl::btree_set<std::string> owed_ LARDER_GUARDED_BY(mu_);
  mutable Mutex uses_mu_;
  DiskTier::FactUses uses_ LARDER_GUARDED_BY(uses_mu_);
};

}  // namespace larder
