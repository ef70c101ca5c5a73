// What --help prints, and the texts of options that the manual page and the completions are made
// from as well.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/cli/pages/command_tree.h"

namespace larder::cli {

struct OptionText {
  std::string names;      // "-o, --output"; for an argument "KEY..."
  std::string long_name;  // "--output"; "" for an argument
  std::string value;      // "table|json"; "" for a flag
  std::string help;       // sentences, with the default and the environment variable
  [[nodiscard]] bool is_argument() const { return long_name.empty(); }
};
// Options and arguments of `app`, except hidden ones and a verb's inherited --help.
[[nodiscard]] std::vector<OptionText> OptionsOf(const CLI::App& app);
// "larderctl pin [OPTION...] [KEY...]"
[[nodiscard]] std::string UsageOf(const CommandTree::Verb& verb);

[[nodiscard]] std::string ProgramHelp(const CommandTree& tree, size_t columns);
[[nodiscard]] std::string VerbHelp(const CommandTree& tree, const CommandTree::Verb& verb,
                                   size_t columns);

// What larderctl is for, in paragraphs.
extern const std::string_view kProgramAbout;
struct VariableText {
  std::string_view name, help;
};
extern const std::vector<VariableText> kVariables;

}  // namespace larder::cli
