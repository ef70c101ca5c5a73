// The model of one block: the states that all answers so far allow, and a law for each verb.
//
// A state is what a caller can distinguish by the contract: the tiers that have the block, the
// codec of each copy, and the owners whose pins its name has.  The actions that the daemon takes by
// itself (spilling, promoting pinned blocks, evicting) cannot be predicted, so the model keeps the
// set of all possible states.  An answer leaves the states from which the verb's law gives this
// answer; if none is left, the answer is wrong.  A law is therefore as strict as the contract:
// Lookup leaves one set of tiers, and a Clear of a pinned block only KEPT.  The model does not
// check that the daemon takes the actions that it may take, except for pinned blocks, for which the
// test waits.  Values and pure functions: no threads, no clock.
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

// What a block adds to the sums of an answer about many blocks.  The verb defines the sums.
using StormCounts = std::array<int32_t, 6>;
// A possible outcome of a verb for a block: its next state and its part of the answer.
struct StormOutcome {
  StormState next = 0;
  int answer = 0;  // a BlockStatus; for Lookup the tiers
  StormCounts counts = {};
  friend auto operator<=>(const StormOutcome&, const StormOutcome&) = default;
};
using StormOutcomes = std::vector<StormOutcome>;

struct StormAround;
using StormLaw = std::function<StormOutcomes(StormState, const StormAround&)>;

// The circumstances that also decide the outcomes.
struct StormAround {
  bool held = false;           // a lease certainly holds the block
  bool pressure = false;       // blocks may be evicted
  bool may_promote = false;    // a caller asked for it in HOST and did not wait
  bool prefetch_over = false;  // the deadline of its prefetches has passed, or may have
  bool recoded = false;  // lately, in HOST: a copy being written to disk may have the other codec
  std::vector<StormLaw> late = {};  // calls that were cancelled and may still be at work
};

[[nodiscard]] StormLaw LookupLaw();
[[nodiscard]] StormLaw PutLaw();
// `stream`: a get by byte stream, which finds only blocks in HOST.
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
  Possible() { states_.set(0); }  // in no tier and not pinned
  // Adds the states that follow from actions that the daemon may have taken by itself, and from
  // calls that were cancelled.
  void LetTimePass(const StormAround& around);
  // The daemon has been killed: blocks that were not durable may be lost, and prefetches are lost.
  // `ghost`: the disk may still have a copy that had left it, as no Clear confirmed its removal.
  // REQUIRES: LetTimePass was called.
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
