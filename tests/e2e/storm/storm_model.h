// What one block may be, as far as all answers up to now allow; and the law of each verb.
//
// A state is what the contract lets a caller tell apart: the tiers that have the block, the codec
// of each copy, and whose pins its name has.  What the daemon does by itself (it spills, promotes
// what is pinned, evicts) cannot be predicted, so the model keeps the set of all states that are
// possible: an answer leaves those from which the verb's law gives this answer, and when none is
// left, the daemon has lied.  A law is thereby as sharp as the contract is: Lookup leaves one state
// of tiers, a Clear of a pinned block only KEPT.  What is not tried: that the daemon does by itself
// what it may do, but for what is pinned (the test waits for that).
// Values and pure functions: no threads, no clock.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "storage/types.h"

namespace larder::e2e {

// Bits of a state.
using StormState = uint16_t;
inline constexpr StormState kInHost = 1, kOnDisk = 2, kHostEncoded = 4, kDiskEncoded = 8;
inline constexpr uint32_t kOwners = 2;
inline constexpr StormState kPrefetched = 256;
inline constexpr size_t kStates = 512;
[[nodiscard]] constexpr StormState PinBit(uint32_t owner, Tier tier) {
  return static_cast<StormState>(16u << (2 * owner + (tier == Tier::kDisk ? 1 : 0)));
}
inline constexpr StormState kPinnedHost =
    PinBit(0, Tier::kHost) | PinBit(1, Tier::kHost) | kPrefetched;
inline constexpr StormState kPinnedDisk = PinBit(0, Tier::kDisk) | PinBit(1, Tier::kDisk);
inline constexpr StormState kAllPins = kPinnedHost | kPinnedDisk;
[[nodiscard]] constexpr StormState Copies(StormState state) { return state & 3; }
[[nodiscard]] constexpr StormState CopyBit(Tier tier) {
  return tier == Tier::kHost ? kInHost : kOnDisk;
}
[[nodiscard]] constexpr StormState EncodedBit(Tier tier) {
  return tier == Tier::kHost ? kHostEncoded : kDiskEncoded;
}

// What a block adds to the sums of an answer about many; which sums is the verb's.
using StormCounts = std::array<int32_t, 6>;
// How a verb may end for a block: what it is then, and what the answer says of it.
struct StormOutcome {
  StormState next = 0;
  int answer = 0;  // a BlockStatus; of Lookup the tiers
  StormCounts counts = {};
  friend auto operator<=>(const StormOutcome&, const StormOutcome&) = default;
};
using StormOutcomes = std::vector<StormOutcome>;

struct StormAround;
using StormLaw = std::function<StormOutcomes(StormState, const StormAround&)>;

// What decides beside the state.
struct StormAround {
  bool held = false;           // an engine has a lease on it for certain
  bool pressure = false;       // something may be evicted
  bool may_promote = false;    // somebody asked for it in HOST, and did not wait
  bool prefetch_over = false;  // its deadline has passed, or may have
  bool recoded = false;  // in HOST, lately: what was on its way to disk then has the other codec
  std::vector<StormLaw> late = {};  // of calls that were cancelled, and may still be at work
};

[[nodiscard]] StormLaw LookupLaw();
[[nodiscard]] StormLaw PutLaw();
// `stream`: by the byte stream, which finds what is in HOST alone.
[[nodiscard]] StormLaw GetLaw(bool stream);
[[nodiscard]] StormLaw PinLaw(uint32_t owner, Tier tier);
[[nodiscard]] StormLaw UnpinLaw(uint32_t owner, Tier tier);  // sums: unpinned
[[nodiscard]] StormLaw UnpinAllLaw(uint32_t owner);          // sums: unpinned
[[nodiscard]] StormLaw PrefetchLaw();
struct StormClear {
  StormState copies = 0;
  bool pinned = false, dry_run = false;
};
// Sums: host, disk, kept_pinned, kept_in_use, pins_ended.
[[nodiscard]] StormLaw ClearLaw(const StormClear& clear);
// Sums: blocks, moved, missing, no_room, kept_pinned, kept_in_use.
[[nodiscard]] StormLaw MoveLaw(Tier from, Tier to, bool copy);
// Sums: blocks, changed, unchanged, missing, kept_in_use, no_room.
[[nodiscard]] StormLaw CompressLaw(StormState copies, bool encode, bool dry_run);

class Possible {
 public:
  Possible() { states_.set(0); }  // it is nowhere, and nobody pins it
  // What goes on by itself may have gone on; and a call that its caller did not wait for.
  void LetTimePass(const StormAround& around);
  // The daemon has died: what was not durable may be lost, and prefetches are.  `ghost`: the disk
  // may have a copy that has left it, as no Clear promised that it is gone.
  // REQUIRES: time has passed.
  void Crash(bool ghost);
  [[nodiscard]] std::vector<StormState> States() const;
  void Set(const std::vector<StormState>& states);
  [[nodiscard]] bool Always(const std::function<bool(StormState)>& holds) const;
  [[nodiscard]] bool Ever(const std::function<bool(StormState)>& holds) const {
    return !Always([&](StormState state) { return !holds(state); });
  }

 private:
  std::bitset<kStates> states_;
};

}  // namespace larder::e2e
