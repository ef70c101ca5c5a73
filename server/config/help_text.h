// The texts of --help and of the manual page of larderd.
//
// Both texts are generated from the table of options and from the same strings.
// Thread-safety: pure functions.
#pragma once

#include <string>

namespace larder {

// Returns the text of --help, of at most 80 columns.
[[nodiscard]] std::string HelpText();
// Returns the manual page larderd(8) as roff.
[[nodiscard]] std::string ManPage();

}  // namespace larder
