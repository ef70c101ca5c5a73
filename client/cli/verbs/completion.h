// Completion scripts for shells, made from the tree of verbs.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "client/cli/pages/command_tree.h"

namespace larder::cli {

[[nodiscard]] std::string BashCompletion(const CommandTree& tree);
[[nodiscard]] std::string ZshCompletion(const CommandTree& tree);
[[nodiscard]] std::string FishCompletion(const CommandTree& tree);

}  // namespace larder::cli
