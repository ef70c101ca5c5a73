// The right to serve a socket directory.  One daemon at a time has it.
//
// Only the holder may remove a socket file that a dead daemon left behind (RemoveStaleSocket in
// listening_socket.h): without the lock a process cannot know that the daemon is dead.  Acquire
// creates the directory (one level) if it is missing.  Daemons never remove the lock file:
// otherwise two daemons could hold the locks of two files of the same name.
//
// A daemon that was killed keeps the lock until the kernel has freed its memory, which may take
// seconds for a large pool.  Acquire waits for such a daemon.
//
// The lock does not keep another program from binding a socket in the directory; RemoveStaleSocket
// refuses to remove a socket at which a program listens.
// Ownership: the owner of the handle holds the lock until the handle is destroyed or the process
// ends, however it ends.  Forked children that do not exec hold the lock as well.
// Thread-safety: one thread at a time.
// Lifecycle: Acquire -> RemoveStaleSocket and bind for each path -> ... -> destroyed after the
// sockets that were bound are closed.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder {

class LockFile {
 public:
  static constexpr const char* kName = "larderd.lock";
  // How long Acquire waits for a holder that is exiting.
  static constexpr std::chrono::seconds kEndingMax{60};
  // How long it waits for a holder in another PID namespace, which it cannot see exiting.
  static constexpr std::chrono::seconds kUnseenMax{5};

  // Returns FailedPrecondition, with what to do about it, if another larderd serves the directory.
  // Also returns an error if the directory or the lock file cannot be used, or is not safe to use.
  // Calls `waits` with a text for the operator before it waits for a daemon that exits.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<LockFile>> Acquire(
      const std::string& socket_dir,
      absl::FunctionRef<void(const std::string&)> waits = [](const std::string&) {});
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  explicit LockFile(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace larder
