#include "client/cli/pages/man_page.h"

#include "absl/strings/str_cat.h"
#include "client/cli/pages/help_page.h"
#include "client/cli/shell/version.h"
#include "storage/roff.h"

namespace larder::cli {
namespace {

constexpr const char* kOutputs =
    "Data goes to standard output, as a table or, with -o json, as one JSON document; watch prints "
    "one a line. Messages, questions and progress go to standard error; progress is drawn only "
    "where that is a terminal. On a terminal tables are no wider than it is, and long names end "
    "with \"..\"; in a pipe nothing is cut.\n\n"
    "What destroys blocks asks first, and refuses where nobody can be asked; --yes answers, and "
    "--dry-run only says what would be done. Ctrl-C cancels the call; what was done until then "
    "stays done, and calling again does the rest. A second Ctrl-C ends the program at once.";

constexpr const char* kElsewhere =
    "larderd listens on socket files alone. For a daemon on another machine forward its files: "
    "ssh -N -L /tmp/control.sock:/run/larder/control.sock NODE, then larderctl --socket "
    "/tmp/control.sock.";

void AddOptions(const CLI::App& app, ManPageWriter* page) {
  for (const OptionText& option : OptionsOf(app)) {
    page->Item(absl::StrCat(option.names, option.value.empty() ? "" : " ", option.value),
               option.help);
  }
}

}  // namespace

std::string ManPage(const CommandTree& tree) {
  ManPageWriter page("larderctl", 1, Version(), "asks and steers larderd, which keeps KV caches");
  page.Section("SYNOPSIS");
  page.Text("larderctl VERB [OPTION...] [ARGUMENT...]");
  page.Section("DESCRIPTION");
  page.Text(kProgramAbout);
  page.Text(kOutputs);
  page.Section("OPTIONS");
  page.Text("Of every verb, before or behind it:");
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
  page.Text("A flag goes before its variable. An unknown variable LARDERCTL_... is an error.");
  page.Section("FILES");
  page.Item("/run/larder/control.sock", "Cache: the members of the file's group may ask.");
  page.Item("/run/larder/admin.sock",
            "Admin (status, top, config, verify, drain): the user that runs larderd alone.");
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
