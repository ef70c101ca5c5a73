// The memory of gRPC's connections, kept for a while after gRPC has freed it.
//
// gRPC 1.51 (Debian 12) writes to a connection that it has freed.  The reclaimer of its memory
// quota holds the connection without a reference (src/core/lib/iomgr/tcp_posix.cc,
// maybe_post_reclaimer), so a reclaimer that runs on one thread while the connection ends on
// another clears a flag of it and unlocks a mutex of it, in memory that another object may have by
// then.  Any process that may connect can bring it about, with requests that never come whole,
// which fill the quota, and connections that come and go: some 10 such writes a minute, and after
// minutes a crash.  Later releases hold a reference.
//
// So a program that is linked with this file frees what is as large as such a connection a second
// late.  Under a sanitizer, whose heap is its own, it does not.
//
// Ownership: none.  Thread-safety: any thread.
// Limits: kFreedEndpointsMax are kept; beyond, the one that was freed first goes at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace larder {

// The size of a grpc_tcp, gRPC's object for one end of a connection, as Debian 12 has compiled it
// (tests/server/grpc/freed_endpoints_test.cc asks gRPC).
inline constexpr size_t kEndpointBytes = 944;
// Such an object is freed so long after gRPC has freed it, at the next such call...
inline constexpr std::chrono::seconds kKeepFreedEndpoint{1};
// ...but the oldest one sooner when so many wait (8 MiB); 1,400 a second were seen under attack.
inline constexpr size_t kFreedEndpointsMax = 8'192;

// How many objects of that size this program has freed since it started, those that it keeps
// included.
[[nodiscard]] uint64_t FreedEndpoints();

}  // namespace larder
