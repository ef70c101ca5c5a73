// States of a block and the law of their transitions; the small numbers by which the index names
// things.
//
// Values only: no ownership, no threads.
#pragma once

#include <cstdint>

#include "storage/types.h"

namespace larder {

// TransitionAllowed is the law; the index CHECKs it at every change and a test walks every pair.
//   absent    -> reserved   a staged publish claims the key while the daemon copies
//             -> host       mapped publish
//             -> disk       found by a rebuild from disk
//   reserved  -> host, absent
//   host      -> host+disk  spilled
//             -> absent     evicted, cleared, damaged
//             -> doomed     the same while held
//   host+disk -> disk       evicted from HOST
//             -> host       its disk copy went
//             -> absent, doomed
//   disk      -> promoting  somebody reads it into HOST
//             -> absent, doomed
//   promoting -> host+disk
//             -> disk       the read failed
//             -> absent, doomed
//   doomed    -> absent     last hold ended; a doomed entry has no name and no reader finds it
// A name that is on disk alone is taken: no publish leads out of `disk`, since its bytes might be
// others than the record's.  A promotion alone brings such a block back to HOST.
enum class BlockState : uint8_t {
  kAbsent,
  kReserved,
  kHost,
  kHostDisk,
  kDisk,
  kPromoting,
  kDoomed
};
inline constexpr int kBlockStates = 7;

[[nodiscard]] bool TransitionAllowed(BlockState from, BlockState to);

// Whether readers may have its bytes from the pool.
[[nodiscard]] constexpr bool InHost(BlockState state) {
  return state == BlockState::kHost || state == BlockState::kHostDisk;
}
// Whether its bytes are on disk and nowhere else that readers may have them.
[[nodiscard]] constexpr bool OnDiskAlone(BlockState state) {
  return state == BlockState::kDisk || state == BlockState::kPromoting;
}
[[nodiscard]] constexpr bool InATier(BlockState state) {
  return InHost(state) || OnDiskAlone(state);
}
// Tiers that hold whole bytes of it.
[[nodiscard]] TierSet TiersOf(BlockState state);

// A tenant's number for a variant id.
enum class VariantIndex : uint16_t { kNone = 0xFFFF };

// Names an entry: {shard, slot} + 1, so never 0.  Good while the entry is held or claimed.  As
// owner word in ExtentAllocator it may be stale: then the slot is empty (the index says so) or has
// a newer block, which the extent in the answer shows.
struct EntryRef {
  uint32_t value = 0;
  friend bool operator==(EntryRef, EntryRef) = default;
};

}  // namespace larder
