// Files and directories of a disk tier: created for their owner only, and opened only if they are
// not symbolic links (a directory that the operator names may be one).
//
// A directory that another user can write to may contain anything, so it is refused.  If other
// users can only read a directory of this process's user, its mode is changed so that they cannot.
// Thread-safety: functions without state.  Blocking: all functions may wait for the disk, except
// FileError.
// Errors: FailedPrecondition, with a text that says what to do, if an operator must decide;
// ResourceExhausted if the disk is full; otherwise Unavailable.  TryToWriteIn returns only
// Unavailable.
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
// and must not be writable by other users.  If other users can read an existing one of this
// process's user, its mode becomes 0700.  kRefused: it must not be a symbolic link.  On OK its name
// is durable, except if the directory existed and its parent cannot be synced.  REQUIRES: its
// parent exists.
[[nodiscard]] absl::Status MakePrivateDirectory(const std::string& path,
                                                Links links = Links::kRefused);
// On OK every creation, renaming and removal of a file in the directory before the call survives a
// loss of power.
[[nodiscard]] absl::Status SyncDirectory(const std::string& path);
// Writes and removes a small file in the directory.  Returns Unavailable if the file cannot be
// created or written.
[[nodiscard]] absl::Status TryToWriteIn(const std::string& directory);

// Opens a regular file with O_CLOEXEC and O_NOFOLLOW.  A file that it creates gets mode 0600, and
// so does a file of this process's user that other users have access to.  Returns
// FailedPrecondition if the file is a symbolic link, is not a regular file or belongs to a user
// other than this process's or root.  The caller closes the descriptor.  If open() fails and
// `error` is not null, *error is set to errno.
[[nodiscard]] absl::StatusOr<int> OpenPrivateFile(const std::string& path, int flags,
                                                  int* error = nullptr);
// Returns the first 4 KiB of the file, or less if it is shorter; an empty string if it cannot be
// read.
[[nodiscard]] std::string ReadSmallFile(const std::string& path);
// Replaces the file at `path`, or creates it.  On OK content and name are durable; after an error
// or a crash the file has either the former content or the new one.
[[nodiscard]] absl::Status WriteDurably(const std::string& path, const std::string& text);

}  // namespace larder
