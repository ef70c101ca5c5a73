// The verbs (subcommands) of larderctl, each declared once: the parser, --help, the manual page and
// the shells' completions are all made from this tree.
//
// Ownership: main owns it; a verb's App is valid as long as the tree.
// Thread-safety: none.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/pages/verb_options.h"
#include "client/cli/shell/shell.h"

namespace larder::cli {

struct Example {
  std::string_view command;  // without "larderctl"
  std::string_view what;
};

// What --help and the manual page say about a verb, apart from its options.
struct VerbPage {
  std::string_view name;
  std::string_view summary;  // "keeps blocks in a tier"
  std::string_view about;    // paragraphs
  std::vector<Example> examples;
};

using RunVerb = std::function<ExitCode(Shell&)>;

class CommandTree {
 public:
  struct Verb {
    VerbPage page;
    CLI::App* app;
    RunVerb run;
  };

  CommandTree();
  ~CommandTree();
  CommandTree(const CommandTree&) = delete;
  CommandTree& operator=(const CommandTree&) = delete;

  // `declare` adds the verb's options, and returns the function that runs the verb.
  void Add(VerbPage page, const std::function<RunVerb(VerbOptions&)>& declare);
  [[nodiscard]] const std::vector<Verb>& verbs() const { return verbs_; }
  [[nodiscard]] const CLI::App& app() const { return *app_; }
  // Parses the command line and runs its verb.
  [[nodiscard]] ExitCode Run(int argc, char** argv, Interrupt& interrupt);

 private:
  [[nodiscard]] const Verb* Parsed() const;  // nullptr if the command line names no verb
  [[nodiscard]] absl::Status CheckLeftOver(const Verb* verb) const;

  const std::unique_ptr<CLI::App> app_;
  CommonOptions common_;
  bool print_man_page_ = false;
  std::vector<Verb> verbs_;
};

}  // namespace larder::cli
