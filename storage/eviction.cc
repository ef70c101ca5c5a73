#include "storage/eviction.h"

#include <algorithm>
#include <cmath>

namespace larder {
namespace {

// More children make the block no less replaceable, and the index's count is a heuristic.
constexpr uint16_t kChildrenCounted = 16;
// Stands in where no token ids are known.
constexpr uint32_t kTokensUnknown = kStepTokens;

}  // namespace

uint8_t AgedFrequency(uint8_t frequency, uint32_t idle_s) {
  const uint32_t halvings = idle_s / kFrequencyHalfLife_s;
  return halvings >= 8 ? uint8_t{0} : static_cast<uint8_t>(frequency >> halvings);
}

uint8_t UsedAgain(uint8_t frequency, uint32_t idle_s) {
  const uint8_t aged = AgedFrequency(frequency, idle_s);
  return aged == UINT8_MAX ? aged : static_cast<uint8_t>(aged + 1);
}

absl::Status EvictionOptions::Validate() const {
  if (!std::isfinite(recency_s) || recency_s <= 0) {
    return absl::InvalidArgumentError("eviction recency_s must be a number above 0");
  }
  if (!std::isfinite(child_weight) || child_weight < 0) {
    return absl::InvalidArgumentError("eviction child_weight must be a number of at least 0");
  }
  return absl::OkStatus();
}

double EvictionPolicy::Worth(const EvictionCandidate& candidate) const {
  const double uses = 1.0 + AgedFrequency(candidate.frequency, candidate.idle_s);
  const double uses_per_s = uses / (candidate.idle_s + options_.recency_s);
  const uint32_t tokens = candidate.tokens == 0 ? kTokensUnknown : candidate.tokens;
  const double with_children =
      1.0 + options_.child_weight * std::min(candidate.children, kChildrenCounted);
  const double bytes = static_cast<double>(std::max<uint64_t>(candidate.bytes.value(), 1));
  return uses_per_s * tokens * with_children / bytes;
}

}  // namespace larder
