// Traces in files.  The first line tells the format:
//
//   plain      one request per line: the time in seconds, then the ids of its blocks, separated by
//              spaces.  Lines that begin with # are comments; "# block_tokens N" gives their size.
//   Mooncake   JSON lines {"timestamp": MILLISECONDS, "hash_ids": [..]}, blocks of 512 tokens
//              (github.com/kvcache-ai/Mooncake, FAST25-release/traces)
//   Bailian    JSON lines {"chat_id": .., "timestamp": SECONDS, "hash_ids": [..]}, blocks of 16
//              tokens (github.com/alibaba-edu/qwen-bailian-usagetraces-anon)
//   sessions   one client's session per line, per file *.json, or per such file of a folder:
//              {"block_size": TOKENS, "hash_id_scope": "local", "requests": [{"t": SECONDS,
//              "hash_ids": [..]}, {"requests": [..]}]}, where an inner list has requests of the
//              same session (github.com/callanjfox/kv-cache-tester).  Ids of scope "local", which
//              is the default, are those of one session; those of scope "global" are shared by
//              all.  The sessions begin one after another (ReadOptions::session_every_s).
//
// An id of a file may stand for a block's own tokens alone.  The blocks of a RequestTrace have
// numbers that stand for all tokens before them too.  A request that a file has twice counts twice.
//
// Thread-safety: functions without state.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "storage/replay/request_trace.h"

namespace larder::replay {

struct ReadOptions {
  double session_every_s = 60;  // between the beginnings of two sessions; not below 0
};

// Reads a file, or a folder of sessions.  Returns NotFound or Unavailable if it cannot be read;
// InvalidArgument, with file, line and what was expected there, if it has another format, if its
// lines are not in the order of time, or if it has no request.
[[nodiscard]] absl::StatusOr<RequestTrace> ReadTrace(const std::string& path,
                                                     const ReadOptions& options = {});
// Reads lines; errors name them as NAME:LINE.
[[nodiscard]] absl::StatusOr<RequestTrace> ParseTrace(std::string_view lines,
                                                      const std::string& name,
                                                      const ReadOptions& options = {});

}  // namespace larder::replay
