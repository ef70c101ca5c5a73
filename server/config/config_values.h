// Parses the text of configuration values: sizes, durations, shares, counts, modes, uids,
// addresses.
//
// The values of flags, environment and file are parsed in the same way.  Nothing is guessed: "8G",
// for example, is not a size.  Errors are InvalidArgument and do not name the option; the caller
// prefixes its name.
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

// Accepts sizes such as "8GiB", "1.5GiB", "8GB" (8 * 10^9 bytes) and "4096" (bytes), but not "8G".
// The size must be a whole number of bytes, at most 2^62.
[[nodiscard]] absl::StatusOr<ByteCount> ParseSize(std::string_view text);
// Returns the exact size as text, such as "8GiB", "1536MiB" or "4097".
[[nodiscard]] std::string FormatSize(ByteCount bytes);

// Accepts durations such as "1.5s", "500ms", "2min" and "1h", but not "30".  The maximum is a week.
[[nodiscard]] absl::StatusOr<Duration> ParseDuration(std::string_view text);

// Accepts shares such as "0.25" or "25%", with low <= value <= high.
[[nodiscard]] absl::StatusOr<double> ParseShare(std::string_view text, double low, double high);

// Accepts a decimal number without leading zeros, with low <= value <= high.
[[nodiscard]] absl::StatusOr<uint32_t> ParseCount(std::string_view text, uint32_t low,
                                                  uint32_t high);

// Accepts "true" or "false".
[[nodiscard]] absl::StatusOr<bool> ParseBool(std::string_view text);

// Accepts octal permissions of a socket file, such as "0660" or "0o660".  The owner must be able to
// read and write, and no user may execute.
[[nodiscard]] absl::StatusOr<mode_t> ParseSocketMode(std::string_view text);

// Accepts uids separated by commas, where "self" stands for `self`; "" and "none" are the empty
// list.  The result is sorted, without duplicates, and has at most 1,024 uids.
[[nodiscard]] absl::StatusOr<std::vector<uid_t>> ParseUids(std::string_view text, uid_t self);

// Accepts addresses such as "127.0.0.1:9464", "[::1]:9464" or "localhost:9464"; port 0 stands for
// any free port.  A host that is not loopback is refused.  Returns the address to bind ("localhost"
// becomes 127.0.0.1), or "" for "".
[[nodiscard]] absl::StatusOr<std::string> ParseLoopbackAddress(std::string_view text);

}  // namespace larder
