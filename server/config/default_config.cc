#include "server/config/default_config.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/config/config_options.h"
#include "storage/text.h"

namespace larder {
namespace {

// What a file says of kinds of values, once for all options.
constexpr const char* kFileIntro =
    R"(# Configuration of larderd.  Made by `larderd --print-default-config`.
#
# Every option is here with its default, behind a #: take the # away and write
# what you want.  `larderd --config FILE --check-config` says whether it is
# good, `--print-config` what counts in the end and where it comes from.  It is
# read at start alone.  Flags (--pool 8GiB) and the environment
# (LARDER_POOL=8GiB) go before this file.
#
#   SIZE       "8GiB", "64MiB", "8GB" (10^9) or bytes
#   DURATION   "30s", "500ms", "2min", "1h"
#   SHARE      "0.25" or "25%"
#   COUNT      a number
#   BOOL       true or false
#
# The unit larderd.service lets it write below /var/lib/larder, which is the
# place for `disk`; another needs ReadWritePaths= (systemctl edit larderd).
)";

// The one option whose default depends on the host; what it is under systemd.
constexpr std::string_view kSocketDir = "/run/larder";

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

// Lines of at most 80 columns, each a comment.
std::string Comment(const std::string& text) {
  constexpr size_t kColumns = 80;
  std::string out;
  for (const absl::string_view line :
       absl::StrSplit(cli::Wrap(text, kColumns - 2, 0, ""), '\n', absl::SkipEmpty()))
    absl::StrAppend(&out, "# ", line, "\n");
  return out;
}

std::string OptionInFile(const ConfigOption& option) {
  const absl::string_view text =
      View(option.name == "socket_dir" ? kSocketDir : option.default_value);
  const absl::string_view quote = option.quoted ? "\"" : "";
  return absl::StrCat("\n", Comment(absl::StrCat(View(option.value), ". ", View(option.help))), "#",
                      View(option.name), " = ", quote, text, quote, "\n");
}

}  // namespace

std::string DefaultConfig() {
  std::string out = kFileIntro;
  std::string_view group;
  for (const ConfigOption& option : ConfigOptions()) {
    if (option.group != group) {
      group = option.group;
      absl::StrAppend(&out, "\n# ---- ", View(group), "\n");
    }
    out += OptionInFile(option);
  }
  return out;
}

}  // namespace larder
