// The configuration file that a package installs, generated from the table of options.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

namespace larder {

// Returns a configuration file for --config that sets nothing: it has every option commented out,
// with its meaning, its kind of value and its default.  Uncommenting all of them changes nothing on
// a host where the default of socket_dir is /run/larder.
[[nodiscard]] std::string DefaultConfig();

}  // namespace larder
