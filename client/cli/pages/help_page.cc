#include "client/cli/pages/help_page.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/text.h"

namespace larder::cli {

const std::string_view kProgramAbout =
    "Queries larderd for what it holds, and tells it which blocks to keep, move and drop. A "
    "command names blocks by their keys (VARIANT:DIGEST in hexadecimal digits, as watch prints "
    "them), by the tokens of a prompt, or by the model that they belong to.";

const std::vector<VariableText> kVariables = {
    {"LARDER_SOCKET_DIR", "the same as --socket-dir; larderd and the client library read it too"},
    {"LARDERCTL_OUTPUT", "the same as --output"},
    {"LARDERCTL_TENANT", "the same as --tenant"},
    {"LARDERCTL_TIMEOUT", "the same as --timeout"},
};

std::vector<OptionText> OptionsOf(const CLI::App& app) {
  std::vector<OptionText> texts;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    // A verb inherits --help, which is listed once, among the options that every verb has.
    if (option == app.get_help_ptr() && app.get_parent() != nullptr) continue;
    OptionText text;
    if (option->get_positional()) {
      text.names = option->get_name(/*positional=*/true);
      if (option->get_items_expected_max() > 1) text.names += "...";
    } else {
      std::vector<std::string> names;
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      text.names = absl::StrJoin(names, ", ");
      text.long_name = names.back();
      if (option->get_items_expected_max() > 0) text.value = option->get_type_name();
    }
    text.help = option->get_description();
    if (!option->get_default_str().empty())
      absl::StrAppend(&text.help, " Default: ", option->get_default_str(), ".");
    if (!option->get_envname().empty())
      absl::StrAppend(&text.help, " Also $", option->get_envname(), ".");
    texts.push_back(std::move(text));
  }
  return texts;
}

std::string UsageOf(const CommandTree::Verb& verb) {
  std::string usage = absl::StrCat("larderctl ", std::string(verb.page.name), " [OPTION...]");
  for (const OptionText& option : OptionsOf(*verb.app)) {
    if (option.is_argument()) absl::StrAppend(&usage, " [", option.names, "]");
  }
  return usage;
}

namespace {

std::string OptionLines(const OptionText& option, size_t columns) {
  const std::string value = option.value.empty() ? "" : absl::StrCat(" ", option.value);
  return absl::StrCat(Wrap(absl::StrCat(option.names, value), columns, 6, "  "),
                      Wrap(option.help, columns, 6, "      "));
}

std::string ExampleLines(const std::vector<Example>& examples, size_t columns) {
  if (examples.empty()) return "";
  std::string out = "\nExamples\n";
  for (const Example& example : examples) {
    absl::StrAppend(
        &out, Wrap(absl::StrCat("larderctl ", std::string(example.command)), columns, 6, "  "),
        Wrap(example.what, columns, 6, "      "));
  }
  return out;
}

}  // namespace

std::string ProgramHelp(const CommandTree& tree, size_t columns) {
  std::string out =
      Wrap("larderctl - queries and controls larderd, which keeps KV caches", columns, 2);
  absl::StrAppend(&out, "\n", Wrap("Usage: larderctl VERB [OPTION...] [ARGUMENT...]", columns, 7),
                  Wrap("larderctl VERB --help", columns, 7, "       "), "\n",
                  Wrap(kProgramAbout, columns), "\nVerbs\n");
  for (const CommandTree::Verb& verb : tree.verbs()) {
    std::string first = absl::StrCat("  ", std::string(verb.page.name));
    first.resize(14, ' ');
    out += Wrap(verb.page.summary, columns, first.size(), first);
  }
  out += "\nOptions of every verb\n";
  for (const OptionText& option : OptionsOf(tree.app())) out += OptionLines(option, columns);
  out += "\nEnvironment\n";
  for (const VariableText& variable : kVariables) {
    std::string first = absl::StrCat("  ", std::string(variable.name));
    first.resize(21, ' ');
    out += Wrap(variable.help, columns, first.size(), first);
  }
  out += "\nExit codes\n";
  for (const ExitCodeText& code : kExitCodes) {
    std::string first = absl::StrCat("  ", code.code);
    first.resize(7, ' ');
    out += Wrap(code.text, columns, first.size(), first);
  }
  return out;
}

std::string VerbHelp(const CommandTree& tree, const CommandTree::Verb& verb, size_t columns) {
  std::string out = Wrap(absl::StrCat("larderctl ", std::string(verb.page.name), " - ",
                                      std::string(verb.page.summary)),
                         columns, 2);
  absl::StrAppend(&out, "\n", Wrap("Usage: " + UsageOf(verb), columns, 9), "\n",
                  Wrap(verb.page.about, columns));
  std::string arguments, options;
  for (const OptionText& option : OptionsOf(*verb.app))
    (option.is_argument() ? arguments : options) += OptionLines(option, columns);
  if (!arguments.empty()) absl::StrAppend(&out, "\nArguments\n", arguments);
  if (!options.empty()) absl::StrAppend(&out, "\nOptions\n", options);
  std::vector<std::string> common;
  for (const OptionText& option : OptionsOf(tree.app())) common.push_back(option.long_name);
  absl::StrAppend(&out, "\nOptions of every verb (larderctl --help)\n",
                  Wrap(absl::StrJoin(common, ", "), columns, 2, "  "),
                  ExampleLines(verb.page.examples, columns));
  return out;
}

}  // namespace larder::cli
