// Text for people: words wrapped to a width, quantities that are easy to read, and the name that a
// user probably meant by a misspelled one.  Also text for Abseil, as its own type of view.
//
// Text from other processes (names of engines, messages) may contain any bytes; Printable makes it
// ASCII without control characters, so that each byte is one column.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace larder {

// Returns `text` as Abseil's type, which in Debian's Abseil is not std::string_view.
[[nodiscard]] inline absl::string_view AbslView(std::string_view text) {
  return {text.data(), text.size()};
}

// Returns `text` with \xNN, in hexadecimal, for each byte that is not a printable ASCII character.
[[nodiscard]] std::string Printable(std::string_view text);

// Breaks `text` between words into lines of `width` columns, where each byte is one column; a
// `width` of 0 means no limit.  The first line begins with `first`, and `indent` blanks precede the
// words of the other lines.  The result ends with a newline.  Blank lines separate paragraphs.  A
// word that does not fit into its line may be cut, unless `indent` is `width` or more.
[[nodiscard]] std::string Wrap(std::string_view text, size_t width, size_t indent = 0,
                               std::string_view first = "");

[[nodiscard]] std::string FormatBytes(double bytes);               // "1.5 GiB"
[[nodiscard]] std::string FormatCount(uint64_t count);             // "12,345"
[[nodiscard]] std::string FormatSeconds(double seconds);           // "12 ms"; "-" unless 0 to 1e9
[[nodiscard]] std::string FormatShare(double part, double whole);  // "12.3 %"; "-" if whole <= 0

// Returns the name in `names` that differs from `name` by the fewest changed, missing, added and
// swapped adjacent letters, at most a third of the length of `name`.  If there is none and `name`
// has at least 2 letters, returns the first of `names` that begins with `name`.  Returns an empty
// view if there is none either, or if `name` is longer than 64 bytes.
[[nodiscard]] std::string_view NearestName(std::string_view name,
                                           std::span<const std::string_view> names);

}  // namespace larder
