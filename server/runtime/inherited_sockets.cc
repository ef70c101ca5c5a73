#include "server/runtime/inherited_sockets.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace larder {
namespace {

std::string PathOf(int fd) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      address.sun_family != AF_UNIX || size <= offsetof(sockaddr_un, sun_path)) {
    return "something that is not a socket file";
  }
  return address.sun_path;  // ends with a NUL unless it fills sun_path
}

}  // namespace

absl::StatusOr<InheritedSockets> InheritedSockets::Take(const std::vector<Wanted>& wanted) {
  InheritedSockets inherited;
  const int count = sd_listen_fds(/*unset_environment=*/1);
  if (count < 0)
    return absl::FailedPreconditionError(
        "cannot take over the sockets that the service manager passed ($LISTEN_FDS)");
  std::vector<FileDescriptor> given;
  for (int i = 0; i < count; ++i) given.emplace_back(SD_LISTEN_FDS_START + i);
  for (FileDescriptor& fd : given) {
    const auto is_this = [&fd](const Wanted& w) {
      return sd_is_socket_unix(fd.get(), w.type, /*listening=*/1, w.path.c_str(), 0) > 0;
    };
    const auto found = std::ranges::find_if(wanted, is_this);
    if (found == wanted.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the service manager listens on ", PathOf(fd.get()),
                       ", which is not a socket of this daemon: set the socket units and "
                       "socket_dir to the same directory, or disable the units"));
    }
    inherited.sockets_.emplace_back(found->path, std::move(fd));
  }
  return inherited;
}

int InheritedSockets::Find(const std::string& path) const {
  const auto found =
      std::ranges::find_if(sockets_, [&path](const auto& socket) { return socket.first == path; });
  return found == sockets_.end() ? -1 : found->second.get();
}

}  // namespace larder
