// Where a daemon's socket files are, if the caller does not say.
//
// Thread-safety: As getenv's.
#pragma once

#include <string>

namespace larder {

// Returns `given` if it is not empty, otherwise $LARDER_SOCKET_DIR if it is set, otherwise
// /run/larder if it is a directory or $XDG_RUNTIME_DIR is not set, otherwise
// $XDG_RUNTIME_DIR/larder.
[[nodiscard]] std::string SocketDir(const std::string& given);

}  // namespace larder
