// The values in the signatures of BlockIndex and of its shards.
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

// A block that the disk tier found on disk when the daemon started.
struct BlockOnDisk {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Digest parent;  // counts this child if it is in the index already (BlockIndex::CountChildren)
  uint64_t location = 0;
  uint32_t pages = 0;
};

// Which blocks Hold may return.  kHost: blocks in HOST.  kAnyTier: blocks in any tier.  kUntouched:
// blocks in any tier, held by a thread of the daemon; such a hold is not a use of the block, so the
// block keeps its place in the order of eviction.
enum class HoldWhat : uint8_t { kHost, kAnyTier, kUntouched };

// An entry has at most kHoldsMax holds.  Clients may add holds only up to kClientHoldsMax, so that
// the daemon's own threads, whose holds are short, can always add one: with any clients, a block
// can be spilled, verified and cleared.  If a block has more than kCrowdedHolds, the caller must
// make sure that no single client takes all remaining ones (BlockStore::Acquire).
inline constexpr uint16_t kHoldsMax = 65'535, kClientHoldsMax = 60'000, kCrowdedHolds = 16'384;

struct HeldBlock {
  EntryRef ref;  // value 0: the block was not found, or `full`
  BlockState state = BlockState::kAbsent;
  bool full = false;      // the block was found, but already has the most holds that it may have
  bool crowded = false;   // with this hold it has more than kCrowdedHolds
  bool repeated = false;  // set by BlockStore::Acquire: an earlier key names the same block
  Extent extent;          // if the block is not in HOST, only the number of pages is valid
  const BlockMetadata* metadata = nullptr;  // valid while held; null if the block is not in HOST
  uint64_t disk_location = 0;
};

// A record in the disk tier whose block has left that tier: the caller must erase it there.
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
  uint32_t pages = 0;  // of its extent, in any tier
  friend bool operator==(const BlockPresence&, const BlockPresence&) = default;
};

struct EvictedBlock {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Extent extent;
  bool kept_on_disk = false;  // the block has left HOST, but not the index
  // The record that must be erased in the disk tier; 0: the block has none, keeps it, or is held.
  uint64_t disk_location = 0;
  // The block's metadata and last use before the eviction, for BlockIndex::PutBack; may be null.
  std::unique_ptr<const BlockMetadata> metadata = nullptr;
  uint32_t last_use_s = 0;
};

enum class ClearHow : uint8_t {
  kAll,           // clears a block in the given tiers, even its last copy
  kKeepLastCopy,  // clears only a block that stays in another tier, decided when it is cleared
  kDryRun,        // only returns what kAll would do
};

// What Clear did to a block, or would do.
struct ClearedBlock {
  enum class Status : uint8_t {
    kCleared,
    // The block is in none of the tiers of the call, or it is in no other tier and kKeepLastCopy
    // keeps it.
    kMissing,
    kPinned,
    kInUse,  // the block is held and was to stay in another tier, or it has kHoldsMax holds
  };
  Status status = Status::kMissing;
  TierSet tiers = 0;    // the tiers of the call that the block was in
  bool leased = false;  // the block left the index, but its bytes stay until the last hold ends
  uint32_t pages = 0;
  // If a leased block is on disk: its location, and (not in a dry run) one more hold, which the
  // caller must end; until then no other record takes the extent on disk.
  uint64_t leased_location = 0;
  EntryRef held = {};
};

// A block's place in its chain: the IndexHash of its name (`name`) and of its parent's name
// (`parent`), with other values from the block's metadata.
struct ChainLink {
  uint64_t name = 0, parent = 0;  // parent 0: unknown
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Digest content;              // Digest{} for a block that is on disk only
  uint64_t disk_location = 0;  // only for a block that is on disk only
  BlockWriter writer = {};     // unknown for a block that is on disk only
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
