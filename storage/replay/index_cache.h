// A cache that evicts as Larder does: a BlockIndex without bytes.
//
// Thread-safety: functions without state.
#pragma once

#include <memory>

#include "storage/replay/replay_cache.h"
#include "storage/types.h"

namespace larder::replay {

// The cache is the index's HOST tier; or its DISK tier, beside a HOST that has only the blocks of
// the current request.  `blocks`: how many blocks it holds, at least 1.
[[nodiscard]] std::unique_ptr<ReplayCache> MakeIndexCache(size_t blocks, Tier tier);

}  // namespace larder::replay
