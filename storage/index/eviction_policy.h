// The worth of a block: the recompute time that keeping it is expected to save, per byte and second
// that it stays.
//
//   worth = expected uses per second x tokens / bytes
//
// A block that another tier has is worth a quarter of this, since it would be loaded and not
// computed; a block that waits to be spilled is worth much more (SetSpilling).
//
// The first factor treats a block as a customer who buys at an individual rate and eventually stays
// away for good (Fader, Hardie and Lee, "Counting Your Customers the Easy Way", Marketing Science
// 24, 2005).  The rate is estimated from the uses seen and the time that they took; the probability
// that there will be more uses falls the longer a block is idle compared with its own rate.  So the
// blocks of a conversation whose user always came back within a minute are worth little after
// several idle minutes, and those of one whose user comes back every hour keep their worth for
// hours.  Least is known of a block that was used only once; among such blocks of one size, the one
// that was used first is worth least.  A block that several blocks have followed, as in a prompt
// that many requests share, is still used when one of these conversations ends, so for it that
// probability counts as 1.
//
// Tokens stand for recompute time: the index does not know the position of a block in its chain,
// and within one model the time per token varies little compared with rates of use, which vary a
// thousandfold.
//
// ReuseHistory is a value.  Thread-safety of EvictionPolicy: all methods from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "storage/types.h"

namespace larder {

// What the index records about the uses of a block, except the time of the last one, in two bytes.
struct ReuseHistory {
  uint16_t span : 11 = 0;   // code of the seconds from the first use to the last (SpanSeconds)
  uint16_t uses : 4 = 0;    // not counting the first; if it overflows, uses and span are halved
  uint16_t shared : 1 = 0;  // several blocks have followed it, or have followed a later block
  friend bool operator==(const ReuseHistory&, const ReuseHistory&) = default;
};
static_assert(sizeof(ReuseHistory) == 2);
// Returns the history after one more use, `idle_s` whole seconds after the previous use.  If
// `idle_s` is 0, the use does not count: that an engine reads a block that it has just published
// says nothing about other readers.
[[nodiscard]] ReuseHistory UsedAgain(ReuseHistory before, uint32_t idle_s);
// Returns the seconds that `history.span` stands for; the code rounds longer times down by less
// than 2 %.
[[nodiscard]] uint32_t SpanSeconds(ReuseHistory history);

// Blocks with similar histories form a class.  Among blocks of equal size in one class, the least
// recently used has the least worth, or nearly so.
inline constexpr uint32_t kReuseClasses = 32;
[[nodiscard]] uint32_t ReuseClassOf(ReuseHistory history);

struct EvictionCandidate {
  ByteCount bytes;         // freed if it leaves
  uint32_t tokens = 0;     // to be computed again if it leaves; 0 if unknown
  uint32_t idle_s = 0;     // since its last use
  ReuseHistory history;    // as of that use
  bool elsewhere = false;  // another tier has the block, so it would be loaded, not computed again
  bool unwritten = false;  // the block is in HOST only, and may be waiting for its spill
};

class EvictionPolicy {
 public:
  // Returns the worth of a block: the lower it is, the earlier the block should be evicted.  Finite
  // and above 0.
  [[nodiscard]] double Worth(const EvictionCandidate& candidate) const;
  // If `spilling`, a block that is in HOST only and was used less than 10 seconds ago is worth
  // 1,000 times as much, so that it likely stays until it has been written to disk.
  void SetSpilling(bool spilling) { spilling_.store(spilling, std::memory_order_relaxed); }

 private:
  std::atomic<bool> spilling_{false};
};

}  // namespace larder
