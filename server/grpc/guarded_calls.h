// Intercepts the reads, writes and closes of gRPC's sockets: to protect them against file
// descriptors that peers send, on kernels that cannot refuse such messages
// (server/connections/passed_rights.h), and to watch their bytes.
//
// gRPC reads without a buffer for descriptors.  So the kernel closes descriptors that arrive, in
// gRPC's thread, and such a close may block for as long as the sender chose.  Therefore this file
// defines recvmsg, sendmsg and close for the whole program: the shared library of gRPC finds these
// functions before libc's.
//
// Under a sanitizer, which defines the same names, and in a program in which shared libraries find
// other functions of these names, nothing is guarded or watched, and GuardsWork returns false.
// Ownership: this file owns the SocketWatches.  Thread-safety: any thread may call the functions.
// Locks: none of its own; a watch may take locks.
// Lifecycle: GuardSocket and WatchSocket before gRPC has the socket -> gRPC closes the socket,
// which ends the guard and destroys the watch.
// Limits: descriptors below 2^20, which is Linux's default maximum.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace larder {

// Sees the bytes of a socket, on the threads that read and write it.  At most one thread reads and
// one writes at a time.
class SocketWatch {
 public:
  // Called before the socket is closed, or when it gets another watch.
  virtual ~SocketWatch() = default;
  // `capacity` is the size of the buffer that the bytes were read into.  If OnReceived returns
  // false, the read fails with ECONNRESET, so that gRPC closes the socket.
  [[nodiscard]] virtual bool OnReceived(std::span<const std::byte> bytes, size_t capacity) = 0;
  virtual void OnSent(std::span<const std::byte> bytes) = 0;
};

// Until the socket is closed, gRPC's read of it fails with ECONNRESET if the bytes carry
// descriptors.  Returns false if the socket cannot be guarded (GuardsWork() returns false, or the
// descriptor is 2^20 or above); a peer may then be able to block the thread that reads the socket.
[[nodiscard]] bool GuardSocket(int socket);
// Shows `watch` the bytes of the socket until the socket is closed.  Only destroys `watch` if the
// descriptor is 2^20 or above.
// REQUIRES: GuardsWork() returns true.
void WatchSocket(int socket, std::unique_ptr<SocketWatch> watch);
// Returns true if a shared library, such as gRPC, calls the recvmsg, sendmsg and close of this
// file.
[[nodiscard]] bool GuardsWork();

}  // namespace larder
