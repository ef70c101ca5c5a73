#include "server/grpc/guarded_calls.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include "proto/frames/file_descriptor.h"
#include "server/connections/passed_rights.h"
#include "storage/check.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LARDER_GUARDS_CALLS 0
#else
#define LARDER_GUARDS_CALLS 1
#endif

namespace larder {
namespace {

constexpr size_t kDescriptorsMax = size_t{1} << 20;

// `guarded` and `watches` are indexed by descriptor number; only the pages of numbers in use take
// memory.
std::array<std::atomic<bool>, kDescriptorsMax> guarded;
std::array<std::atomic<SocketWatch*>, kDescriptorsMax> watches;

bool IsInTable(int fd) { return static_cast<size_t>(fd) < kDescriptorsMax; }  // false if negative

#if LARDER_GUARDS_CALLS

constexpr size_t kPartsMax = 16;  // gRPC reads into four

bool IsGuarded(int fd) {
  return IsInTable(fd) && guarded[static_cast<size_t>(fd)].load(std::memory_order_relaxed);
}

SocketWatch* WatchOf(int fd) {
  return IsInTable(fd) ? watches[static_cast<size_t>(fd)].load(std::memory_order_acquire) : nullptr;
}

// Visits the first `bytes` bytes of a message, part by part with the part's capacity.  Stops and
// returns false if `visit` returns false.
template <class Visit>
bool VisitParts(const msghdr& message, size_t bytes, Visit visit) {
  for (size_t i = 0; i < message.msg_iovlen && bytes != 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t length = std::min(part.iov_len, bytes);
    const std::span piece(static_cast<const std::byte*>(part.iov_base), length);
    if (!visit(piece, part.iov_len)) return false;
    bytes -= length;
  }
  return true;
}

ssize_t KernelRecvmsg(int fd, msghdr* message, int flags) {
  return syscall(SYS_recvmsg, fd, message, flags);
}

// Peeks first, then reads the same bytes unless they carry descriptors.
ssize_t GuardedRecvmsg(int fd, msghdr* message, int flags) {
  std::array<iovec, kPartsMax> parts;
  msghdr limited = *message;
  limited.msg_iovlen = std::min<size_t>(message->msg_iovlen, kPartsMax);
  std::copy_n(message->msg_iov, limited.msg_iovlen, parts.begin());
  limited.msg_iov = parts.data();
  const ssize_t seen = KernelRecvmsg(fd, &limited, flags | MSG_PEEK);
  if (seen <= 0) return seen;
  if ((limited.msg_flags & MSG_CTRUNC) != 0) {
    errno = ECONNRESET;  // makes gRPC close the socket, which calls close() below
    return -1;
  }
  auto left = static_cast<size_t>(seen);
  for (size_t i = 0; i < limited.msg_iovlen; ++i) {
    parts[i].iov_len = std::min(parts[i].iov_len, left);
    left -= parts[i].iov_len;
  }
  const ssize_t got = KernelRecvmsg(fd, &limited, flags);
  message->msg_flags = limited.msg_flags;
  message->msg_controllen = limited.msg_controllen;
  message->msg_namelen = limited.msg_namelen;
  return got;
}

#endif

}  // namespace

bool GuardSocket(int socket) {
  if (!GuardsWork() || !IsInTable(socket)) return false;
  guarded[static_cast<size_t>(socket)].store(true);
  return true;
}

void WatchSocket(int socket, std::unique_ptr<SocketWatch> watch) {
  LARDER_CHECK(GuardsWork());
  if (IsInTable(socket)) delete watches[static_cast<size_t>(socket)].exchange(watch.release());
}

bool GuardsWork() {
#if LARDER_GUARDS_CALLS
  // Looks up the symbols as a shared library would.
  static const bool work = dlsym(RTLD_DEFAULT, "recvmsg") == reinterpret_cast<void*>(&::recvmsg) &&
                           dlsym(RTLD_DEFAULT, "sendmsg") == reinterpret_cast<void*>(&::sendmsg) &&
                           dlsym(RTLD_DEFAULT, "close") == reinterpret_cast<void*>(&::close);
  return work;
#else
  return false;
#endif
}

}  // namespace larder

#if LARDER_GUARDS_CALLS

extern "C" {

__attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const bool plain = message->msg_control == nullptr || message->msg_controllen == 0;
  const bool peeks = (flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0;
  const ssize_t got = larder::IsGuarded(fd) && plain && !peeks
                          ? larder::GuardedRecvmsg(fd, message, flags)
                          : larder::KernelRecvmsg(fd, message, flags);
  larder::SocketWatch* const watch = got > 0 && !peeks ? larder::WatchOf(fd) : nullptr;
  if (watch == nullptr) return got;
  const auto tell = [watch](auto bytes, size_t capacity) {
    return watch->OnReceived(bytes, capacity);
  };
  if (larder::VisitParts(*message, static_cast<size_t>(got), tell)) return got;
  errno = ECONNRESET;
  return -1;
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const ssize_t sent = syscall(SYS_sendmsg, fd, message, flags);
  if (larder::SocketWatch* const watch = sent > 0 ? larder::WatchOf(fd) : nullptr) {
    (void)larder::VisitParts(*message, static_cast<size_t>(sent), [watch](auto bytes, size_t) {
      watch->OnSent(bytes);
      return true;
    });
  }
  return sent;
}

__attribute__((visibility("default"))) int close(int fd) {
  if (larder::WatchOf(fd) != nullptr)
    delete larder::watches[static_cast<size_t>(fd)].exchange(nullptr);
  if (larder::IsGuarded(fd) && larder::guarded[static_cast<size_t>(fd)].exchange(false)) {
    larder::CloseSocket(larder::FileDescriptor(fd), /*kernel_refuses=*/false);
    return 0;
  }
  return static_cast<int>(syscall(SYS_close, fd));
}

}  // extern "C"

#endif
