// Keeps the memory of gRPC's connections for a while after gRPC has freed it.
//
// gRPC 1.51 (Debian 12) may write to the object of a connection after it has freed the object.  The
// reclaimer of gRPC's memory quota holds the object without a reference
// (src/core/lib/iomgr/tcp_posix.cc, maybe_post_reclaimer).  So a reclaimer that runs on one thread
// while the connection ends on another clears a flag and unlocks a mutex of the connection, in
// memory that may belong to another object by then.  Any process that may connect can cause this,
// with requests that are never completed, which fill the quota, and connections that come and go:
// about 10 such writes per minute, and after minutes a crash.  In later releases of gRPC the
// reclaimer holds a reference.
//
// So a program that is linked with this file delays each sized delete of an object of
// kEndpointBytes, by a second or more unless kFreedEndpointsMax objects wait.  Under a sanitizer,
// which has a heap of its own, the program does not delay it.
//
// Ownership: none.  Thread-safety: any thread.
// Locks: one, a leaf, acquired within operator delete.
// Limits: kFreedEndpointsMax objects are kept; beyond that the oldest one is freed at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace larder {

// The size of a grpc_tcp, gRPC's object for one end of a connection, in Debian 12's build
// (tests/server/grpc/freed_endpoints_test.cc checks it).
inline constexpr size_t kEndpointBytes = 944;
// An object is kept at least this long, unless kFreedEndpointsMax objects are kept.  After that
// time it waits for further objects to be added: each of these frees up to two old ones.
inline constexpr std::chrono::seconds kKeepFreedEndpoint{1};
// If this many objects are kept (7.4 MiB), the oldest one is freed sooner; under attack 1,400
// objects per second were seen.
inline constexpr size_t kFreedEndpointsMax = 8'192;

// Returns how many objects have been kept so far; 0 under a sanitizer.
[[nodiscard]] uint64_t FreedEndpoints();

}  // namespace larder
