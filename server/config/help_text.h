// What larderd says of itself: --help, and its manual page.
//
// Both are made from the table of options and from the same words.
// Thread-safety: pure functions.
#pragma once

#include <string>

namespace larder {

// 80 columns.
[[nodiscard]] std::string HelpText();
// larderd(8).
[[nodiscard]] std::string ManPage();

}  // namespace larder
