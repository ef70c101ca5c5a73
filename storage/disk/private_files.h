// Files and directories of a disk tier on the way to the file system: made for their owner alone,
// never reached through a symbolic link, and durable by name before they are counted on.
//
// A directory that somebody else could write to may hold anything, so it is refused; one that
// others can read is closed to them.
// Thread-safety: functions without state.  Blocking: all of them wait for the disk.
// Errors: FailedPrecondition where an operator must decide, with what to do; else Unavailable, or
// ResourceExhausted where the disk is full.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder {

// "WHAT PATH: the error".
[[nodiscard]] absl::Status FileError(int error, const std::string& what, const std::string& path);

enum class Links : uint8_t { kRefused, kFollowed };
// Makes a directory or looks at the one that is there: it must be ours or root's and not writable
// by others.  On OK its name is durable, whoever made it, but for one that was there, in a
// directory that cannot be synced.  REQUIRES: its parent is there.
[[nodiscard]] absl::Status MakePrivateDirectory(const std::string& path,
                                                Links links = Links::kRefused);
// What was made, renamed or removed in it survives a loss of power.
[[nodiscard]] absl::Status SyncDirectory(const std::string& path);
// Unavailable: no file can be made there, or none can grow.
[[nodiscard]] absl::Status TryToWriteIn(const std::string& directory);

// With O_CLOEXEC and O_NOFOLLOW, for its owner alone where it is made.  The caller closes it.
// `error` is errno's, where it is asked for.
[[nodiscard]] absl::StatusOr<int> OpenPrivateFile(const std::string& path, int flags,
                                                  int* error = nullptr);
// Empty where it cannot be read.  Up to 4 KiB.
[[nodiscard]] std::string ReadSmallFile(const std::string& path);
// In place of what is there; durable with its name on OK.
[[nodiscard]] absl::Status WriteDurably(const std::string& path, const std::string& text);

}  // namespace larder
