#include "server/config/default_config.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/config/config_options.h"
#include "storage/text.h"

namespace larder {
namespace {

// The head of the file: how to use the file, and how to write the values of the most frequent
// kinds.
constexpr const char* kFileIntro =
    R"(# Configuration of larderd.  Printed by `larderd --print-default-config`.
#
# Every option is here with its default, commented out: remove the # before it
# to set it.  `larderd --config FILE --check-config` checks this file, and
# `--print-config` prints the effective values with their origins.  larderd
# reads the file only when it starts.  Flags (--pool 8GiB) and the environment
# (LARDER_POOL=8GiB) override it.
#
#   SIZE       "8GiB", "64MiB", "8GB" (10^9) or bytes
#   DURATION   "30s", "500ms", "2min", "1h"
#   SHARE      "0.25" or "25%"
#   COUNT      a number
#   BOOL       true or false
#
# The unit larderd.service lets the daemon write below /var/lib/larder, which is
# the place for `disk`; another directory needs ReadWritePaths= (systemctl edit
# larderd).
)";

// The file shows this path as the default of socket_dir, as it is under larderd.service.  In other
// cases the default may differ.
constexpr std::string_view kSocketDir = "/run/larder";

// Returns the text as comment lines of at most 80 columns.
std::string Comment(const std::string& text) {
  constexpr size_t kColumns = 80;
  std::string out;
  for (const absl::string_view line :
       absl::StrSplit(Wrap(text, kColumns - 2, 0, ""), '\n', absl::SkipEmpty()))
    absl::StrAppend(&out, "# ", line, "\n");
  return out;
}

std::string OptionInFile(const ConfigOption& option) {
  const absl::string_view text =
      AbslView(option.name == "socket_dir" ? kSocketDir : option.default_value);
  const absl::string_view quote = option.quoted ? "\"" : "";
  return absl::StrCat("\n",
                      Comment(absl::StrCat(AbslView(option.value), ". ", AbslView(option.help))),
                      "#", AbslView(option.name), " = ", quote, text, quote, "\n");
}

}  // namespace

std::string DefaultConfig() {
  std::string out = kFileIntro;
  std::string_view group;
  for (const ConfigOption& option : ConfigOptions()) {
    if (option.group != group) {
      group = option.group;
      absl::StrAppend(&out, "\n# ---- ", AbslView(group), "\n");
    }
    out += OptionInFile(option);
  }
  return out;
}

}  // namespace larder
