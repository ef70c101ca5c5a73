#include "client/cli/pages/man_page.h"

#include "absl/strings/str_cat.h"
#include "client/cli/pages/help_page.h"
#include "client/cli/shell/version.h"
#include "storage/roff.h"

namespace larder::cli {
namespace {

constexpr const char* kOutputs =
    "Data goes to standard output, as a table or, with -o json, as one JSON document; watch prints "
    "one document per line. Messages, questions and progress go to standard error; progress is "
    "drawn only if that is a terminal. On a terminal, tables are no wider than the terminal, and "
    "names that were cut end with \"..\"; in a pipe nothing is cut.\n\n"
    "clear and drain ask for confirmation first, and refuse if there is no terminal to ask at; "
    "--yes confirms in advance. --dry-run, where a verb has it, only reports what would be done. "
    "Ctrl-C cancels the call; what was done by then stays done, and repeating the command does the "
    "rest. A second Ctrl-C ends the program at once.";

constexpr const char* kElsewhere =
    "larderd listens on socket files only. To reach a daemon on another machine, forward its "
    "files: ssh -N -L /tmp/control.sock:/run/larder/control.sock NODE, then larderctl --socket "
    "/tmp/control.sock.";

void AddOptions(const CLI::App& app, ManPageWriter* page) {
  for (const OptionText& option : OptionsOf(app)) {
    page->Item(absl::StrCat(option.names, option.value.empty() ? "" : " ", option.value),
               option.help);
  }
}

}  // namespace

std::string ManPage(const CommandTree& tree) {
  ManPageWriter page("larderctl", 1, Version(),
                     "queries and controls larderd, which keeps KV caches");
  page.Section("SYNOPSIS");
  page.Text("larderctl VERB [OPTION...] [ARGUMENT...]");
  page.Section("DESCRIPTION");
  page.Text(kProgramAbout);
  page.Text(kOutputs);
  page.Section("OPTIONS");
  page.Text("Every verb takes these options, before or after its name:");
  AddOptions(tree.app(), &page);
  page.Section("VERBS");
  for (const CommandTree::Verb& verb : tree.verbs()) {
    page.Subsection(UsageOf(verb));
    page.Text(verb.page.about);
    AddOptions(*verb.app, &page);
  }
  page.Section("EXIT STATUS");
  for (const ExitCodeText& code : kExitCodes) page.Item(absl::StrCat(code.code), code.text);
  page.Section("ENVIRONMENT");
  for (const VariableText& variable : kVariables) page.Item(variable.name, variable.help);
  page.Text(
      "An option takes precedence over its variable. An unknown variable LARDERCTL_... is an "
      "error.");
  page.Section("FILES");
  page.Item("/run/larder/control.sock", "Cache, for the members of the file's group.");
  page.Item("/run/larder/admin.sock",
            "Admin (status, top, config, verify, drain), for root and the user that runs larderd.");
  page.Text(kElsewhere);
  page.Section("EXAMPLES");
  for (const CommandTree::Verb& verb : tree.verbs()) {
    for (const Example& example : verb.page.examples) {
      page.Text(example.what);
      page.Command(absl::StrCat("larderctl ", std::string(example.command)));
    }
  }
  page.Section("SEE ALSO");
  page.Text("larderd(8)");
  return std::move(page).Take();
}

}  // namespace larder::cli
