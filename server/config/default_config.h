// The configuration file that a package installs, made from the table of options.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

namespace larder {

// A configuration file for --config that sets nothing: every option stands in it behind a #, with
// what it means, its kind of value and its default.  With each # before an option taken away it
// says the same as without any of them, on a host whose sockets are in /run/larder.
[[nodiscard]] std::string DefaultConfig();

}  // namespace larder
