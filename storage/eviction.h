// How worthy a block is of its place in the pool: recompute time that keeping it is expected to
// save, per byte.
//
//   worth = expected uses x tokens x (1 + child_weight x children) / bytes
//   expected uses = (1 + frequency, halved for every half-life of idleness) / (idle_s + recency_s)
//
// The second line is uses per second of a block with that history (one use is presumed, so that a
// new block is not worthless; recency_s keeps the youngest from being worth everything).  Tokens
// stand for recompute time: the index does not know how deep a block lies, and within one model the
// time per token differs little beside idle times that differ a thousandfold.  Children are what a
// hole here would leave behind it.
//
// Pure: no ownership, no threads, no clock.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "storage/types.h"

namespace larder {

struct EvictionCandidate {
  ByteCount bytes;        // that its leaving frees
  uint32_t tokens = 0;    // that would be computed again; 0 when unknown
  uint32_t idle_s = 0;    // since its last use
  uint8_t frequency = 0;  // as UsedAgain left it
  uint16_t children = 0;  // blocks in HOST that follow it
};

// Frequency halves in this time without use.
inline constexpr uint32_t kFrequencyHalfLife_s = 600;

// The frequency of a block that was last used `idle_s` ago.
[[nodiscard]] uint8_t AgedFrequency(uint8_t frequency, uint32_t idle_s);
// The same after one more use now; saturates at 255.
[[nodiscard]] uint8_t UsedAgain(uint8_t frequency, uint32_t idle_s);

struct EvictionOptions {
  double recency_s = 30;      // below this, idle times differ little
  double child_weight = 0.5;  // of one child, 16 at most are counted

  // InvalidArgument: not finite, recency_s <= 0, child_weight < 0.
  [[nodiscard]] absl::Status Validate() const;
};

class EvictionPolicy {
 public:
  // REQUIRES: options.Validate().ok().
  explicit EvictionPolicy(const EvictionOptions& options = {}) : options_(options) {}

  // The block with the least worth leaves first.  Finite and >= 0.
  [[nodiscard]] double Worth(const EvictionCandidate& candidate) const;

 private:
  EvictionOptions options_;
};

}  // namespace larder
