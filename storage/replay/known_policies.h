// Eviction policies that are known from elsewhere, to compare ours with.
//
// `blocks`: how many blocks the cache holds, at least 1.
// Thread-safety: functions without state.
#pragma once

#include <memory>

#include "storage/replay/replay_cache.h"

namespace larder::replay {

// In which order the blocks of one request are used: engines that free tails first use the head
// last, so that the tail is evicted first.
enum class UseOrder { kHeadFirst, kTailFirst };

// Evicts the block whose last use is longest ago.
[[nodiscard]] std::unique_ptr<ReplayCache> MakeLru(size_t blocks, UseOrder order);
// Adapts between recency and frequency (Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead
// Replacement Cache", FAST 2003).
[[nodiscard]] std::unique_ptr<ReplayCache> MakeArc(size_t blocks, UseOrder order);
// Three queues; most blocks that are used once leave by the small one (Yang et al., "FIFO queues
// are all you need for cache eviction", SOSP 2023).
[[nodiscard]] std::unique_ptr<ReplayCache> MakeS3Fifo(size_t blocks, UseOrder order);
// Evicts the block whose next use is latest, tails first, which may be a block of the request
// itself.  No block is used sooner than those before it in its prompt, so no cache of this
// size finds more.  `trace` is what will be replayed.
[[nodiscard]] std::unique_ptr<ReplayCache> MakeClairvoyant(size_t blocks,
                                                           const RequestTrace& trace);

}  // namespace larder::replay
