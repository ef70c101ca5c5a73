#include "proto/frames/sideband_packet.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace larder {
namespace {

// The most descriptors that one packet can carry (SCM_MAX_FD).  The buffer for control data has
// space for all of them, because the kernel would close those that do not fit, in the thread that
// receives.
constexpr size_t kDescriptorsMax = 253;
constexpr size_t kCredentialsBytes = CMSG_SPACE(sizeof(ucred));
constexpr size_t kControlBytes = kCredentialsBytes + CMSG_SPACE(kDescriptorsMax * sizeof(int));

void TakeControl(msghdr& message, ReceivedPacket& packet) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_RIGHTS) {
      // The kernel states by cmsg_len how many descriptors arrived.
      for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
        int fd = -1;
        std::memcpy(&fd, reinterpret_cast<const std::byte*>(c) + at, sizeof fd);
        packet.descriptors.emplace_back(fd);
      }
    } else if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len >= CMSG_LEN(sizeof(ucred))) {
      ucred credentials;
      std::memcpy(&credentials, CMSG_DATA(c), sizeof credentials);
      packet.credentials = {.pid = credentials.pid, .uid = credentials.uid};
    }
  }
}

template <class T>
void Append(msghdr& message, int type, const T& value) {
  auto* at = static_cast<std::byte*>(message.msg_control) + message.msg_controllen;
  auto* header = reinterpret_cast<cmsghdr*>(at);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = type;
  header->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(header), &value, sizeof value);
  message.msg_controllen += CMSG_SPACE(sizeof value);
}

}  // namespace

ReceiveResult ReceivePacket(int socket, ReceivedPacket& packet, Descriptors descriptors) {
  packet.size = 0;
  packet.oversize = packet.control_lost = false;
  packet.descriptors.clear();
  packet.credentials.reset();
  iovec part{.iov_base = packet.data.data(), .iov_len = packet.data.size()};
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control;
  msghdr message{};
  ssize_t got = -1;
  // If the peer closed its end with data unread, one receive fails with ECONNRESET, and the next
  // ones return what the peer had sent.
  for (bool reset = false;;) {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = descriptors == Descriptors::kTake ? control.size() : kCredentialsBytes;
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got >= 0 || (errno != EINTR && (errno != ECONNRESET || reset))) break;
    reset = errno == ECONNRESET || reset;
  }
  if (got < 0) {
    return errno == EAGAIN ? ReceiveResult::kNothingYet : ReceiveResult::kClosed;
  }
  TakeControl(message, packet);
  if (got == 0 && !packet.credentials && packet.descriptors.empty()) return ReceiveResult::kClosed;
  packet.size = static_cast<size_t>(got);
  packet.oversize = (message.msg_flags & MSG_TRUNC) != 0;
  packet.control_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  return ReceiveResult::kPacket;
}

SendResult SendPacket(int socket, std::span<const std::byte> bytes, const SendExtras& extras) {
  iovec part{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  if (extras.credentials) {
    Append(message, SCM_CREDENTIALS, ucred{.pid = getpid(), .uid = geteuid(), .gid = getegid()});
  }
  if (extras.descriptor >= 0) Append(message, SCM_RIGHTS, extras.descriptor);
  if (message.msg_controllen == 0) message.msg_control = nullptr;
  for (;;) {
    if (sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return SendResult::kSent;
    if (errno == EINTR) continue;
    if (errno == EPERM && extras.descriptor >= 0) return SendResult::kRefused;
    return errno == EAGAIN || errno == ENOBUFS ? SendResult::kFull : SendResult::kClosed;
  }
}

}  // namespace larder
