// The configuration file that a package installs, generated from the table of options.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

namespace larder {

// Returns a configuration file for --config that sets nothing: it has every option commented out,
// with its meaning, its kind of value and its default.
[[nodiscard]] std::string DefaultConfig();

}  // namespace larder
