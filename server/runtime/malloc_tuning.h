// How the daemon's heap treats large messages.
//
// A Lookup by 131,072 token ids is a message of 512 KiB.  With its defaults, glibc returned the
// memory of such messages to the kernel after each: 450 us of page faults for 30 us of parsing.
#pragma once

#include <cstddef>
#include <limits>

namespace larder {

// malloc may map allocations of this many bytes and more, and returns mapped ones to the kernel as
// soon as they are freed.
inline constexpr int kHeapMappedBytes = 4 << 20;
// malloc's limit of arenas is the number of cores, but at least this (glibc's default: eight per
// core).  Memory that is free in one arena is of no use to a thread that allocates from another:
// eight processes that flooded the daemon with long requests left 60 MiB free with 16 arenas, and
// 35 MiB with four.
inline constexpr int kHeapArenasLeast = 4;
// About how many free bytes malloc keeps at the top of an arena before it returns them to the
// kernel.  Memory that is free below a live allocation stays until the MallocTrimmer returns it.
inline constexpr int kHeapKeptBytes = 4 << 20;
// By how much the free memory must have grown before the MallocTrimmer returns it to the kernel.
inline constexpr size_t kHeapFreeBytes = 16 << 20;
// How many bytes of each arena but the first are writable from the start.  glibc makes 8 KiB more
// of an arena writable whenever it needs them, with mprotect, which waits for every thread that
// reads the process's memory map.  The kernel's khugepaged may be one (huge_pages.h): while fifty
// processes flooded the daemon, gRPC's polling threads waited in mprotect for up to 5 s.  An
// arena begins with 64 MiB of addresses; what is not used takes no memory.
inline constexpr size_t kHeapReadyBytes = 56 << 20;
// Applies the values above to this process.  Starts threads, which have ended when it returns.
// REQUIRES: no thread has been started yet.
void KeepHeapWarm();
// Check returns free memory to the kernel if that memory exceeds its minimum since the last trim by
// kHeapFreeBytes.  A trim that returns much memory takes several milliseconds, during which
// allocations of other threads may wait.  Thread-safety: none.
class MallocTrimmer {
 public:
  void Check();

 private:
  // The smallest number of resident, unallocated bytes seen since the last trim.
  size_t least_ = std::numeric_limits<size_t>::max() / 2;
};

}  // namespace larder
