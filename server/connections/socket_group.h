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

// Returns the gid of a group; a number is returned as it is, whether or not this host has such a
// group.  Returns nullopt for "": files keep the group that the daemon runs with.  Returns NotFound
// if no group of this name is found on this host.
[[nodiscard]] absl::StatusOr<std::optional<gid_t>> FindGroup(const std::string& text);

// Gives the file at `path` to the group, if one is named, and only then sets the mode, so that the
// file's former group never gets the new permissions.  Returns PermissionDenied, with what to do
// about it, if the daemon may not give the file to the group (EPERM: its user is not in the group);
// Unavailable if changing the group or the mode fails for another reason.
[[nodiscard]] absl::Status HandToGroup(const std::string& path, std::optional<gid_t> group,
                                       mode_t mode);

}  // namespace larder
