#include "storage/index/variant_table.h"

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {

VariantTable::~VariantTable() {
  for (Chunk* chunk : chunks_) delete chunk;
}

absl::StatusOr<VariantIndex> VariantTable::Intern(const Digest& id) {
  MutexLock lock(mu_);
  if (const auto known = by_id_.find(id); known != by_id_.end()) return known->second;
  const uint32_t number = size_.load(std::memory_order_relaxed);
  if (number == kVariantsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a tenant has at most ", kVariantsMax, " variants"));
  }
  Chunk*& chunk = chunks_[number / kChunkVariants];
  if (chunk == nullptr) chunk = new Chunk;
  (*chunk)[number % kChunkVariants].id = id;
  const auto variant = static_cast<VariantIndex>(number);
  by_id_.emplace(id, variant);
  size_.store(number + 1, std::memory_order_release);
  return variant;
}

std::optional<VariantIndex> VariantTable::Find(const Digest& id) const {
  MutexLock lock(mu_);
  const auto known = by_id_.find(id);
  if (known == by_id_.end()) return std::nullopt;
  return known->second;
}

bool VariantTable::Contains(VariantIndex variant) const {
  return static_cast<uint32_t>(variant) < size();
}

VariantTable::Variant& VariantTable::At(VariantIndex variant) const {
  LARDER_CHECK(Contains(variant));
  const auto number = static_cast<uint32_t>(variant);
  return (*chunks_[number / kChunkVariants])[number % kChunkVariants];
}

VariantTotals VariantTable::TotalsOf(VariantIndex variant) const {
  const Variant& v = At(variant);
  return {.blocks = v.blocks.load(std::memory_order_relaxed),
          .bytes = ByteCount(v.bytes.load(std::memory_order_relaxed)),
          .disk_only = v.disk_only.load(std::memory_order_relaxed)};
}

void VariantTable::Count(VariantIndex variant, ByteCount bytes) {
  Variant& v = At(variant);
  v.blocks.fetch_add(1, std::memory_order_relaxed);
  v.bytes.fetch_add(bytes.value(), std::memory_order_relaxed);
}

void VariantTable::Uncount(VariantIndex variant, ByteCount bytes) {
  Variant& v = At(variant);
  v.blocks.fetch_sub(1, std::memory_order_relaxed);
  v.bytes.fetch_sub(bytes.value(), std::memory_order_relaxed);
}

void VariantTable::CountDiskOnly(VariantIndex variant) {
  At(variant).disk_only.fetch_add(1, std::memory_order_relaxed);
}

void VariantTable::UncountDiskOnly(VariantIndex variant) {
  At(variant).disk_only.fetch_sub(1, std::memory_order_relaxed);
}

ByteCount VariantTable::memory_bytes() const {
  const uint64_t chunks = RoundUp(size(), kChunkVariants) / kChunkVariants;
  return ByteCount(sizeof *this + chunks * sizeof(Chunk) +
                   uint64_t{size()} * (sizeof(Digest) + sizeof(VariantIndex)));
}

}  // namespace larder
