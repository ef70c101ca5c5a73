// Words for people: wrapped to a width, tables no wider than it, quantities that are easy to read,
// names that a slip was probably meant for.
//
// What comes from elsewhere (names of engines, messages) may hold anything: Printable makes it
// ASCII without control characters, so a byte is a column.  A width of 0 has no end.
// Thread-safety: pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/types.h"

namespace larder::cli {

[[nodiscard]] std::string Printable(std::string_view text);

// Words of `text` in lines of `width`, each but the first after `indent` blanks, the first after
// `first`; ends with a new line.  Blank lines separate paragraphs.  A word that is longer than a
// line is cut where the line ends.
[[nodiscard]] std::string Wrap(std::string_view text, size_t width, size_t indent = 0,
                               std::string_view first = "");

[[nodiscard]] std::string FormatBytes(double bytes);               // "1.5 GiB"
[[nodiscard]] std::string FormatCount(uint64_t count);             // "12,345"
[[nodiscard]] std::string FormatSeconds(double seconds);           // "3 min 5 s", "12 ms"
[[nodiscard]] std::string FormatShare(double part, double whole);  // "12.3 %", "-" of nothing

// "30s", "500ms", "2min", "1h"; more than 0.
[[nodiscard]] absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text);
// "8GiB", "64MiB", "4096".
[[nodiscard]] absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// The nearest of `names` by changed, missing, added and swapped letters; empty: none is near.
[[nodiscard]] std::string_view NearestName(std::string_view name,
                                           std::span<const std::string_view> names);

}  // namespace larder::cli
