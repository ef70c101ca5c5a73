// What --help prints, and what manual page and completions are made from: the options of the tree
// as texts.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/cli/pages/command_tree.h"

namespace larder::cli {

struct OptionText {
  std::string names;      // "-o, --output"; of an argument "KEY..."
  std::string long_name;  // "--output"; "": an argument
  std::string value;      // "table|json"; "": a flag
  std::string help;       // sentences, with default and variable
  [[nodiscard]] bool is_argument() const { return long_name.empty(); }
};
// Those that are for people.
[[nodiscard]] std::vector<OptionText> OptionsOf(const CLI::App& app);
// "larderctl pin [OPTION...] [KEY...]"
[[nodiscard]] std::string UsageOf(const CommandTree::Verb& verb);

[[nodiscard]] std::string ProgramHelp(const CommandTree& tree, size_t columns);
[[nodiscard]] std::string VerbHelp(const CommandTree& tree, const CommandTree::Verb& verb,
                                   size_t columns);

// Of larderctl as a whole; paragraphs.
extern const std::string_view kProgramAbout;
struct VariableText {
  std::string_view name, help;
};
extern const std::vector<VariableText> kVariables;

}  // namespace larder::cli
