#include "storage/index/block_state.h"

#include <array>

#include "storage/types.h"

namespace larder {
namespace {

constexpr uint8_t Bit(BlockState state) {
  return static_cast<uint8_t>(1u << static_cast<int>(state));
}

// By `from`: the states that may follow.
constexpr std::array<uint8_t, kBlockStates> kNext = {
    /* absent    */ Bit(BlockState::kReserved) | Bit(BlockState::kHost) | Bit(BlockState::kDisk),
    /* reserved  */ Bit(BlockState::kHost) | Bit(BlockState::kAbsent),
    /* host      */ Bit(BlockState::kHostDisk) | Bit(BlockState::kAbsent) |
        Bit(BlockState::kDoomed),
    /* host+disk */ Bit(BlockState::kDisk) | Bit(BlockState::kHost) | Bit(BlockState::kAbsent) |
        Bit(BlockState::kDoomed),
    /* disk      */ Bit(BlockState::kPromoting) | Bit(BlockState::kAbsent) |
        Bit(BlockState::kDoomed),
    /* promoting */ Bit(BlockState::kHostDisk) | Bit(BlockState::kDisk) | Bit(BlockState::kAbsent) |
        Bit(BlockState::kDoomed),
    /* doomed    */ Bit(BlockState::kAbsent),
};

}  // namespace

bool TransitionAllowed(BlockState from, BlockState to) {
  return (kNext[static_cast<size_t>(from)] & Bit(to)) != 0;
}

TierSet TiersOf(BlockState state) {
  switch (state) {
    case BlockState::kHost:
      return TierBit(Tier::kHost);
    case BlockState::kHostDisk:
      return TierBit(Tier::kHost) | TierBit(Tier::kDisk);
    case BlockState::kDisk:
    case BlockState::kPromoting:
      return TierBit(Tier::kDisk);
    case BlockState::kAbsent:
    case BlockState::kReserved:
    case BlockState::kDoomed:
      return 0;
  }
  return 0;
}

}  // namespace larder
