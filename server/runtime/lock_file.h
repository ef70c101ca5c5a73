// The right to serve a socket directory.  One daemon at a time has it: the one that acquired it
// first.
//
// Only the holder may remove a socket file that a dead daemon left behind (RemoveStaleSocket in
// listening_socket.h): without the lock a process cannot know that the daemon is dead.  Acquire
// creates the directory (one level) if it is missing.  The lock file itself stays on disk forever:
// if a daemon removed it, two daemons could hold the locks of two files of the same name.  A daemon
// gives a lock file of its own user the mode 0600, because a user who can open the file can lock it
// and keep every daemon out.
//
// The lock does not keep another program from binding a socket in the directory; RemoveStaleSocket
// reports such a program.
// Ownership: the owner of the handle holds the lock.  The kernel releases the lock when the handle
// is destroyed or the process ends, however it ends.  If the process has forked children that did
// not exec, they hold the lock as well, and the kernel releases it when the last of them ends.
// Thread-safety: one thread at a time.
// Lifecycle: Acquire -> RemoveStaleSocket for each path -> bind -> ... -> destroyed after the
// sockets that were bound are closed.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder {

class LockFile {
 public:
  static constexpr const char* kName = "larderd.lock";

  // Returns FailedPrecondition, with what to do about it, if another larderd serves the directory,
  // if every user may replace files in it, if it is not a directory, if the lock file could be
  // opened and is not a regular file, or if the lock file belongs to neither this user nor the
  // directory's owner.  Returns the kernel's error if a system call fails, for example because the
  // lock file cannot be opened.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LockFile>> Acquire(
      const std::string& socket_dir);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  explicit LockFile(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace larder
