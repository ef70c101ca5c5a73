// Where a daemon's socket files are, if the caller does not say.
//
// Thread-safety: That of getenv.
#pragma once

#include <string>

namespace larder {

// Returns `given` if it is not empty, otherwise $LARDER_SOCKET_DIR if that is set and not empty,
// otherwise /run/larder if that is a directory or $XDG_RUNTIME_DIR is not set or empty, otherwise
// $XDG_RUNTIME_DIR/larder.
[[nodiscard]] std::string SocketDir(const std::string& given);

}  // namespace larder
