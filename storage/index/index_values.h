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
  // May be null; the block's parent is then unknown.
  std::unique_ptr<const BlockMetadata> metadata;
};

// A block that an earlier run of the daemon left on disk.
struct BlockOnDisk {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Digest parent;  // need not be in the index
  uint64_t location = 0;
  uint32_t pages = 0;  // that the block needs in HOST
};

// Which blocks BlockIndex::Hold may hold.  kHost: blocks in HOST.  kAnyTier: blocks in HOST or on
// disk.  kUntouched: as kAnyTier, for a thread of the daemon: the hold does not count as a use, and
// is not refused at kClientHoldsMax.
enum class HoldWhat : uint8_t { kHost, kAnyTier, kUntouched };

// An entry has at most kHoldsMax holds, and a hold for a client is refused at kClientHoldsMax.  The
// holds in between are left to threads of the daemon (HoldWhat::kUntouched).  A hold with which a
// block has more than kCrowdedHolds is marked HeldBlock::crowded, so that the caller can keep one
// client from taking all remaining holds (BlockStore::Acquire).
inline constexpr uint16_t kHoldsMax = 65'535, kClientHoldsMax = 60'000, kCrowdedHolds = 16'384;

struct HeldBlock {
  EntryRef ref;  // value 0: the block is not held
  BlockState state = BlockState::kAbsent;
  // The block was found but is not held: it has too many holds, or BlockStore::Acquire refused it.
  bool full = false;
  bool crowded = false;   // with this hold the block has more than kCrowdedHolds
  bool repeated = false;  // set by BlockStore::Acquire: held for an earlier key of the call
  Extent extent;          // of a block that is on disk only, just the number of pages is valid
  // May be null, as for a block on disk only.  Valid while held, except after ReplaceInHost.
  const BlockMetadata* metadata = nullptr;
  uint64_t disk_location = 0;
};

// A record in the disk tier that no block uses any more: the caller must erase it there.
struct FreedExtent {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  uint64_t location = 0;  // 0: none
};

struct EvictedFromDisk {
  FreedExtent on_disk;
  uint32_t pages = 0;  // that the block has in HOST or would need there
};

struct BlockPresence {
  TierSet tiers = 0;
  uint32_t pages = 0;  // that the block has in HOST or would need there
  friend bool operator==(const BlockPresence&, const BlockPresence&) = default;
};

struct EvictedBlock {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Extent extent;
  bool kept_on_disk = false;  // the block has left HOST, but not the index
  // The location of the record that the caller must erase in the disk tier; 0 if there is none.
  uint64_t disk_location = 0;
  // The block's metadata and last use before the eviction, for BlockIndex::PutBack.  The metadata
  // may be null.
  std::unique_ptr<const BlockMetadata> metadata = nullptr;
  uint32_t last_use_s = 0;
};

enum class ClearHow : uint8_t {
  kAll,           // clears a block in the given tiers, even its last copy
  kKeepLastCopy,  // clears only a block that, when it is cleared, is also in another tier
  kDryRun,        // only returns what kAll would do
};

// What Clear did to a block, or would do.
struct ClearedBlock {
  enum class Status : uint8_t {
    kCleared,
    // The block is in none of the tiers of the call, or the call has kKeepLastCopy and the block is
    // in no other tier.
    kMissing,
    kPinned,  // a pin keeps the block from being cleared
    kInUse,   // the block is held, and would stay in another tier or has kHoldsMax holds
  };
  Status status = Status::kMissing;
  TierSet tiers = 0;    // the tiers of the call that the block was in
  bool leased = false;  // the block left the index while held (or would leave it)
  uint32_t pages = 0;
  // If `leased` and the block was on disk: its location there.  Except in a dry run, Clear then
  // adds one more hold, `held`, which the caller must end; until then the record's space on disk is
  // not used again.
  uint64_t leased_location = 0;
  EntryRef held = {};
};

// A block's place in its chain: the IndexHash of its name (`name`) and of its parent's name
// (`parent`), with other values of the block.
struct ChainLink {
  uint64_t name = 0, parent = 0;  // parent 0: unknown
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Digest content;              // Digest{} if unknown, as for a block that is on disk only
  uint64_t disk_location = 0;  // 0 unless the block is on disk only
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
