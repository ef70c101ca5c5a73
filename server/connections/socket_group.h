// The group of a socket file: which one is meant, and handing a file to it.
//
// Thread-safety: any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder {

// A group by name or number; "": nullopt, files keep the group that the daemon runs with.
// NotFound: this host has no such group.
[[nodiscard]] absl::StatusOr<std::optional<gid_t>> FindGroup(const std::string& text);

// Gives the file at `path` to the group, and then the mode: until then it was to be for its owner
// alone.  PermissionDenied: the daemon's user is not in the group, with what to do.
[[nodiscard]] absl::Status HandToGroup(const std::string& path, std::optional<gid_t> group,
                                       mode_t mode);

}  // namespace larder
