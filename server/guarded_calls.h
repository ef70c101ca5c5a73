// Reads and closes of gRPC's sockets, made safe against descriptors that peers send, for kernels
// that cannot refuse them (server/passed_rights.h).
//
// gRPC reads without room for descriptors: the kernel then drops what came, in gRPC's thread, and
// that may wait for as long as the sender chose.  So this defines recvmsg and close for the whole
// program, as the shared gRPC finds them here before it finds those of libc; for a socket that is
// not guarded both are the kernel's call and one load more.
//
// Does nothing where gRPC is linked statically with its own libc calls, or under a sanitizer, which
// defines the same names: GuardsWork says so.
// Ownership: none.  Thread-safety: all functions from any thread.
// Lifecycle: GuardSocket before gRPC has the socket -> gRPC closes it, which ends the guard.
// Limits: descriptors below 2^20, which is the most that Linux gives unless told otherwise.
#pragma once

namespace larder {

// Returns false if it cannot: then a peer may hold up the thread that reads this socket.
[[nodiscard]] bool GuardSocket(int socket);
[[nodiscard]] bool GuardsWork();

}  // namespace larder
