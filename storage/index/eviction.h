// How worthy a block is of its place: the recompute time that keeping it is expected to save, per
// byte and second of its stay.
//
//   worth = uses expected a second x tokens / bytes
//
// The first factor is that of a customer who buys at his own rate until he stays away for good
// (Fader, Hardie and Lee, "Counting Your Customers the Easy Way", Marketing Science 24, 2005): the
// rate is one that fits the uses seen and the time they took; the chance that more will come falls
// the longer a block is idle beside its own rate.  So a conversation whose user always came back
// within a minute leaves after some minutes, another that comes back by the hour stays for hours,
// and what nobody has asked for twice is known least and leaves as the least recent does.  What
// several blocks have followed, a prompt that many share, does not end with one of them: it has its
// rate alone.
//
// Tokens stand for recompute time: the index does not know how deep a block lies, and within one
// model the time per token differs little beside rates that differ a thousandfold.
//
// ReuseHistory: a value.  EvictionPolicy: from any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "storage/types.h"

namespace larder {

// What is remembered of a block's uses: two bytes.
struct ReuseHistory {
  uint16_t span : 11 = 0;   // code of the seconds from the first use to the last
  uint16_t uses : 4 = 0;    // after the first; the older half is let go of when that is full
  uint16_t shared : 1 = 0;  // several blocks have followed it, or one that followed it
  friend bool operator==(const ReuseHistory&, const ReuseHistory&) = default;
};
static_assert(sizeof(ReuseHistory) == 2);
// The history after one more use, `idle_s` after the last.  Uses within a second are one: an engine
// that reads what it has just published says nothing of others.
[[nodiscard]] ReuseHistory UsedAgain(ReuseHistory before, uint32_t idle_s);
// From the first use to the last; of long ones to within 2 %.
[[nodiscard]] uint32_t SpanSeconds(ReuseHistory history);

// Blocks of like history, of whom the least recently used is the least worthy, or nearly.
inline constexpr uint32_t kReuseClasses = 32;
[[nodiscard]] uint32_t ReuseClassOf(ReuseHistory history);

struct EvictionCandidate {
  ByteCount bytes;         // that its leaving frees
  uint32_t tokens = 0;     // that would be computed again; 0 when unknown
  uint32_t idle_s = 0;     // since its last use
  ReuseHistory history;    // as of that use
  bool elsewhere = false;  // it would be loaded again, not computed
  bool unwritten = false;  // it is nowhere else, and may be on its way to the disk
};

class EvictionPolicy {
 public:
  // The block with the least worth leaves first.  Finite and > 0.
  [[nodiscard]] double Worth(const EvictionCandidate& candidate) const;
  // Blocks are being written to a disk: so one that was just published and is nowhere else stays
  // for the seconds that takes, after which it is worth less here.
  void SetSpilling(bool spilling) { spilling_.store(spilling, std::memory_order_relaxed); }

 private:
  std::atomic<bool> spilling_{false};
};

}  // namespace larder
