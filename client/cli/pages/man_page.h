// larderctl(1), made from the tree of verbs.
//
// Thread-safety: pure function.
#pragma once

#include <string>

#include "client/cli/pages/command_tree.h"

namespace larder::cli {

[[nodiscard]] std::string ManPage(const CommandTree& tree);

}  // namespace larder::cli
