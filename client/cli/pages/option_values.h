// Parses the values of larderctl's options.  Errors are InvalidArgument and say what to write.
//
// Thread-safety: pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace larder::cli {

// Parses a duration such as "30s", "500ms", "2min" or "1h".  Less than 1 ms counts as 1 ms.
// Returns InvalidArgument unless the duration is above 0 and at most 365 days.
[[nodiscard]] absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text);
// Parses a size such as "8GiB", "64MiB" or "4096" (bytes).  Returns InvalidArgument unless the
// number is whole and the size is from 1 byte to 4 EiB.
[[nodiscard]] absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

}  // namespace larder::cli
