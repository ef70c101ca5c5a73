// Processes that try to use up a daemon's connections: they connect to its socket files and send
// nothing that a client would send.
//
// Ownership: the children, which die with this object.  Thread-safety: none.
#pragma once

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <string>
#include <vector>

#include "storage/check.h"
#include "tests/e2e/support/die_with.h"

namespace larder::e2e {

enum class FloodKind { kHeld, kChurned, kHalfOpen };

class SocketFlood {
 public:
  struct Options {
    std::string path;
    int type = SOCK_STREAM;
    FloodKind kind = FloodKind::kHeld;
    int processes = 1;
    uid_t uid = 0;  // the user that they become
  };
  explicit SocketFlood(const Options& options) {
    const pid_t parent = getpid();
    for (int i = 0; i < options.processes; ++i) {
      const pid_t child = fork();
      LARDER_CHECK(child >= 0);
      if (child == 0) Attack(options, parent);
      children_.push_back(child);
    }
  }
  ~SocketFlood() { End(); }
  SocketFlood(const SocketFlood&) = delete;
  SocketFlood& operator=(const SocketFlood&) = delete;

  [[nodiscard]] const std::vector<pid_t>& children() const { return children_; }
  // Returns false if an attacker has ended by itself.
  [[nodiscard]] bool Attacks() const {
    for (const pid_t child : children_) {
      if (waitpid(child, nullptr, WNOHANG) != 0) return false;
    }
    return true;
  }
  void End() {
    for (const pid_t child : children_) kill(child, SIGKILL);
    for (const pid_t child : children_) waitpid(child, nullptr, 0);
    children_.clear();
  }

 private:
  // Makes only calls that are safe between fork and exec.
  [[noreturn]] static void Attack(const Options& options, pid_t parent) {
    if (options.uid != geteuid() && setresuid(options.uid, options.uid, options.uid) != 0) _exit(1);
    DieWith(parent);
    // As another program, the attacker has no descriptors of its victim.  A connection that the
    // victim closes would otherwise stay open, and stay registered in the epoll set of its gRPC.
    if (syscall(SYS_close_range, 3u, ~0u, 0u) != 0) _exit(1);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    options.path.copy(address.sun_path, sizeof address.sun_path - 1);
    for (;;) {
      const int fd = socket(AF_UNIX, options.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const bool connected =
          fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
      if (connected && options.kind == FloodKind::kHalfOpen) {
        // Where the daemon has closed the connection already, SIGPIPE would end the attacker.
        (void)send(fd, "PRI * HTTP/2.0\r\n", 16, MSG_NOSIGNAL);
      }
      if (fd >= 0 && (!connected || options.kind == FloodKind::kChurned)) close(fd);
      // The pause keeps the flood from winning by its use of the processor alone.  A process
      // without free descriptors pauses for longer and then goes on.
      const timespec pause{.tv_sec = 0, .tv_nsec = fd < 0 ? 10'000'000 : 200'000};
      nanosleep(&pause, nullptr);
    }
  }

  std::vector<pid_t> children_;
};

}  // namespace larder::e2e
