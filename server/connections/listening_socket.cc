#include "server/connections/listening_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "server/connections/passed_rights.h"
#include "server/connections/socket_group.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());  // fits, because CheckPath accepted it
  return address;
}

FileDescriptor OpenSocket(int type) {
  return FileDescriptor(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Tries to connect with a socket of this type.  Returns 0 if that succeeds, which shows that a
// program listens, otherwise the errno.
int ConnectErrno(const sockaddr_un& address, int type) {
  const FileDescriptor probe = OpenSocket(type);
  if (!probe) return errno;
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  return connect(probe.get(), generic, sizeof address) == 0 ? 0 : errno;
}

absl::Status CheckPath(const std::string& path) {
  if (!path.empty() && path.size() < sizeof(sockaddr_un::sun_path) &&
      path.find('\0') == std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the path of a socket file must have 1 to ",
                                                 sizeof(sockaddr_un::sun_path) - 1, " bytes: \"",
                                                 path, "\"; choose a shorter socket directory"));
}

}  // namespace

absl::Status RemoveStaleSocket(const std::string& path) {
  struct stat st {};
  if (lstat(path.c_str(), &st) != 0) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot stat ", path));
  }
  if (!S_ISSOCK(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a socket: move it away or choose --socket-dir"));
  }
  LARDER_RETURN_IF_ERROR(CheckPath(path));
  const sockaddr_un address = AddressOf(path);
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    const int error = ConnectErrno(address, type);
    if (error == EPROTOTYPE) continue;  // a socket of another type
    if (error == ECONNREFUSED) break;   // no program listens any more
    return absl::FailedPreconditionError(
        absl::StrCat("another program listens on ", path, ": stop it or choose --socket-dir"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", path));
  }
  return absl::OkStatus();
}

absl::Status ListeningSocket::Options::Validate() const { return CheckPath(path); }

absl::StatusOr<std::unique_ptr<ListeningSocket>> ListeningSocket::Open(const Options& options) {
  LARDER_RETURN_IF_ERROR(options.Validate());
  auto socket = absl::WrapUnique(new ListeningSocket(options));
  LARDER_RETURN_IF_ERROR(options.handed_over >= 0 ? socket->TakeOver()
                                                  : socket->Listen(options.mode));
  return socket;
}

ListeningSocket::~ListeningSocket() {
  if (owned_ && InPlace()) unlink(options_.path.c_str());
  Replace(FileDescriptor(), false);
}

void ListeningSocket::Replace(FileDescriptor listener, bool refuses_rights) {
  // Closing the listener may close connections that were not accepted.
  CloseListener(std::exchange(listener_, std::move(listener)), !refuses_rights_);
  refuses_rights_ = refuses_rights;
}

bool ListeningSocket::InPlace() const {
  // A service manager may have created the file where this process cannot see it; then inode is 0.
  return file_.inode == 0 || FileAtPath() == file_;
}

absl::Status ListeningSocket::Reopen() {
  struct stat st {};
  const bool is_there = lstat(options_.path.c_str(), &st) == 0;
  // RemoveStaleSocket might take the broken socket for a program that listens, so our own file is
  // unlinked directly.
  if (owned_ && is_there && InPlace()) {
    unlink(options_.path.c_str());
  } else {
    LARDER_RETURN_IF_ERROR(RemoveStaleSocket(options_.path));
  }
  const bool as_handed_over = !owned_ && is_there && S_ISSOCK(st.st_mode);
  return Listen(as_handed_over ? st.st_mode & 0777 : options_.mode);
}

absl::Status ListeningSocket::TakeOver() {
  listener_ = FileDescriptor(fcntl(options_.handed_over, F_DUPFD_CLOEXEC, 0));
  // O_NONBLOCK: another process may accept the connection between this one's poll and its accept.
  if (!listener_ || fcntl(listener_.get(), F_SETFL, O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("taking over the listener at ", options_.path));
  }
  (void)RefuseRights(listener_.get());  // applies to connections from now on
  file_ = FileAtPath();
  return absl::OkStatus();
}

absl::Status ListeningSocket::Listen(mode_t mode) {
  FileDescriptor listener = OpenSocket(options_.type);
  if (!listener) return absl::ErrnoToStatus(errno, "socket");
  const bool refuses_rights = RefuseRights(listener.get());  // before any connection inherits it
  const sockaddr_un address = AddressOf(options_.path);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  const auto failed = [this](const char* call) {
    return absl::ErrnoToStatus(errno, absl::StrCat(call, " ", options_.path));
  };
  if (bind(listener.get(), generic, sizeof address) != 0) {
    if (errno != EADDRINUSE) return failed("bind");
    LARDER_RETURN_IF_ERROR(RemoveStaleSocket(options_.path));
    if (bind(listener.get(), generic, sizeof address) != 0) return failed("bind");
  }
  // No client can connect before listen, so the mode already applies to the first client.
  LARDER_RETURN_IF_ERROR(HandToGroup(options_.path, options_.group, mode));
  file_ = FileAtPath();
  owned_ = true;
  if (listen(listener.get(), SOMAXCONN) != 0) return failed("listen at");
  Replace(std::move(listener), refuses_rights);
  return absl::OkStatus();
}

ListeningSocket::File ListeningSocket::FileAtPath() const {
  struct stat st {};
  if (lstat(options_.path.c_str(), &st) != 0) return {};
  return {.device = st.st_dev, .inode = st.st_ino};
}

}  // namespace larder
