// A channel to data.sock whose connection the kernel attributes to another user.
//
// It makes the daemon's folder and socket accessible to every user.
// REQUIRES: this process runs as root.
// Thread-safety: any thread may call it.  Only the calling thread takes that user's id, and only
// while it connects.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>

#include "tests/e2e/support/daemon_process.h"
#include "tests/e2e/support/other_user.h"

namespace larder::e2e {

inline std::shared_ptr<grpc::Channel> ChannelOfUser(const DaemonProcess& daemon, uid_t uid) {
  const std::string path = daemon.data_socket();
  std::filesystem::permissions(daemon.folder()->path(), std::filesystem::perms(0755));
  std::filesystem::permissions(path, std::filesystem::perms(0666));
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  // A system call, because the C library's setresuid would change all threads.
  const bool other = syscall(SYS_setresuid, -1, uid, -1) == 0;
  const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const bool back = syscall(SYS_setresuid, -1, 0, -1) == 0;
  if (!other || !back || connected != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
    std::perror("cannot connect as another user");
    std::abort();
  }
  return grpc::CreateInsecureChannelFromFd("larderd", fd);
}

}  // namespace larder::e2e
