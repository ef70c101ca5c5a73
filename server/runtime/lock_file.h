// The right to serve a socket directory: one daemon at a time, whoever starts first.
//
// The holder alone may remove a socket file that a dead daemon left behind (RemoveStaleSocket in
// listening_socket.h): without the lock it cannot know that the daemon is dead.  Makes the
// directory (one level) when missing.  The lock file itself stays on disk for good; removing it
// would let two daemons hold two files of the same name.  Its mode is 0600, as a user who may open
// it may lock it and keep every daemon out.
//
// Does not keep another program from binding a socket there: that shows in RemoveStaleSocket.
// Ownership: the holder of the handle holds the lock; it ends with the handle or the process,
// however that ends.  Forked children that do not exec keep it too.
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

  // FailedPrecondition: another larderd serves it, or others may write the directory or own the
  // file, with what to do.  Otherwise what the kernel said of the directory or the file.
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
