#include "storage/replay/request_trace.h"

#include "absl/container/flat_hash_set.h"

namespace larder::replay {

size_t Footprint(const RequestTrace& trace) {
  absl::flat_hash_set<BlockId> blocks;
  for (const TracedRequest& request : trace.requests)
    blocks.insert(request.blocks.begin(), request.blocks.end());
  return blocks.size();
}

}  // namespace larder::replay
