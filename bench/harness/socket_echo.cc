#include "bench/harness/socket_echo.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/session/pending_calls.h"

namespace larder::bench {
namespace {

// Sent before the pings: the length of a ping and of a pong.
struct Sizes {
  uint64_t ping = 0;
  uint64_t pong = 0;
};

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  return address;
}

bool ReadAll(int socket, void* to, size_t bytes) {
  auto* at = static_cast<char*>(to);
  auto spin_until = std::chrono::steady_clock::now() + PendingCalls::kSpin;
  while (bytes > 0) {
    const ssize_t got = recv(socket, at, bytes, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return false;
    if (got > 0) {
      at += got;
      bytes -= static_cast<size_t>(got);
    } else if (std::chrono::steady_clock::now() < spin_until) {
      std::this_thread::yield();
    } else {
      pollfd wait{.fd = socket, .events = POLLIN, .revents = 0};
      poll(&wait, 1, -1);
    }
  }
  return true;
}

bool WriteAll(int socket, const void* from, size_t bytes) {
  return send(socket, from, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

void Serve(int listener) {
  for (;;) {
    const FileDescriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) return;
    Sizes sizes;
    if (!ReadAll(socket.get(), &sizes, sizeof sizes)) continue;
    std::string ping(sizes.ping, '\0');
    const std::string pong(sizes.pong, 'x');
    while (ReadAll(socket.get(), ping.data(), ping.size()) &&
           WriteAll(socket.get(), pong.data(), pong.size())) {
    }
  }
}

}  // namespace

SocketEchoServer::SocketEchoServer(FileDescriptor listener)
    : listener_(std::move(listener)), thread_([fd = listener_.get()] { Serve(fd); }) {}

SocketEchoServer::~SocketEchoServer() {
  shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
}

absl::StatusOr<std::unique_ptr<SocketEchoServer>> SocketEchoServer::Start(const std::string& path) {
  FileDescriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), 1) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen at ", path));
  }
  return std::unique_ptr<SocketEchoServer>(new SocketEchoServer(std::move(listener)));
}

SocketEchoClient::SocketEchoClient(FileDescriptor socket, size_t ping_bytes, size_t pong_bytes)
    : socket_(std::move(socket)), ping_(ping_bytes, 'x'), pong_(pong_bytes, '\0') {}

absl::StatusOr<std::unique_ptr<SocketEchoClient>> SocketEchoClient::Connect(const std::string& path,
                                                                            size_t ping_bytes,
                                                                            size_t pong_bytes) {
  FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_un address = AddressOf(path);
  const Sizes sizes{.ping = ping_bytes, .pong = pong_bytes};
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      !WriteAll(fd.get(), &sizes, sizeof sizes)) {
    return absl::UnavailableError(absl::StrCat("no server listens at ", path));
  }
  return std::unique_ptr<SocketEchoClient>(
      new SocketEchoClient(std::move(fd), ping_bytes, pong_bytes));
}

absl::Status SocketEchoClient::Ping() {
  if (WriteAll(socket_.get(), ping_.data(), ping_.size()) &&
      ReadAll(socket_.get(), pong_.data(), pong_.size())) {
    return absl::OkStatus();
  }
  return absl::UnavailableError("echo: the socket broke");
}

}  // namespace larder::bench
