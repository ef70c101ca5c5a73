// Byte fuzz of the reader of traces: a trace that it accepts keeps to request_trace.h.
#include <string_view>
#include <unordered_set>

#include "storage/check.h"
#include "storage/replay/trace_files.h"
#include "tests/fuzz/byte_fuzz.h"

namespace larder {

std::vector<std::string> FuzzSeeds() {
  return {
      "# block_tokens 16\n0.5 1 2 3\n1 1 2 4\n",
      "{\"timestamp\": 0, \"hash_ids\": [0, 1]}\n{\"timestamp\": 30, \"hash_ids\": [0, 2]}\n",
      "{\"chat_id\": 1, \"timestamp\": 0.5, \"hash_ids\": [7, 7]}\n",
      "{\"block_size\": 64, \"hash_id_scope\": \"local\", \"requests\": [{\"t\": 1, \"hash_ids\": "
      "[1]},"
      "{\"requests\": [{\"t\": 2, \"hash_ids\": [1, 2]}]}]}\n",
  };
}

}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto trace = larder::replay::ParseTrace(text, "fuzz");
  if (!trace.ok()) return 0;
  LARDER_CHECK(!trace->requests.empty());
  double last_s = 0;
  for (const larder::replay::TracedRequest& request : trace->requests) {
    LARDER_CHECK(request.at_s >= last_s && request.at_s < 4294967296.0);
    last_s = request.at_s;
    const std::unordered_set<uint64_t> distinct(request.blocks.begin(), request.blocks.end());
    LARDER_CHECK(!request.blocks.empty() && distinct.size() == request.blocks.size());
  }
  return 0;
}
