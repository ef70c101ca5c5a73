// The states of a block and the allowed transitions, and the small numbers by which the index
// refers to variants and entries.
//
// Values only: no ownership, no threads.
#pragma once

#include <cstdint>

#include "storage/types.h"

namespace larder {

// TransitionAllowed defines the allowed transitions.  The index CHECKs it at every change, and a
// test covers every pair of states.  In this table "dropped" includes cleared and damaged.
//   absent    -> reserved   a staged publish claims the key while the daemon copies
//             -> host       published without a claim, or put back after an eviction: the bytes are
//                           in the pool already
//             -> disk       found on disk, or kept there when its damaged copy in HOST was dropped
//   reserved  -> host, absent
//   host      -> host+disk  spilled, or its record was found on disk
//             -> absent     evicted or dropped
//             -> doomed     dropped while held
//   host+disk -> disk       evicted or cleared from HOST
//             -> host       its disk copy was evicted or cleared
//             -> absent, doomed
//   disk      -> promoting  a thread puts it in HOST, or rewrites its disk copy
//             -> absent, doomed
//   promoting -> host+disk
//             -> disk       promotion failed, or rewrite ended
//             -> absent, doomed
//   doomed    -> absent     the last hold ended; a doomed entry has no name, so no lookup finds it
// A publish does not lead out of `disk`: the name of a block that is on disk only is taken, since
// the published bytes might differ from the record's.  Such a block enters HOST only through
// `promoting`.
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

// Whether a block in this state is in HOST.
[[nodiscard]] constexpr bool InHost(BlockState state) {
  return state == BlockState::kHost || state == BlockState::kHostDisk;
}
// Whether a block in this state is on disk and not in HOST.
[[nodiscard]] constexpr bool OnDiskAlone(BlockState state) {
  return state == BlockState::kDisk || state == BlockState::kPromoting;
}
[[nodiscard]] constexpr bool InATier(BlockState state) {
  return InHost(state) || OnDiskAlone(state);
}
// Returns the tiers, of HOST and DISK, that have all bytes of a block in this state; none for
// absent, reserved and doomed.
[[nodiscard]] TierSet TiersOf(BlockState state);

// A tenant's number for a variant id.
enum class VariantIndex : uint16_t { kNone = 0xFFFF };

// Refers to an entry of a BlockIndex: {shard, slot} + 1, so that 0 refers to none.  Valid while the
// entry is held or claimed.  The owner words of extents (ExtentAllocator) are EntryRefs without a
// hold and may be stale: the slot may have become empty, or have another block.
struct EntryRef {
  uint32_t value = 0;
  friend bool operator==(EntryRef, EntryRef) = default;
};

}  // namespace larder
