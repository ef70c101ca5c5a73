// What the index takes and gives: the values in the signatures of BlockIndex and of its shards.
//
// Values only; BlockIndex documents them where it uses them.
#pragma once

#include <cstdint>
#include <memory>

#include "storage/index/block_metadata.h"
#include "storage/index/block_state.h"
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

// Holds of an entry.  Those of clients end early enough that the house's own, each of them short,
// always find room: whatever clients do, a block can be spilled, verified and cleared.  Beyond
// kCrowdedHolds a caller sees to it that no single client takes the rest (BlockStore::Acquire).
inline constexpr uint16_t kHoldsMax = 65'535, kClientHoldsMax = 60'000, kCrowdedHolds = 16'384;

struct HeldBlock {
  EntryRef ref;  // value 0: not there, or full
  BlockState state = BlockState::kAbsent;
  bool full = false;      // there, but it has as many holds as it may have
  bool crowded = false;   // with this one it has more than kCrowdedHolds
  bool repeated = false;  // of BlockStore::Acquire: an earlier key of the call is the same block
  Extent extent;          // not in HOST: of its pages only their number means something
  const BlockMetadata* metadata = nullptr;  // valid while held; null when not in HOST
  uint64_t disk_location = 0;
};

// Room in the disk tier that a block has left: to be erased there.
struct FreedExtent {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  uint64_t location = 0;  // 0: none
};

struct EvictedFromDisk {
  FreedExtent on_disk;
  uint32_t pages = 0;  // of the block
};

struct BlockPresence {
  TierSet tiers = 0;
  uint32_t pages = 0;  // of its extent, in whatever tier
  friend bool operator==(const BlockPresence&, const BlockPresence&) = default;
};

struct EvictedBlock {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Extent extent;
  bool kept_on_disk = false;   // it has left HOST, not the index
  uint64_t disk_location = 0;  // to be erased in the disk tier; 0: none, or kept, or held still
  // As it was, for BlockIndex::PutBack; may be null.
  std::unique_ptr<const BlockMetadata> metadata = nullptr;
  uint32_t last_use_s = 0;
};

enum class ClearHow : uint8_t {
  kAll,           // whatever tiers it is in
  kKeepLastCopy,  // only a block that stays in another tier, decided when it is cleared
  kDryRun,        // only says what kAll would do
};

// What Clear did to a block, or would do.
struct ClearedBlock {
  enum class Status : uint8_t {
    kCleared,
    kMissing,  // of these tiers, it is in none
    kPinned,
    kInUse,  // held, and it was to stay in another tier
  };
  Status status = Status::kMissing;
  TierSet tiers = 0;    // that it leaves
  bool leased = false;  // it leaves the index, and its bytes follow with the last hold
  uint32_t pages = 0;
  // Of a leased one that is on disk: where, and one more hold, which is the caller's to end: until
  // then its room there is no other's.
  uint64_t leased_location = 0;
  EntryRef held = {};
};

// A block's place in its chain, by IndexHash of its name and its parent's; and what else its
// metadata says of it.
struct ChainLink {
  uint64_t name = 0, parent = 0;  // parent 0: unknown
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Digest content;              // as its metadata says; of one on disk alone: Digest{}
  uint64_t disk_location = 0;  // of one on disk alone
  BlockWriter writer = {};     // likewise unknown of one on disk alone
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
