// Files and directories of a disk tier, for their owner only.  OpenPrivateFile refuses a path that
// is a symbolic link, and so does MakePrivateDirectory with Links::kRefused.
//
// A directory that its group or others can write to may contain anything, so MakePrivateDirectory
// refuses it.  It removes other access of other users to a directory that belongs to this process's
// user.
// Thread-safety: functions without state.  Blocking: all functions may wait for the disk, except
// FileError.
// Errors: FailedPrecondition, with a text that says what to do, for example if a symbolic link, an
// owner or a mode is refused; or another error, as from FileError.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder {

// Returns the status for an errno of the file system: ResourceExhausted for ENOSPC and EDQUOT;
// FailedPrecondition for ELOOP, with a text that says that PATH is a symbolic link; otherwise
// Unavailable.  The text is "WHAT PATH: the error", except for ELOOP.
[[nodiscard]] absl::Status FileError(int error, const std::string& what, const std::string& path);

enum class Links : uint8_t { kRefused, kFollowed };
// Creates a directory or checks the existing one, which must belong to this process's user or root
// and must not be writable by its group or others.  If other users have access to an existing one
// of this process's user, its mode becomes 0700.  Links::kRefused: `path` must not be a symbolic
// link.  On OK the directory's name is durable, except if it existed and its parent cannot be
// synced.  REQUIRES: the parent exists.
[[nodiscard]] absl::Status MakePrivateDirectory(const std::string& path,
                                                Links links = Links::kRefused);
// On OK every creation, renaming and removal of a file in the directory before the call survives a
// loss of power.
[[nodiscard]] absl::Status SyncDirectory(const std::string& path);
// Writes and removes a small file in the directory.  Returns Unavailable if the file cannot be
// created, written or synced.
[[nodiscard]] absl::Status TryToWriteIn(const std::string& directory);

// Opens a regular file with O_CLOEXEC and O_NOFOLLOW.  A file that it creates gets mode 0600, and
// so does a file of this process's user that other users have access to, if its mode can be
// changed.  If open() fails, returns FileError, and sets *error to the errno if `error` is not
// null.  Returns FailedPrecondition if what it has opened is not a regular file, or belongs to a
// user other than this process's or root.  The caller closes the descriptor.
[[nodiscard]] absl::StatusOr<int> OpenPrivateFile(const std::string& path, int flags,
                                                  int* error = nullptr);
// Returns the first 4 KiB of the file, or all of a shorter file; an empty string if the file cannot
// be read.
[[nodiscard]] std::string ReadSmallFile(const std::string& path);
// Replaces the file at `path`, or creates it.  On OK content and name are durable; after an error
// or a crash the file is as before or has the new content.
[[nodiscard]] absl::Status WriteDurably(const std::string& path, const std::string& text);

}  // namespace larder
