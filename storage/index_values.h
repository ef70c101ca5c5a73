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

struct HeldBlock {
  EntryRef ref;  // value 0: not there, or full
  BlockState state = BlockState::kAbsent;
  bool full = false;  // there, but 65,535 holds already
  Extent extent;
  const BlockMetadata* metadata = nullptr;  // valid while held
};

struct BlockPresence {
  uint8_t tiers = 0;   // bit (1 << Tier)
  uint32_t pages = 0;  // of the extent in HOST
  friend bool operator==(const BlockPresence&, const BlockPresence&) = default;
};

struct EvictedBlock {
  VariantIndex variant = VariantIndex::kNone;
  Digest digest;
  Extent extent;
  bool kept_on_disk = false;
};

struct BlockView {
  Digest digest;
  VariantIndex variant = VariantIndex::kNone;
  BlockState state = BlockState::kAbsent;
  Extent extent;
  uint16_t holds = 0, pins = 0, children = 0;
};

}  // namespace larder
