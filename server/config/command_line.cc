#include "server/config/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/config/config_options.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

using Action = CommandLine::Action;

// Returns the error for an argument that the parser did not accept.
absl::Status Unexpected(const std::string& argument) {
  const std::string shown = absl::CHexEscape(argument.substr(0, 64));
  if (!argument.starts_with("-")) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected \"", shown,
                     "\": every option has two dashes and one value, such as --pool 8GiB"));
  }
  std::string name = argument.substr(std::min(argument.find_first_not_of('-'), argument.size()));
  name = absl::StrReplaceAll(name.substr(0, name.find('=')), {{"-", "_"}});
  const std::string_view nearest = NearestConfigOption(name);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown option ", shown, ": ",
      nearest.empty() ? ""
                      : absl::StrCat("did you mean ", FlagName(*FindConfigOption(nearest)), "? "),
      "larderd --help lists the options"));
}

// Returns the arguments in reverse order, which is how the parser takes them.  The parser reads
// "--name=" as a name whose value is the next argument.  In larderd "--name=" means an empty value,
// so the name and an empty argument replace it.
std::vector<std::string> Reversed(const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed;
  for (auto it = arguments.rbegin(); it != arguments.rend(); ++it) {
    const bool empty_value = it->starts_with("--") && it->find('=') == it->size() - 1;
    if (empty_value) reversed.emplace_back();
    reversed.push_back(empty_value ? it->substr(0, it->size() - 1) : *it);
  }
  return reversed;
}

struct Actions {
  bool help = false, version = false, check = false, print = false, defaults = false,
       metrics = false, page = false;
};

absl::StatusOr<Action> ChooseAction(const Actions& a) {
  if (a.help) return Action::kHelp;
  if (a.version) return Action::kVersion;
  if (int{a.check} + int{a.print} + int{a.defaults} + int{a.metrics} + int{a.page} > 1) {
    return absl::InvalidArgumentError(
        "more than one action is given: write only one of --check-config, --print-config, "
        "--print-default-config, --print-metrics-reference and --print-man-page");
  }
  return a.check      ? Action::kCheckConfig
         : a.print    ? Action::kPrintConfig
         : a.defaults ? Action::kPrintDefaultConfig
         : a.metrics  ? Action::kPrintMetricsReference
         : a.page     ? Action::kPrintManPage
                      : Action::kServe;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  CommandLine line;
  Actions actions;
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("-h,--help", actions.help);
  app.add_flag("--version", actions.version);
  app.add_flag("--check-config", actions.check);
  app.add_flag("--print-config", actions.print);
  app.add_flag("--print-default-config", actions.defaults);
  app.add_flag("--print-metrics-reference", actions.metrics);
  app.add_flag("--print-man-page", actions.page);
  CLI::Option* const file = app.add_option("--config", line.config_file);
  std::map<std::string_view, std::string> values;
  std::vector<std::pair<const ConfigOption*, CLI::Option*>> given;
  for (const ConfigOption& option : ConfigOptions()) {
    given.emplace_back(&option, app.add_option(FlagName(option), values[option.name]));
  }
  std::vector<std::string> reversed = Reversed(arguments);
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(absl::StrCat(error.what(),
                                                   ": write each option once, with "
                                                   "one value; larderd --help lists them"));
  }
  const std::vector<std::string> left = app.remaining();
  if (!left.empty()) return Unexpected(left.front());
  if (file->count() > 0 && line.config_file.empty()) {
    return absl::InvalidArgumentError("--config: write the name of a file");
  }
  for (const auto& [option, parsed] : given) {
    if (parsed->count() > 0) line.flags.emplace_back(option->name, values[option->name]);
  }
  LARDER_ASSIGN_OR_RETURN(line.action, ChooseAction(actions));
  return line;
}

}  // namespace larder
