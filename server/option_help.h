// The table of options as pages for people: their part of --help, and the configuration file that a
// package installs.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

namespace larder {

// All options by group, 80 columns.
[[nodiscard]] std::string OptionsHelp();

// A configuration file for --config that sets nothing: every option stands in it behind a #, with
// what it means, its kind of value and its default.  With each # before an option taken away it
// says the same as without any of them, on a host whose sockets are in /run/larder.
[[nodiscard]] std::string DefaultConfig();

}  // namespace larder
