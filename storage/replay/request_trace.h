// A trace: the requests that engines served for a while, each with the blocks of its prompt.
//
// Ownership: values.  Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace larder::replay {

// The name of a block within one trace.  It stands for the block's tokens and for all tokens before
// them: two requests share a prefix exactly as far as their blocks are equal, and a request has no
// block twice.
using BlockId = uint64_t;

struct TracedRequest {
  double at_s = 0;              // since some moment before the first request; below 2^32
  std::vector<BlockId> blocks;  // of the prompt, from its beginning; at least one
};

struct RequestTrace {
  std::vector<TracedRequest> requests;  // at_s never falls
  uint32_t block_tokens = 0;            // 0: unknown
};

// Returns the number of distinct blocks: a cache of so many never evicts.
[[nodiscard]] size_t Footprint(const RequestTrace& trace);

}  // namespace larder::replay
