// Small numbers for the variant ids of one tenant, and the totals of each variant.
//
// A variant keeps its number while the daemon runs: variants are few and are never removed.
// Ownership: made by BlockIndex.
// Thread-safety: all methods from any thread.  Totals are read counter by counter, so the values of
// one VariantTotals may be of different moments.
// Limits: 65,534 variants; Intern returns ResourceExhausted for more.
// Memory: 40 B per variant, in chunks of 10 KiB, and a map.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "storage/index/block_state.h"
#include "storage/mutex.h"
#include "storage/types.h"

namespace larder {

struct VariantTotals {
  uint64_t blocks = 0;  // in HOST
  ByteCount bytes;      // of their extents
  uint64_t disk_only = 0;
};

class VariantTable {
 public:
  static constexpr uint32_t kVariantsMax = 65'534;

  VariantTable() = default;
  ~VariantTable();
  VariantTable(const VariantTable&) = delete;
  VariantTable& operator=(const VariantTable&) = delete;

  [[nodiscard]] absl::StatusOr<VariantIndex> Intern(const Digest& id) LARDER_EXCLUDES(mu_);
  [[nodiscard]] std::optional<VariantIndex> Find(const Digest& id) const LARDER_EXCLUDES(mu_);
  [[nodiscard]] bool Contains(VariantIndex variant) const;
  // REQUIRES, from here to UncountDiskOnly: Contains(variant).
  [[nodiscard]] Digest IdOf(VariantIndex variant) const { return At(variant).id; }
  [[nodiscard]] VariantTotals TotalsOf(VariantIndex variant) const;
  void Count(VariantIndex variant, ByteCount bytes);
  void Uncount(VariantIndex variant, ByteCount bytes);
  void CountDiskOnly(VariantIndex variant);
  void UncountDiskOnly(VariantIndex variant);

  [[nodiscard]] uint32_t size() const { return size_.load(std::memory_order_acquire); }
  [[nodiscard]] ByteCount memory_bytes() const;

 private:
  struct Variant {
    Digest id;
    std::atomic<uint64_t> blocks{0};
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> disk_only{0};
  };
  static constexpr uint32_t kChunkVariants = 256;
  using Chunk = std::array<Variant, kChunkVariants>;

  [[nodiscard]] Variant& At(VariantIndex variant) const;

  mutable Mutex mu_;
  absl::flat_hash_map<Digest, VariantIndex> by_id_ LARDER_GUARDED_BY(mu_);
  // Chunks and ids are written under mu_ before size_ covers them, so readers need no lock.
  std::array<Chunk*, 256> chunks_{};
  std::atomic<uint32_t> size_{0};
};

}  // namespace larder
