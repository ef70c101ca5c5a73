// A cache that a trace is replayed against: which blocks it keeps of those that requests use.
//
// It has names alone and no bytes; all blocks are equally large.
// Thread-safety: none.
#pragma once

#include <cstddef>

#include "storage/replay/request_trace.h"

namespace larder::replay {

class ReplayCache {
 public:
  virtual ~ReplayCache() = default;
  // Returns how many blocks of the request the cache had, from the beginning on without a gap.
  // Then the cache stores all blocks of the request, as far as its capacity allows.
  // REQUIRES: requests come in the order of the trace.
  [[nodiscard]] virtual size_t Request(const TracedRequest& request) = 0;
};

}  // namespace larder::replay
