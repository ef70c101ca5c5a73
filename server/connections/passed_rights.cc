#include "server/connections/passed_rights.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include "server/connections/descriptor_closer.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83  // Linux 6.16, all architectures except parisc and sparc
#endif
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76  // Linux 6.5
#endif

namespace larder {
namespace {

std::atomic<bool> pretend_old{false};

// StreamCarriesRights does not use the bytes, so all parts of its peek point to one small buffer.
constexpr size_t kScratchBytes = 4 << 10;
constexpr size_t kScratchParts = 1024;

struct Peek {
  ssize_t bytes = 0;
  bool carries = false;      // descriptors came with the bytes
  bool credentials = false;  // credentials came with the bytes
};

// REQUIRES: `control` is empty; or it has space for credentials and no more, and the kernel
// attaches credentials to every packet (SO_PASSCRED), so that no space is left for descriptors.
Peek PeekInto(int socket, std::span<iovec> parts, std::span<std::byte> control = {}) {
  Peek peek;
  msghdr message{};
  for (bool reset = false;;) {
    message = {};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    message.msg_control = control.empty() ? nullptr : control.data();
    message.msg_controllen = control.size();
    peek.bytes = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT);
    if (peek.bytes >= 0 || (errno != EINTR && (errno != ECONNRESET || reset))) break;
    // The kernel reports a reset once: at a packet socket before the packets that the peer had
    // sent, at a stream after its bytes.  The next peek finds what is left, or the end.
    reset = errno == ECONNRESET || reset;
  }
  if (peek.bytes < 0) return peek;
  peek.carries = (message.msg_flags & MSG_CTRUNC) != 0;
  peek.credentials = message.msg_controllen > 0;
  return peek;
}

// Descriptors may come with a byte that was sent out of band (MSG_OOB), and a peek sees such a byte
// only if it is received inline.  Otherwise the daemon never reads the byte, but the kernel drops
// it, and its descriptors, when a read or a close reaches it.
bool TakeOutOfBandInline(int socket) {
  const int on = 1;
  return setsockopt(socket, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on) == 0;
}

// Reads and discards what waits at the socket.  Returns true if nothing is left.  Returns false if
// it stopped at bytes that carry descriptors, or cannot be sure that no bytes do.
bool DrainClean(int socket) {
  if (!TakeOutOfBandInline(socket)) return false;  // needed if RefuseRights was not called
  // With SO_PASSCRED every packet comes with credentials, which distinguishes an empty packet from
  // the end.  A stream has no empty packets.
  int type = SOCK_STREAM;
  socklen_t size = sizeof type;
  if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) != 0) return false;
  const int on = 1;
  if (setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return false;
  std::array<std::byte, kScratchBytes> scratch;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(ucred))> control;
  for (;;) {
    iovec part{.iov_base = scratch.data(), .iov_len = scratch.size()};
    const Peek peek = PeekInto(socket, {&part, 1}, control);
    if (peek.carries) return false;
    if (peek.bytes < 0 || (peek.bytes == 0 && (type == SOCK_STREAM || !peek.credentials))) {
      return true;
    }
    // This removes as much of a stream as the peek saw, or a whole packet.
    if (recv(socket, scratch.data(), static_cast<size_t>(peek.bytes), MSG_DONTWAIT) < 0) {
      return errno == EAGAIN;
    }
  }
}

}  // namespace

bool RefuseRights(int socket) {
  // A service manager may have turned these options on; a peek cannot distinguish what they add
  // from descriptors.
  const int off = 0;
  for (const int option : {SO_PASSCRED, SO_PASSSEC, SO_PASSPIDFD}) {
    (void)setsockopt(socket, SOL_SOCKET, option, &off, sizeof off);
  }
  (void)TakeOutOfBandInline(socket);
  if (pretend_old.load(std::memory_order_relaxed)) return false;
  return setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) == 0;
}

void AllowRights(int socket) {
  const int on = 1;
  // Fails on an older kernel, which always allows descriptors.
  (void)setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &on, sizeof on);
}

bool KernelRefusesRights() {
  const FileDescriptor any(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return any && RefuseRights(any.get());
}

void PretendNoPassRights(bool pretend) { pretend_old.store(pretend); }

bool StreamCarriesRights(int socket) {
  int waiting = 0;
  if (ioctl(socket, SIOCINQ, &waiting) != 0) return true;
  std::array<std::byte, kScratchBytes> scratch;
  std::array<iovec, kScratchParts> parts;
  parts.fill({.iov_base = scratch.data(), .iov_len = scratch.size()});
  const Peek peek = PeekInto(socket, parts);
  // A peek that ends early met descriptors, or a byte that came out of band; one that fills all
  // parts may not have seen all bytes.
  return peek.carries || std::max<ssize_t>(peek.bytes, 0) < waiting ||
         peek.bytes == static_cast<ssize_t>(kScratchBytes * kScratchParts);
}

bool PacketCarriesRights(int socket) {
  std::byte first{};
  iovec part{.iov_base = &first, .iov_len = sizeof first};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(ucred))> control;
  return PeekInto(socket, {&part, 1}, control).carries;
}

ssize_t ReceiveStream(int socket, std::span<std::byte> room, bool kernel_refuses) {
  size_t wanted = room.size();
  if (!kernel_refuses) {
    iovec part{.iov_base = room.data(), .iov_len = room.size()};
    const Peek peek = PeekInto(socket, {&part, 1});
    if (peek.carries) errno = EPERM;
    if (peek.carries) return -1;
    if (peek.bytes <= 0) return peek.bytes;
    wanted = static_cast<size_t>(peek.bytes);  // bytes that arrived since the peek were not checked
  }
  return recv(socket, room.data(), wanted, MSG_DONTWAIT);
}

void CloseSocket(FileDescriptor socket, bool kernel_refuses) {
  if (kernel_refuses || !socket) return;  // the destructor of `socket` closes it
  // After the shutdown nothing more can be sent to the socket, so DrainClean sees everything.
  if (shutdown(socket.get(), SHUT_RDWR) != 0 || DrainClean(socket.get())) return;
  DescriptorCloser::OfProcess().Close(std::move(socket));
}

void CloseListener(FileDescriptor listener, bool may_carry) {
  if (may_carry) DescriptorCloser::OfProcess().Close(std::move(listener));
}

}  // namespace larder
