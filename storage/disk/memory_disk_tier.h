// A DiskTier over a map in memory: the reference implementation of the interface, on which tests of
// the store run.
//
// Its blocks do not outlive the process.  The "former process" that DiskTier speaks of is another
// MemoryDiskTier over the same Medium, which has the map.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "storage/disk/disk_tier.h"
#include "storage/disk/fact_budget.h"
#include "storage/mutex.h"

namespace larder {

class MemoryDiskTier : public DiskTier {
 public:
  // A record as a disk would store it.  A test may damage it.
  struct Record {
    BlockKey key;
    RecordHeader header;
    std::vector<uint32_t> tokens;
    std::vector<std::byte> payload;
    bool unreadable = false;  // Get returns kFailed
    bool forgotten = false;
    bool superseded = false;  // a newer record has the same key
  };
  struct Medium {
    Mutex mu;
    uint64_t next LARDER_GUARDED_BY(mu) = 1;
    absl::btree_map<uint64_t, Record> records LARDER_GUARDED_BY(mu);  // by location
    absl::btree_map<std::string, std::string> facts LARDER_GUARDED_BY(mu);
    bool keeps_all LARDER_GUARDED_BY(mu) = false;  // Erase and Forget fail
  };

  // REQUIRES: `medium` outlives the tier; limit is whole pages, above 0.
  MemoryDiskTier(ByteCount limit, Medium& medium);

  void Put(std::span<const NewBlock> blocks, std::span<PutResult> results) override;
  [[nodiscard]] absl::Status Erase(std::span<const DiskAddress> blocks) override;
  [[nodiscard]] absl::Status Forget(std::span<const DiskAddress> blocks) override;
  [[nodiscard]] absl::Status SyncErasures() override { return Erase({}); }
  [[nodiscard]] absl::Status Describe(std::span<const DiskAddress> blocks,
                                      std::span<std::optional<Description>> out) override;
  [[nodiscard]] absl::StatusOr<std::optional<Description>> FindUntold(const BlockKey& key) override;
  [[nodiscard]] GetStatus Get(const Read& read) override;
  [[nodiscard]] absl::Status Recover(absl::FunctionRef<uint32_t(const Entry&)> owner_of,
                                     absl::FunctionRef<bool()> stop) override;
  void SetOwner(DiskLocation, uint32_t) override {}
  // Returns no victims: space in memory is never fragmented.
  [[nodiscard]] std::vector<uint32_t> FindVictims(ByteCount, WorthOf) override { return {}; }
  [[nodiscard]] absl::Status PutFacts(std::span<const Fact> facts) override;
  void ForEachFact(
      absl::FunctionRef<void(const std::string& key, const std::string& value)> visit) override;
  [[nodiscard]] ByteCount block_bytes_max() const override { return limit_; }
  [[nodiscard]] ByteCount free_bytes() const override;
  [[nodiscard]] ByteCount batch_bytes() const override { return ByteCount(limit_.value() / 8); }
  [[nodiscard]] Stats stats() const override;

 private:
  [[nodiscard]] PutResult PutOne(const NewBlock& block) LARDER_REQUIRES(medium_.mu);
  // Returns the record of this key at this location, or nullptr if there is none or it was erased.
  [[nodiscard]] const Record* Find(const DiskAddress& block) const LARDER_REQUIRES(medium_.mu);
  [[nodiscard]] ByteCount UsedBytes() const LARDER_REQUIRES(medium_.mu);

  const ByteCount limit_;
  Medium& medium_;
  bool recovered_ LARDER_GUARDED_BY(medium_.mu) = false;
  // Locations of records that were erased, but whose space is not yet freed, because of
  // Medium::keeps_all.
  absl::btree_set<uint64_t> held_back_ LARDER_GUARDED_BY(medium_.mu);
  absl::btree_set<uint64_t> unplaced_ LARDER_GUARDED_BY(medium_.mu);
  Stats counted_ LARDER_GUARDED_BY(medium_.mu);
  FactBudget fact_budget_ LARDER_GUARDED_BY(medium_.mu);
};

}  // namespace larder
