#include "server/processes/peer_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

// Linux 6.5 has this option, but the C library's headers of the oldest host on which we build do
// not.
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace larder {
namespace {

absl::Status NoPidfd(int error) {
  if (error == ESRCH) return absl::UnavailableError("the process is dead");
  if (error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(
        "the daemon has no descriptor left; raise LimitNOFILE= (ulimit -n)");
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the daemon cannot get a pidfd of this process (errno ", error,
      "): run larderd on Linux 5.3 or newer with pidfd_open allowed, or use write mode "
      "stream"));
}

}  // namespace

absl::StatusOr<PeerProcess> PeerProcess::OfSocket(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::ErrnoToStatus(errno, "SO_PEERCRED");
  }
  if (credentials.pid <= 0) {
    return absl::FailedPreconditionError(
        "the daemon cannot see this process: run the engine in the daemon's PID namespace, or use "
        "write mode stream");
  }
  int pidfd = -1;
  size = sizeof pidfd;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) {
    return PeerProcess(credentials.pid, credentials.uid, FileDescriptor(pidfd));
  }
  if (errno != ENOPROTOOPT) return NoPidfd(errno == EINVAL ? ESRCH : errno);
  return OfPid(credentials.pid, credentials.uid);
}

absl::StatusOr<PeerProcess> PeerProcess::OfPid(pid_t pid, uid_t uid) {
  // pidfd_open sets close-on-exec.
  FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return NoPidfd(errno);
  return PeerProcess(pid, uid, std::move(pidfd));
}

bool PeerProcess::alive() const {
  pollfd death{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  for (;;) {
    const int ready = poll(&death, 1, 0);
    if (ready >= 0) return ready == 0;
    if (errno != EINTR) return false;
  }
}

}  // namespace larder
