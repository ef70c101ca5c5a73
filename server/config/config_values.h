// Text of a configuration value to the value: sizes, durations, shares, modes, uids, addresses.
//
// One reading for flags, environment and file.  Nothing is guessed: a unit that could mean two
// things is an error, and every error says what to write instead.  Errors are InvalidArgument and
// do not name the option; the caller puts that in front.
//
// Thread-safety: pure functions.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/clock.h"
#include "storage/types.h"

namespace larder {

// "8GiB", "1.5GiB", "64MiB", "8GB" (10^9), "4096" (bytes).  Not "8G".  At most 2^62.
[[nodiscard]] absl::StatusOr<ByteCount> ParseSize(std::string_view text);
// The shortest exact text: "8GiB", "1536MiB", "4097".
[[nodiscard]] std::string FormatSize(ByteCount bytes);

// "30s", "1.5s", "500ms", "2min", "1h".  Not "30".  At most a week.
[[nodiscard]] absl::StatusOr<Duration> ParseDuration(std::string_view text);

// "0.25" or "25%"; low <= value <= high.
[[nodiscard]] absl::StatusOr<double> ParseShare(std::string_view text, double low, double high);

// Decimal; low <= value <= high.
[[nodiscard]] absl::StatusOr<uint32_t> ParseCount(std::string_view text, uint32_t low,
                                                  uint32_t high);

// "true" or "false".
[[nodiscard]] absl::StatusOr<bool> ParseBool(std::string_view text);

// Octal permissions of a socket file: "0660", "0o660".  The owner must be able to read and write;
// nobody may execute.
[[nodiscard]] absl::StatusOr<mode_t> ParseSocketMode(std::string_view text);

// Uids between commas; "self" is `self`.  "" is nobody.  Sorted, each once, at most 1,024.
[[nodiscard]] absl::StatusOr<std::vector<uid_t>> ParseUids(std::string_view text, uid_t self);

// "127.0.0.1:9464", "[::1]:9464", "localhost:9464", port 0 for any free one; "" is off.  Any host
// that is not loopback is refused.  Answers what to bind ("localhost" becomes 127.0.0.1).
[[nodiscard]] absl::StatusOr<std::string> ParseLoopbackAddress(std::string_view text);

}  // namespace larder
