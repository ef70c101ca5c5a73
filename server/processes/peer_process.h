// The process at the other end of a unix socket, as the kernel names it: its pid, its uid, and a
// pidfd that keeps naming this process even if the pid is reused.
//
// A PeerProcess does not prove that this process is the one that sends on the socket, because
// sockets can be passed to other processes.  The challenge of SidebandConnection proves that,
// provided that alive() is true after the answer: then the pid in the answer's credentials cannot
// be that of a later process.
//
// Ownership: it owns the pidfd.  Thread-safety: const methods may be called from any thread.
// Lifecycle: a movable value.
#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"

namespace larder {

class PeerProcess {
 public:
  // Returns the process that connected (SO_PEERCRED, and SO_PEERPIDFD if the kernel has it; without
  // it, if the pid was reused since, the pidfd is of the process that has the pid now).  Returns
  // FailedPrecondition, with what to do about it, if the daemon does not see the process;
  // Unavailable if the process no longer exists; or another error.
  [[nodiscard]] static absl::StatusOr<PeerProcess> OfSocket(int socket);
  // Returns the process with this pid, or an error as OfSocket does.
  // REQUIRES: the caller knows that `pid` was not reused (for example because the process is a
  // child of its own), or a later check would notice that.
  [[nodiscard]] static absl::StatusOr<PeerProcess> OfPid(pid_t pid, uid_t uid);

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] uid_t uid() const { return uid_; }
  // The descriptor becomes readable when the process is dead.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // Returns false if the process is dead, whether or not its parent has reaped it.
  [[nodiscard]] bool alive() const;

 private:
  PeerProcess(pid_t pid, uid_t uid, FileDescriptor pidfd)
      : pid_(pid), uid_(uid), pidfd_(std::move(pidfd)) {}
  pid_t pid_;
  uid_t uid_;
  FileDescriptor pidfd_;
};

}  // namespace larder
