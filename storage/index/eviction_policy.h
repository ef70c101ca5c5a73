// The worth of a block: the recompute time that keeping it is expected to save, per byte and second
// that it stays.
//
//   worth = expected uses per second x tokens / bytes
//
// To HOST, a block that DISK has too is worth a quarter of this, since it would be loaded again and
// not computed; a block that may wait for its spill is worth much more (SetSpilling).  To DISK, a
// block is worth the same whether or not HOST has it too (EvictionLists::WorthOnDisk).
//
// The expected rate treats a block as a customer who buys at an individual rate and eventually
// stays away for good (Fader, Hardie and Lee, "Counting Your Customers the Easy Way", Marketing
// Science 24, 2005).  The rate is estimated from the uses seen and the time that they took; the
// probability that there will be more uses falls the longer a block is idle compared with its own
// rate.  So the blocks of a conversation whose user came back every minute lose their worth sooner
// than those of one whose user came back every hour.  A block that several blocks have followed, as
// in a prompt that many requests share, may still be used when one conversation ends, so for it
// that probability counts as 1.
//
// Tokens stand for recompute time, since the index does not know the position of a block in its
// chain.
//
// ReuseHistory is a value.  Thread-safety of EvictionPolicy: all methods from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "storage/types.h"

namespace larder {

// What the index records about the uses of a block, except the time of the last one, in two bytes.
struct ReuseHistory {
  uint16_t span : 11 = 0;   // code of about the seconds from first to last use (SpanSeconds)
  uint16_t uses : 4 = 0;    // after the first use; if it overflows, uses and span are halved
  uint16_t shared : 1 = 0;  // several blocks have followed the block, or one after it
  friend bool operator==(const ReuseHistory&, const ReuseHistory&) = default;
};
static_assert(sizeof(ReuseHistory) == 2);
// Returns the history after one more use, `idle_s` whole seconds after the previous use.  If
// `idle_s` is 0, the use does not count: that an engine reads a block that it has just published
// says nothing about other readers.
[[nodiscard]] ReuseHistory UsedAgain(ReuseHistory before, uint32_t idle_s);
// Returns the seconds that `history.span` stands for.  The code is coarse for long times.
[[nodiscard]] uint32_t SpanSeconds(ReuseHistory history);

// Blocks with similar histories form a class.  Among similar blocks in one class, the least
// recently used usually has the least worth.
inline constexpr uint32_t kReuseClasses = 32;
[[nodiscard]] uint32_t ReuseClassOf(ReuseHistory history);

struct EvictionCandidate {
  ByteCount bytes;         // its size in HOST, or the size that it would need there
  uint32_t tokens = 0;     // 0 if unknown
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
  // 1,000 times as much, so that it likely stays until it is on disk.
  void SetSpilling(bool spilling) { spilling_.store(spilling, std::memory_order_relaxed); }

 private:
  std::atomic<bool> spilling_{false};
};

}  // namespace larder
