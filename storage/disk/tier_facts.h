// The facts of a FileDiskTier, small values that are stored besides the blocks (DiskTier::Fact).
// Each fact is written to every open shard, so that facts survive the loss of single shards.  The
// newest version of a fact is the valid one.  Load copies facts to readable shards that lack them.
// Each kind of fact has a share of its own (fact_budget.h).
//
// A fact is deleted by writing it without a value to the open shards, and its key is removed when
// every shard has the version without a value: otherwise a shard that was closed during the
// deletion would bring the fact back.
// Ownership: by FileDiskTier.  Thread-safety: all methods from any thread.  Blocking: all methods
// may wait for the disk, except uses(), which never waits for a thread that does.
// Memory: that of FactBudget, and the keys of deletions that are not finished.  Load also takes the
// keys of all facts and the values that it copies; ForEach takes all facts.
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

  // Counts the facts of the open shards, and tries to copy the newest version of each fact to the
  // shards that lack it and can be read.  Deletes the oldest facts of a kind if the budget has no
  // space for them; pins may take the shares of all kinds.
  void Load(const Shards& open) LARDER_EXCLUDES(mu_);
  // Writes facts, and deletes those with an empty value, in all open shards.  Returns OK if at
  // least one shard has made them durable; ResourceExhausted if a kind would grow beyond its share;
  // or another error.
  [[nodiscard]] absl::Status Put(const Shards& open, std::span<const DiskTier::Fact> facts)
      LARDER_EXCLUDES(mu_);
  // Visits the newest version of each fact that it can read, in the order of their keys; leaves
  // deleted facts out.
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
  // Visits the facts of each shard of `open`, one shard after the other, so it may visit a key
  // several times.  Deleted facts that a shard still has are visited with an empty value.  Returns
  // the shards that could be read to the end.
  Shards Read(const Shards& open, Visit visit) LARDER_REQUIRES(mu_);
  // Tries to copy the newest versions of the facts in `lacking` to the shards in `whole` that do
  // not have them.  `whole`: the shards that could be read to the end.
  void CopyToAll(const Shards& whole, const std::map<std::string, Newest>& lacking)
      LARDER_REQUIRES(mu_);
  [[nodiscard]] absl::Status Write(const Shards& open, std::span<const DiskTier::Fact> facts)
      LARDER_REQUIRES(mu_);
  // Writes facts, and deletes those with an empty value, in all open shards; Write also retries
  // deletions in owed_.  Returns OK if at least one shard has made them durable.
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
  // Keys of deleted facts that a shard may still have.  They count against the budget, so later
  // writes retry their deletion when all shards are open.
  absl::btree_set<std::string> owed_ LARDER_GUARDED_BY(mu_);
  mutable Mutex uses_mu_;
  DiskTier::FactUses uses_ LARDER_GUARDED_BY(uses_mu_);
};

}  // namespace larder
