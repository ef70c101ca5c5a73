// How worthy a block is of its place: the recompute time that keeping it is expected to save, per
// byte and second of its stay; learned from what became of blocks like it.
//
//   worth = (hits expected / seconds of stay expected) x tokens / bytes
//
// The first factor is that of the horizon for which it is greatest (a Gittins index; of caches:
// Beckmann and Sanchez, "Maximizing Cache Performance Under Uncertainty", HPCA 2017).  It comes
// from the hazard of reuse: how many blocks of a class that were idle for so long were used next,
// and how many left unused.  So nothing presumes how engines behave: where recency tells all, the
// least recent leaves; where some prompts are shared by many, they stay through idle times in which
// the tails of conversations go.
//
// A class is what is remembered of a block's past (ReuseHistory): the typical time between its
// uses, and whether several blocks have followed it.  A system prompt has been continued in many
// ways, a conversation in one, and what was just appended to a conversation will be wanted when the
// rest of it is.  Tokens stand for recompute time: the index does not know how deep a block lies,
// and within one model the time per token differs little beside idle times that differ a
// thousandfold.
//
// ReuseHistory, ReuseCounts: values.  EvictionPolicy: Worth and SetSpilling from any thread; Learn
// from one at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "storage/types.h"

namespace larder {

// What is remembered of a block's uses: one byte.
struct ReuseHistory {
  uint8_t gap : 7 = 0;      // code of the seconds between its uses, a moving mean; 0: none known
  bool shared : 1 = false;  // several blocks have followed it, or one that followed it
  friend bool operator==(const ReuseHistory&, const ReuseHistory&) = default;
};
static_assert(sizeof(ReuseHistory) == 1);
// The history after one more use, `idle_s` after the last.
[[nodiscard]] ReuseHistory UsedAgain(ReuseHistory before, uint32_t idle_s);

inline constexpr uint32_t kReuseClasses = 16;
[[nodiscard]] uint32_t ReuseClassOf(ReuseHistory history);
// Idle times, two buckets an octave: 0, 1 .. 2^20 s and more.
inline constexpr uint32_t kIdleBuckets = 40;
[[nodiscard]] uint32_t IdleBucketOf(uint32_t idle_s);

// What became of blocks that were idle: by class, and by the time since the last use.
struct ReuseCounts {
  using Histogram = std::array<std::array<uint64_t, kIdleBuckets>, kReuseClasses>;
  Histogram again{};      // used once more
  Histogram forgotten{};  // left, and was not asked for as long as that was remembered

  void Again(ReuseHistory history, uint32_t idle_s) {
    ++again[ReuseClassOf(history)][IdleBucketOf(idle_s)];
  }
  void Forgotten(ReuseHistory history, uint32_t idle_s) {
    ++forgotten[ReuseClassOf(history)][IdleBucketOf(idle_s)];
  }
};

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
  EvictionPolicy();

  // The block with the least worth leaves first.  Finite and > 0.
  [[nodiscard]] double Worth(const EvictionCandidate& candidate) const;
  // Blocks are being written to a disk: so one that was just published and is nowhere else stays
  // for the seconds that takes, after which it is worth less here.
  void SetSpilling(bool spilling) { spilling_.store(spilling, std::memory_order_relaxed); }
  // What has happened since the last call.  Older experience fades: it counts half after about a
  // million newer events.
  void Learn(const ReuseCounts& since);

 private:
  using Curve = std::array<double, kIdleBuckets>;
  void Recompute(uint32_t reuse_class);
  [[nodiscard]] double RateAt(uint32_t reuse_class, uint32_t idle_s) const;

  std::array<Curve, kReuseClasses> again_{}, forgotten_{};
  double events_ = 0;                                                               // in them
  std::array<std::array<std::atomic<double>, kIdleBuckets>, kReuseClasses> rates_;  // hits a second
  std::atomic<bool> spilling_{false};
};

}  // namespace larder
