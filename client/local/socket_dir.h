// Where a daemon's socket files are, unless somebody says otherwise.
//
// Thread-safety: as getenv.
#pragma once

#include <string>

namespace larder {

// `given`; if empty $LARDER_SOCKET_DIR, else /run/larder, else $XDG_RUNTIME_DIR/larder.
[[nodiscard]] std::string SocketDir(const std::string& given);

}  // namespace larder
