// A descriptor whose last close blocks for a chosen time.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "proto/frames/file_descriptor.h"
#include "storage/check.h"
#include "tests/support/send_rights.h"

namespace larder {

// A TCP connection over loopback that has more bytes under way than its receiver accepts.
class LingeringSocket {
 public:
  explicit LingeringSocket(int seconds) {
    const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const int little = 4096;  // of memory, so that a test can have hundreds
    LARDER_CHECK(setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof little) == 0);
    socklen_t size = sizeof address;
    LARDER_CHECK(bind(listener.get(), generic, size) == 0 && listen(listener.get(), 1) == 0);
    LARDER_CHECK(getsockname(listener.get(), generic, &size) == 0);
    sender_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    LARDER_CHECK(setsockopt(sender_.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
    LARDER_CHECK(connect(sender_.get(), generic, size) == 0);
    receiver_ = FileDescriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    LARDER_CHECK(bool{receiver_});
    const std::vector<char> bytes(64 << 10);
    while (send(sender_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const linger wish{.l_onoff = 1, .l_linger = seconds};
    LARDER_CHECK(setsockopt(sender_.get(), SOL_SOCKET, SO_LINGER, &wish, sizeof wish) == 0);
  }
  // Sends the descriptor along with `bytes` and closes its own copy, so that the sent reference is
  // the last.  Returns false if it was not sent; its close does not linger in that case.
  bool SendTo(int socket, std::string_view bytes, int flags = 0) {
    const bool sent = SendRights(socket, bytes, {sender_.get()}, flags) == 0;
    const linger off{};
    if (!sent) setsockopt(sender_.get(), SOL_SOCKET, SO_LINGER, &off, sizeof off);
    LetGo();
    return sent;
  }

 private:
  // The receiver may already have closed its reference.  In that case this close is the one that
  // blocks, and it runs on another thread so that the test does not mistake it for the receiver's.
  void LetGo() {
    std::packaged_task<void()> close(
        [sender = std::move(sender_)]() mutable { sender = FileDescriptor(); });
    const std::future<void> closed = close.get_future();
    std::thread(std::move(close)).detach();
    closed.wait_for(std::chrono::milliseconds(100));
  }

  FileDescriptor sender_;
  FileDescriptor receiver_;
};

}  // namespace larder
