// Files and directories of a disk tier: created for their owner only, never reached through a
// symbolic link, and with names that are durable before the caller relies on them.
//
// A directory that another user can write to may contain anything, so it is refused.  If other
// users can only read a directory, its mode is changed so that they cannot.
// Thread-safety: functions without state.  Blocking: all functions may wait for the disk, except
// FileError.
// Errors: FailedPrecondition, with a text that says what to do, if an operator must decide;
// ResourceExhausted if the disk is full; otherwise Unavailable.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder {

// Returns an error with the text "WHAT PATH: the error"; ELOOP is reported as a symbolic link.
[[nodiscard]] absl::Status FileError(int error, const std::string& what, const std::string& path);

enum class Links : uint8_t { kRefused, kFollowed };
// Creates a directory or checks the existing one, which must belong to this process's user or root
// and must not be writable by others.  On OK its name is durable, except if the directory existed
// and its parent cannot be synced.  REQUIRES: its parent exists.
[[nodiscard]] absl::Status MakePrivateDirectory(const std::string& path,
                                                Links links = Links::kRefused);
// On OK every creation, renaming and removal of a file in the directory so far survives a loss of
// power.
[[nodiscard]] absl::Status SyncDirectory(const std::string& path);
// Returns Unavailable if no file can be created in the directory or a new file cannot be written.
[[nodiscard]] absl::Status TryToWriteIn(const std::string& directory);

// Opens a file with O_CLOEXEC and O_NOFOLLOW; a file that it creates is for its owner only.  The
// caller closes the descriptor.  If open() fails and `error` is not null, *error is set to errno.
[[nodiscard]] absl::StatusOr<int> OpenPrivateFile(const std::string& path, int flags,
                                                  int* error = nullptr);
// Returns up to 4 KiB of the file, or an empty string if it cannot be read.
[[nodiscard]] std::string ReadSmallFile(const std::string& path);
// Replaces the file at `path`; content and name are durable on OK.
[[nodiscard]] absl::Status WriteDurably(const std::string& path, const std::string& text);

}  // namespace larder
