// Intercepts the reads, writes and closes of gRPC's sockets: to protect them against descriptors
// that peers send, on kernels that cannot refuse these (server/connections/passed_rights.h), and to
// watch their bytes.
//
// gRPC reads without a buffer for descriptors.  So the kernel closes descriptors that arrive, in
// gRPC's thread, and such a close may block for as long as the sender chose.  Therefore this file
// defines recvmsg, sendmsg and close for the whole program: the shared library of gRPC finds these
// functions before libc's.  For a socket that is neither guarded nor watched each costs two loads
// more than the system call.
//
// The functions below do nothing if gRPC is linked statically with its own libc calls, or under a
// sanitizer, which defines the same names; GuardsWork then returns false.
// Ownership: this file owns the watches.  Thread-safety: any thread may call the functions.
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
  // Destroyed when the socket is about to be closed.
  virtual ~SocketWatch() = default;
  // `capacity` is the size of the buffer that the bytes were read into.  If OnReceived returns
  // false, the read fails with ECONNRESET, so that gRPC closes the socket.
  [[nodiscard]] virtual bool OnReceived(std::span<const std::byte> bytes, size_t capacity) = 0;
  virtual void OnSent(std::span<const std::byte> bytes) = 0;
};

// Returns false if the socket cannot be guarded; a peer can then block the thread that reads it.
[[nodiscard]] bool GuardSocket(int socket);
// Does nothing for a descriptor of 2^20 or above.  REQUIRES: GuardsWork().
void WatchSocket(int socket, std::unique_ptr<SocketWatch> watch);
// Returns true if gRPC calls the recvmsg, sendmsg and close of this file.
[[nodiscard]] bool GuardsWork();

}  // namespace larder
