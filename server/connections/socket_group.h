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

// Finds a group by name or number.  Returns nullopt for "": files keep the group that the daemon
// runs with.  Returns NotFound if this host has no such group.
[[nodiscard]] absl::StatusOr<std::optional<gid_t>> FindGroup(const std::string& text);

// Gives the file at `path` to the group, and only then sets the mode, so that the file's former
// group never gets the new permissions.  Returns PermissionDenied, with what to do about it, if the
// daemon's user is not in the group; Unavailable if the kernel refuses for another reason.
[[nodiscard]] absl::Status HandToGroup(const std::string& path, std::optional<gid_t> group,
                                       mode_t mode);

}  // namespace larder
