// The process at the other end of a unix socket, as the kernel names it: pid, uid and a pidfd that
// stays with this process whatever becomes of the number.
//
// It does not prove that this process is the one that speaks on the socket: sockets travel. That is
// for the sideband's challenge, and it needs alive() to hold after the answer: then the pid in the
// answer's credentials cannot be a later process's.
//
// Ownership: the pidfd.  Thread-safety: const methods from any thread.  Lifecycle: movable value.
#pragma once

#include <sys/types.h>

#include "absl/status/statusor.h"
#include "proto/frames/file_descriptor.h"

namespace larder {

class PeerProcess {
 public:
  // Who connected (SO_PEERCRED, and SO_PEERPIDFD where the kernel has it). FailedPrecondition, with
  // what to do: the process is in a PID namespace that the daemon does not see, or there is no
  // pidfd.  Unavailable: it is dead already.
  [[nodiscard]] static absl::StatusOr<PeerProcess> OfSocket(int socket);
  // REQUIRES: the caller knows that `pid` is not a reused one (a child of its own, for instance).
  [[nodiscard]] static absl::StatusOr<PeerProcess> OfPid(pid_t pid, uid_t uid);

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] uid_t uid() const { return uid_; }
  // Readable once the process is dead.
  [[nodiscard]] int pidfd() const { return pidfd_.get(); }
  // False once it is dead, reaped by its parent or not.
  [[nodiscard]] bool alive() const;

 private:
  PeerProcess(pid_t pid, uid_t uid, FileDescriptor pidfd)
      : pid_(pid), uid_(uid), pidfd_(std::move(pidfd)) {}
  pid_t pid_;
  uid_t uid_;
  FileDescriptor pidfd_;
};

}  // namespace larder
