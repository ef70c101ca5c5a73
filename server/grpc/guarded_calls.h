// Reads, writes and closes of gRPC's sockets: made safe against descriptors that peers send, for
// kernels that cannot refuse them (server/connections/passed_rights.h), and watched.
//
// gRPC reads without room for descriptors: the kernel then drops what came, in gRPC's thread, and
// that may wait for as long as the sender chose.  So this defines recvmsg, sendmsg and close for
// the whole program, as the shared gRPC finds them here before it finds those of libc; for a socket
// that is neither guarded nor watched each is the kernel's call and two loads more.
//
// Does nothing where gRPC is linked statically with its own libc calls, or under a sanitizer, which
// defines the same names: GuardsWork says so.
// Ownership: of the watches.  Thread-safety: all functions from any thread.
// Lifecycle: GuardSocket and WatchSocket before gRPC has the socket -> gRPC closes it, which ends
// both.
// Limits: descriptors below 2^20, which is the most that Linux gives unless told otherwise.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace larder {

// Sees the bytes of a socket, on the threads that read and write it; one reads at a time, and one
// writes.
class SocketWatch {
 public:
  // The socket is about to be closed.
  virtual ~SocketWatch() = default;
  // `capacity`: of the buffer that they were read into.
  // False: the read fails with ECONNRESET, so that gRPC closes the socket.
  [[nodiscard]] virtual bool OnReceived(std::span<const std::byte> bytes, size_t capacity) = 0;
  virtual void OnSent(std::span<const std::byte> bytes) = 0;
};

// Returns false if it cannot: then a peer may hold up the thread that reads this socket.
[[nodiscard]] bool GuardSocket(int socket);
// REQUIRES: GuardsWork.  No-op beyond the limit above.
void WatchSocket(int socket, std::unique_ptr<SocketWatch> watch);
[[nodiscard]] bool GuardsWork();

}  // namespace larder
