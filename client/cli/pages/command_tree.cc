#include "client/cli/pages/command_tree.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/pages/help_page.h"
#include "client/cli/pages/man_page.h"
#include "client/cli/shell/terminal.h"
#include "client/cli/shell/version.h"
#include "storage/text.h"

namespace larder::cli {
namespace {

constexpr char kVariablePrefix[] = "LARDERCTL_";

// Returns InvalidArgument if the environment has a LARDERCTL_ variable that larderctl does not
// know, which is taken for a misspelling.
absl::Status CheckEnvironment() {
  constexpr std::string_view kKnown[] = {"LARDERCTL_OUTPUT", "LARDERCTL_TENANT",
                                         "LARDERCTL_TIMEOUT"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable(*entry);
    const std::string_view name = variable.substr(0, variable.find('='));
    if (!name.starts_with(kVariablePrefix)) continue;
    if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown)) continue;
    const std::string_view nearest = NearestName(name, kKnown);
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown environment variable ", Printable(name),
        nearest.empty() ? "" : absl::StrCat(": did you mean ", std::string(nearest), "?")));
  }
  return absl::OkStatus();
}

// Long names of the options of `app`, then of the options of `root`, which all verbs have.
std::vector<std::string> OptionNames(const CLI::App& app, const CLI::App& root) {
  std::vector<std::string> names;
  for (const CLI::App* one : {&app, &root}) {
    for (const OptionText& option : OptionsOf(*one)) {
      if (!option.long_name.empty()) names.push_back(option.long_name);
    }
  }
  return names;
}

std::string Suggest(std::string_view word, const std::vector<std::string>& names) {
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view nearest = NearestName(word, views);
  return nearest.empty() ? "" : absl::StrCat(": did you mean ", std::string(nearest), "?");
}

}  // namespace

CommandTree::CommandTree() : app_(std::make_unique<CLI::App>("", "larderctl")) {
  app_->allow_extras();
  app_->fallthrough();
  app_->require_subcommand(0, 1);
  app_->set_help_flag("-h,--help", "Print what the command does, its options and examples.");
  app_->set_version_flag("--version", absl::StrCat("larderctl ", Version()),
                         "Print the version of larderctl; larderctl status has that of the "
                         "daemon.");
  VerbOptions every_verb(*app_);
  every_verb.AddWord("-o,--output", &common_.output, {"table", "json"},
                     "How data is printed to standard output.");
  every_verb.AddText("--socket-dir", &common_.socket_dir, "DIR",
                     "Directory of the daemon's socket files. Default: $LARDER_SOCKET_DIR, "
                     "otherwise /run/larder if it exists, otherwise $XDG_RUNTIME_DIR/larder.");
  every_verb.AddText("--socket", &common_.socket, "FILE",
                     "Socket file of Cache. Default: control.sock in that directory.");
  every_verb.AddText("--admin-socket", &common_.admin_socket, "FILE",
                     "Socket file of Admin. Default: admin.sock in that directory.");
  every_verb.AddText("--tenant", &common_.tenant, "NAME",
                     "Tenant whose blocks the verb is about. Default: the caller's own tenant.");
  every_verb.AddDuration("--timeout", &common_.timeout,
                         "Deadline of each call. Default: 30s; 10min for clear, a day for move, "
                         "compress and verify, none for watch.");
  app_->get_option("--output")->envname("LARDERCTL_OUTPUT");
  app_->get_option("--tenant")->envname("LARDERCTL_TENANT");
  app_->get_option("--timeout")->envname("LARDERCTL_TIMEOUT");
  // This option is for the build, not for users: without a group, --help does not list it.
  app_->add_flag("--print-man-page", print_man_page_)->group("");
}

CommandTree::~CommandTree() = default;

void CommandTree::Add(VerbPage page, const std::function<RunVerb(VerbOptions&)>& declare) {
  CLI::App* const app = app_->add_subcommand(std::string(page.name), std::string(page.summary));
  VerbOptions options(*app);
  RunVerb run = declare(options);
  verbs_.push_back({std::move(page), app, std::move(run)});
}

const CommandTree::Verb* CommandTree::Parsed() const {
  for (const Verb& verb : verbs_) {
    if (verb.app->parsed()) return &verb;
  }
  return nullptr;
}

absl::Status CommandTree::CheckLeftOver(const Verb* verb) const {
  const std::vector<std::string> left = app_->remaining(/*recurse=*/true);
  if (left.empty()) {
    return verb != nullptr ? absl::OkStatus() : absl::InvalidArgumentError("no verb");
  }
  const std::string& word = left.front();
  if (word.starts_with("-")) {
    const std::vector<std::string> names = OptionNames(verb != nullptr ? *verb->app : *app_, *app_);
    return absl::InvalidArgumentError(absl::StrCat("unknown option ", Printable(word),
                                                   Suggest(word.substr(0, word.find('=')), names)));
  }
  if (verb != nullptr)
    return absl::InvalidArgumentError(absl::StrCat("unexpected \"", Printable(word), "\""));
  std::vector<std::string> names;
  for (const Verb& one : verbs_) names.emplace_back(one.page.name);
  return absl::InvalidArgumentError(
      absl::StrCat("no verb \"", Printable(word), "\"", Suggest(word, names)));
}

ExitCode CommandTree::Run(int argc, char** argv, Interrupt& interrupt) {
  Shell shell(common_, interrupt);
  absl::Status status = CheckEnvironment();
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const size_t columns = PageColumns(STDOUT_FILENO);
    const Verb* const verb = Parsed();
    shell.Print(verb != nullptr ? VerbHelp(*this, *verb, columns) : ProgramHelp(*this, columns));
    return ExitCode::kOk;
  } catch (const CLI::CallForVersion&) {
    shell.Print(absl::StrCat("larderctl ", Version(), "\n"));
    return ExitCode::kOk;
  } catch (const CLI::ParseError& error) {
    status.Update(absl::InvalidArgumentError(error.what()));
  }
  if (print_man_page_) {
    shell.Print(ManPage(*this));
    return ExitCode::kOk;
  }
  const Verb* const verb = Parsed();
  if (verb != nullptr) shell.SetVerb(std::string(verb->page.name));
  status.Update(CheckLeftOver(verb));
  if (!status.ok()) {
    return shell.Fail(status,
                      verb != nullptr
                          ? absl::StrCat("larderctl ", std::string(verb->page.name), " --help")
                          : "larderctl --help");
  }
  return verb->run(shell);
}

}  // namespace larder::cli
