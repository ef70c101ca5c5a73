// The facts of a FileDiskTier: each is in every shard and the newest holds, so no one shard's
// damage loses any, and a shard that lacks some has them from the others when they are loaded.  All
// of a kind stay within its budget (fact_budget.h).
//
// What is forgotten is there too, without a value, until all shards have heard of it: one that was
// away would bring it back.
// Ownership: by FileDiskTier.  Thread-safety: all methods from any thread.  Blocking: all of them
// wait for the disk but uses(), which waits for nobody who does.
// Memory: FactBudget's; while facts are read, all of them.
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
  using Shards = std::vector<std::shared_ptr<DiskShard>>;  // those that are open
  using Warn = std::function<void(const std::string&)>;    // may be empty

  // `shards`: of the tier, open or not.  `catalog`: what each one's catalog may take.
  TierFacts(uint32_t shards, ByteCount catalog, Warn warn)
      : shards_(shards), warn_(std::move(warn)), budget_(catalog) {}

  // Counts what the shards have, and copies what some of them lack to those.  Facts beyond the
  // budget, as an older daemon may have left them, are forgotten, the oldest of a kind first, and
  // pins last: blocks need the room.
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
    size_t value_bytes = 0;  // 0: forgotten
  };
  using Visit =
      absl::FunctionRef<void(const std::string& key, uint64_t sequence, std::string_view value)>;
  // Of a key, as far as it was read.
  struct Newest {
    uint64_t sequence = 0;
    size_t value_bytes = 0;
    size_t shards = 0;  // that have it
  };
  // As each shard has them, so a key more than once.  Those that were read to the end.
  Shards Read(const Shards& open, Visit visit) LARDER_REQUIRES(mu_);
  // `lacking`: what some of these shards lack, or have older.
  void CopyToAll(const Shards& whole, const std::map<std::string, Newest>& lacking)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::Status Write(const Shards& open, std::span<const DiskTier::Fact> facts)
      LARDER_REQUIRES(mu_);
  // Without what is owed.
  [[nodiscard]] absl::Status WriteNow(const Shards& open, std::span<const DiskTier::Fact> facts)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] std::vector<DiskTier::Fact> BeyondBudget(std::vector<Known> known) const
      LARDER_REQUIRES(mu_);

  // What the budget counts now, to the shards and to uses().
  void TellUses(const Shards& open) LARDER_REQUIRES(mu_) LARDER_EXCLUDES(uses_mu_);

  const uint32_t shards_;
  const Warn warn_;
  Mutex mu_;                                      // before uses_mu_
  uint64_t sequence_ LARDER_GUARDED_BY(mu_) = 0;  // the newest
  FactBudget budget_ LARDER_GUARDED_BY(mu_);
  // Keys of facts that are forgotten, of which some shard still has a word: the next writes erase
  // it, since until then it counts.
  absl::btree_set<std::string> owed_ LARDER_GUARDED_BY(mu_);
  mutable Mutex uses_mu_;
  DiskTier::FactUses uses_ LARDER_GUARDED_BY(uses_mu_);
};

}  // namespace larder
