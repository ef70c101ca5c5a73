#include "storage/disk/fact_budget.h"

#include <algorithm>
#include <string>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"

namespace larder {
namespace {

using Kind = DiskTier::FactKind;

// Assumed bytes of a fact besides key and value: a sequence number and RocksDB's data.
constexpr uint64_t kBytesBeside = 64;
// The share of kind i (DiskTier::FactKind) is 1/kShares[i] of what a catalog may take, at most
// kMost[i].  Pins have the largest share, because a pin is a promise to a client.
constexpr std::array<uint64_t, DiskTier::kFactKinds> kShares = {4, 8, 16};
// The most bytes that the share of each kind may have, however large the disk is, since all facts
// are read at a start.
constexpr std::array<ByteCount, DiskTier::kFactKinds> kMost = {GiB(4), MiB(64), MiB(64)};

uint64_t HashOf(std::string_view key) { return absl::HashOf(key); }

}  // namespace

FactBudget::FactBudget(ByteCount catalog) {
  for (size_t kind = 0; kind < uses_.size(); ++kind)
    uses_[kind].bytes_max = std::min(ByteCount(catalog.value() / kShares[kind]), kMost[kind]);
}

uint64_t FactBudget::BytesOf(std::string_view key, size_t value_bytes) {
  return key.size() + value_bytes + kBytesBeside;
}

uint64_t FactBudget::Known(std::string_view key) const {
  const auto known = bytes_of_.find(HashOf(key));
  return known == bytes_of_.end() ? 0 : known->second;
}

absl::Status FactBudget::Admit(std::span<const DiskTier::Fact> facts) const {
  std::array<uint64_t, DiskTier::kFactKinds> more{}, less{};
  for (const DiskTier::Fact& fact : facts) {
    if (fact.value.empty()) continue;
    const uint64_t now = BytesOf(fact.key, fact.value.size());
    const uint64_t before = Known(fact.key);
    const auto kind = static_cast<size_t>(DiskTier::KindOf(fact.key));
    more[kind] += now - std::min(now, before);
    less[kind] += before - std::min(now, before);
  }
  for (size_t kind = 0; kind < uses_.size(); ++kind) {
    if (more[kind] <= less[kind]) continue;
    const uint64_t after = uses_[kind].bytes.value() + more[kind] - less[kind];
    if (after <= uses_[kind].bytes_max.value()) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("the ", ToString(static_cast<Kind>(kind)), " on disk would take ", after,
                     " bytes, but only ", uses_[kind].bytes_max.value(),
                     " are reserved for them; remove some, or raise the disk limit "
                     "(--disk-limit)"));
  }
  return absl::OkStatus();
}

void FactBudget::Set(std::string_view key, size_t value_bytes) {
  const uint64_t bytes = BytesOf(key, value_bytes);
  Use& use = uses_[static_cast<size_t>(DiskTier::KindOf(key))];
  const auto [known, is_new] = bytes_of_.try_emplace(HashOf(key), 0);
  use.facts += is_new ? 1 : 0;
  use.bytes = ByteCount(use.bytes.value() + bytes - known->second);
  known->second = static_cast<uint32_t>(bytes);
}

void FactBudget::Remove(std::string_view key) {
  const auto known = bytes_of_.find(HashOf(key));
  if (known == bytes_of_.end()) return;
  Use& use = uses_[static_cast<size_t>(DiskTier::KindOf(key))];
  --use.facts;
  use.bytes = use.bytes - ByteCount(known->second);
  bytes_of_.erase(known);
}

void FactBudget::Clear() {
  bytes_of_.clear();
  for (Use& use : uses_) use = {.facts = 0, .bytes = {}, .bytes_max = use.bytes_max};
}

ByteCount FactBudget::bytes() const {
  ByteCount sum;
  for (const Use& use : uses_) sum += use.bytes;
  return sum;
}

ByteCount FactBudget::bytes_max() const {
  ByteCount sum;
  for (const Use& use : uses_) sum += use.bytes_max;
  return sum;
}

}  // namespace larder
