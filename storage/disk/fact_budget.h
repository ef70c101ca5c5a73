// How much of a catalog of the disk tier may be taken by facts, the small values that are stored
// besides blocks (DiskTier::Fact).  Each kind of fact has its own share, and Admit refuses facts
// that would make a kind grow beyond its share, so that facts do not use up the space of blocks.
//
// A fact counts with its key, its value and the catalog's overhead of 64 bytes.  A deleted fact
// counts with its key and the overhead until Remove is called for it.  The budget counts only what
// its caller reports to it; it writes and deletes nothing itself.
// Ownership: by TierFacts or MemoryDiskTier, which call it under a lock.  Thread-safety: none.
// Memory: about 20 to 40 bytes per fact.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "storage/disk/disk_tier.h"
#include "storage/types.h"

namespace larder {

class FactBudget {
 public:
  using Kind = DiskTier::FactKind;
  using Use = DiskTier::FactUse;

  // `catalog`: how many bytes of the disk one catalog may take.
  explicit FactBudget(ByteCount catalog);

  // Returns ResourceExhausted if writing these facts would make a kind grow beyond its share.
  // Facts with an empty value, which are deletions, do not count.
  [[nodiscard]] absl::Status Admit(std::span<const DiskTier::Fact> facts) const;
  // Records that a fact with this key exists and has a value of `value_bytes` bytes; 0 if it is
  // being deleted.
  void Set(std::string_view key, size_t value_bytes);
  // Records that no shard has a fact with this key any more.
  void Remove(std::string_view key);
  // Forgets all facts.
  void Clear();

  // Returns for how many bytes a fact counts: its key, its value and an overhead.
  [[nodiscard]] static uint64_t BytesOf(std::string_view key, size_t value_bytes);
  [[nodiscard]] const DiskTier::FactUses& uses() const { return uses_; }
  [[nodiscard]] const Use& UseOf(Kind kind) const { return uses_[static_cast<size_t>(kind)]; }
  [[nodiscard]] ByteCount bytes() const;      // of all kinds
  [[nodiscard]] ByteCount bytes_max() const;  // of all kinds

 private:
  [[nodiscard]] uint64_t Known(std::string_view key) const;

  DiskTier::FactUses uses_;
  absl::flat_hash_map<uint64_t, uint32_t> bytes_of_;  // by a hash of the key
};

}  // namespace larder
