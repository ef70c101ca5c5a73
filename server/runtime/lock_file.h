// The right to serve a socket directory.  One daemon at a time has it.
//
// Only the holder may remove a socket file that a dead daemon left behind (RemoveStaleSocket in
// listening_socket.h): without the lock a process cannot know that the daemon is dead.  Acquire
// creates the directory (one level) if it is missing.  Daemons never remove the lock file:
// otherwise two daemons could hold the locks of two files of the same name.
//
// The lock does not keep another program from binding a socket in the directory; RemoveStaleSocket
// refuses to remove a socket at which a program listens.
// Ownership: the owner of the handle holds the lock until the handle is destroyed or the process
// ends, however it ends.  Forked children that do not exec hold the lock as well.
// Thread-safety: one thread at a time.
// Lifecycle: Acquire -> RemoveStaleSocket and bind for each path -> ... -> destroyed after the
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

  // Returns FailedPrecondition, with what to do about it, if another larderd serves the directory.
  // Also returns an error if the directory or the lock file cannot be used, or is not safe to use.
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
