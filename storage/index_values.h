// What the index takes and gives: the values in the signatures of BlockIndex and of its shards.
//
// Values only; BlockIndex documents them where it uses them.
#pragma once

#include <cstdint>
#include <memory>

#include "storage/block_metadata.h"
#include "storage/block_state.h"
#include "storage/types.h"

namespace larder {

struct IndexedBlock {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Extent extent;  // may be empty: an entry without bytes (benches, tests)
  std::unique_ptr<const BlockMetadata> metadata;  // may be null; its parent() counts this child
};

// As a tier found it at a start.
struct BlockOnDisk {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Digest parent;  // counts this child, if it is there already (BlockIndex::CountChildren)
  uint64_t location = 0;
  uint32_t pages = 0;
};

// What Hold may answer with.  Untouched: of any tier, by the house itself; that is no use of the
// block, so it keeps its place among those that may leave.
enum class HoldWhat : uint8_t { kHost, kAnyTier, kUntouched };

struct HeldBlock {
  EntryRef ref;  // value 0: not there, or full
  BlockState state = BlockState::kAbsent;
  bool full = false;  // there, but 65,535 holds already
  Extent extent;      // not in HOST: of its pages only their number means something
  const BlockMetadata* metadata = nullptr;  // valid while held; null when not in HOST
  uint64_t disk_location = 0;
};

// Room in the disk tier that a block has left: to be erased there.
struct DiskRoom {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  uint64_t location = 0;  // 0: none
};

struct EvictedFromDisk {
  DiskRoom room;
  uint32_t pages = 0;  // of the block
};

struct BlockPresence {
  uint8_t tiers = 0;   // bit (1 << Tier)
  uint32_t pages = 0;  // of its extent, in whatever tier
  friend bool operator==(const BlockPresence&, const BlockPresence&) = default;
};

struct EvictedBlock {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Extent extent;
  bool kept_on_disk = false;   // it has left HOST, not the index
  uint64_t disk_location = 0;  // to be erased in the disk tier; 0: none, or kept, or held still
};

struct BlockView {
  Digest digest;
  VariantIndex variant = VariantIndex::kNone;
  BlockState state = BlockState::kAbsent;
  Extent extent;
  uint16_t holds = 0, children = 0;
  bool pinned_host = false, pinned_disk = false;
  bool counted_in_parent = false;
  uint64_t disk_location = 0;
};

}  // namespace larder
