// What facts may take of a catalog: a part of it for each kind, so that neither registrations nor
// pins can use up the room of blocks, or each other's.
//
// A fact counts with its key, its value and what a catalog keeps beside them.  One that is
// forgotten counts with its key until no shard has it any more.  The budget counts what its caller
// tells it; it writes nothing and forgets nothing itself.
// Ownership: by a tier.  Thread-safety: none.
// Memory: 20 bytes or so for each fact.
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

  // Of the part of the disk that is for one catalog.
  explicit FactBudget(ByteCount catalog);

  // ResourceExhausted: with these some kind would take more than its part, and more than now.
  [[nodiscard]] absl::Status Admit(std::span<const DiskTier::Fact> facts) const;
  // There is a fact of this key, with a value of so many bytes (0: it is being forgotten) ...
  void Set(std::string_view key, size_t value_bytes);
  // ... or there is none any more.
  void Remove(std::string_view key);
  void Clear();

  // What a fact counts.
  [[nodiscard]] static uint64_t BytesOf(std::string_view key, size_t value_bytes);
  [[nodiscard]] const DiskTier::FactUses& uses() const { return uses_; }
  [[nodiscard]] const Use& UseOf(Kind kind) const { return uses_[static_cast<size_t>(kind)]; }
  [[nodiscard]] ByteCount bytes() const;      // of all kinds
  [[nodiscard]] ByteCount bytes_max() const;  // likewise

 private:
  [[nodiscard]] uint64_t Known(std::string_view key) const;

  DiskTier::FactUses uses_;
  absl::flat_hash_map<uint64_t, uint32_t> bytes_of_;  // by a hash of the key
};

}  // namespace larder
