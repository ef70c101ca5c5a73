#include "server/option_help.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/config_options.h"

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

// Lines of at most 80 columns, each behind `before`.
std::string Wrap(std::string_view text, const std::string& before) {
  constexpr size_t kColumns = 80;
  std::string out;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(View(text), ' ')) {
    if (column == 0 || column + 1 + word.size() > kColumns) {
      absl::StrAppend(&out, column == 0 ? "" : "\n", before, word);
      column = before.size() + word.size();
    } else {
      absl::StrAppend(&out, " ", word);
      column += 1 + word.size();
    }
  }
  return out + "\n";
}

std::string OptionHelp(const ConfigOption& option) {
  std::string sentence(option.help);
  if (!option.default_value.empty()) {
    absl::StrAppend(&sentence, " Default: ", View(option.default_value), ".");
  }
  return absl::StrCat("  ", FlagName(option), " ", View(option.value), "\n",
                      Wrap(sentence, "      "));
}

std::string OptionInFile(const ConfigOption& option) {
  const absl::string_view text =
      View(option.name == "socket_dir" ? kSocketDir : option.default_value);
  const absl::string_view quote = option.quoted ? "\"" : "";
  return absl::StrCat("\n", Wrap(absl::StrCat(View(option.value), ". ", View(option.help)), "# "),
                      "#", View(option.name), " = ", quote, text, quote, "\n");
}

// Every group behind `heading` of it.
template <class Heading, class Render>
std::string Pages(Heading heading, Render render) {
  std::string out;
  std::string_view group;
  for (const ConfigOption& option : ConfigOptions()) {
    if (option.group != group) {
      group = option.group;
      absl::StrAppend(&out, heading(group));
    }
    absl::StrAppend(&out, render(option));
  }
  return out;
}

}  // namespace

std::string OptionsHelp() {
  return Pages([](std::string_view group) { return absl::StrCat("\n", View(group), "\n"); },
               OptionHelp);
}

std::string DefaultConfig() {
  const auto heading = [](std::string_view group) {
    return absl::StrCat("\n# ---- ", View(group), "\n");
  };
  return kFileIntro + Pages(heading, OptionInFile);
}

}  // namespace larder
