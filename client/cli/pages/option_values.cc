#include "client/cli/pages/option_values.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "storage/text.h"

namespace larder::cli {

absl::StatusOr<std::chrono::milliseconds> ParseDuration(std::string_view text) {
  std::string go(text);
  if (go.ends_with("min")) go.resize(go.size() - 2);
  absl::Duration parsed;
  const bool ok = absl::ParseDuration(go, &parsed) && parsed > absl::ZeroDuration() &&
                  parsed <= absl::Hours(24 * 365) && go != "0";
  if (!ok) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(text), "\" is not a duration: write 500ms, 30s, 2min or 1h"));
  }
  return std::max(std::chrono::milliseconds(1), absl::ToChronoMilliseconds(parsed));
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, uint64_t>, 4> kUnits = {
      {{"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30}, {"TiB", 1ull << 40}}};
  std::string_view number = text;
  uint64_t unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (!text.ends_with(name)) continue;
    number.remove_suffix(name.size());
    unit = bytes;
  }
  uint64_t count = 0;
  if (!absl::SimpleAtoi(AbslView(number), &count) || count == 0 || count > (1ull << 62) / unit) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", Printable(text), "\" is not a size: write 64MiB, 8GiB or 4096"));
  }
  return count * unit;
}

}  // namespace larder::cli
