// The right to serve a socket directory: one daemon at a time, the one that starts first.
//
// Only the holder may remove a socket file that a dead daemon left behind (RemoveStaleSocket in
// listening_socket.h): without the lock a process cannot know that the daemon is dead.  Acquire
// creates the directory (one level) if it is missing.  The lock file itself stays on disk forever;
// removing it would let two daemons hold two files of the same name.  Its mode is 0600, because a
// user who can open it can lock it and keep every daemon out.
//
// The lock does not keep another program from binding a socket there; RemoveStaleSocket reports
// such a program.
// Ownership: the owner of the handle holds the lock.  The lock is released when the handle is
// destroyed or the process ends, however it ends.  Forked children that do not exec hold it too.
// Thread-safety: one thread at a time.
// Lifecycle: Acquire -> RemoveStaleSocket for each path -> bind -> ... -> destroyed after the
// sockets are gone.
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
  // every user may write the directory, or another user owns the file.  Returns the kernel's error
  // if the directory or the file cannot be used otherwise.
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
