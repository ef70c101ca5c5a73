// The group of a socket file: finds the group, and gives a file to it.
//
// Thread-safety: any thread may call these functions.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder {

// Returns the gid of a group; `text` is its name, or a gid, which need not exist on this host.
// Returns nullopt for "".  Returns NotFound if no group of this name is found on this host.
[[nodiscard]] absl::StatusOr<std::optional<gid_t>> FindGroup(const std::string& text);

// Gives the file at `path` to the group, if one is named, and only then sets the mode, so that the
// file's former group never gets the new permissions.  Returns PermissionDenied, with what to do
// about it, if the daemon may not give the file to the group, or another error.
[[nodiscard]] absl::Status HandToGroup(const std::string& path, std::optional<gid_t> group,
                                       mode_t mode);

}  // namespace larder
