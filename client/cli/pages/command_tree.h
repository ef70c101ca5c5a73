// The verbs of larderctl, each declared once: --help, the manual page and the shells' completions
// are made from it, and so is the parser.
//
// Ownership: by main; whoever is handed a verb's App may keep it as long as the tree.
// Thread-safety: none.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/shell/shell.h"

namespace larder::cli {

struct Example {
  std::string_view command;  // without "larderctl"
  std::string_view what;
};

// What people read of a verb, beside its options.
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
  CommandTree(const CommandTree&) = delete;
  CommandTree& operator=(const CommandTree&) = delete;

  // `declare` adds the verb's options, and answers what it does with them.
  void Add(VerbPage page, const std::function<RunVerb(CLI::App&)>& declare);
  [[nodiscard]] const std::vector<Verb>& verbs() const { return verbs_; }
  [[nodiscard]] const CLI::App& app() const { return app_; }
  // Parses, and runs the verb.
  [[nodiscard]] ExitCode Run(int argc, char** argv, Interrupt& interrupt);

 private:
  [[nodiscard]] const Verb* Parsed() const;  // nullptr: none
  [[nodiscard]] absl::Status CheckLeftOver(const Verb* verb) const;

  CLI::App app_;
  CommonOptions common_;
  bool print_man_page_ = false;
  std::vector<Verb> verbs_;
};

// ---- how options are declared.  What is wrong with a value is said before the verb runs.

// One of a few words.
CLI::Option* AddWord(CLI::App& app, const std::string& name, std::string* to,
                     const std::vector<std::string>& words, const std::string& help);
CLI::Option* AddDuration(CLI::App& app, const std::string& name, std::chrono::milliseconds* to,
                         const std::string& help);
CLI::Option* AddBytes(CLI::App& app, const std::string& name, uint64_t* to,
                      const std::string& help);

}  // namespace larder::cli
