// How the daemon's heap treats large messages.
//
// A Lookup by 131,072 token ids is a message of 512 KiB.  By default glibc maps memory for each
// such message and unmaps it afterwards: 450 us of page faults for 30 us of parsing.
#pragma once

#include <cstddef>
#include <limits>

namespace larder {

// malloc maps allocations larger than this, and returns them to the kernel as soon as they are
// freed.
inline constexpr int kHeapMappedBytes = 4 << 20;
// malloc may use as many arenas as there are cores, but at least this many (glibc: eight per core).
// Memory that is free in one arena is of no use to a thread that allocates from another: eight
// processes that flooded the daemon with long requests left 60 MiB free with 16 arenas, and 35 MiB
// with four.
inline constexpr int kHeapArenasLeast = 4;
// When more than this is free at the top of an arena, malloc returns it to the kernel.  Memory that
// is free below a live allocation stays until the MallocTrimmer returns it.
inline constexpr int kHeapKeptBytes = 4 << 20;
// When this many bytes more are free in all arenas together than at the minimum since the last
// trim, the MallocTrimmer returns the free memory to the kernel.
inline constexpr size_t kHeapFreeBytes = 16 << 20;
// Applies these limits to this process, except kHeapFreeBytes, which only MallocTrimmer uses.
// REQUIRES: no thread has been started yet.
void KeepHeapWarm();
// Check returns free memory to the kernel if the resident free memory exceeds the smallest amount
// that was seen since the last trim by kHeapFreeBytes.  Otherwise Check returns at once.  A trim
// that returns much memory takes several milliseconds, during which allocations of other threads
// may wait.
class MallocTrimmer {
 public:
  void Check();

 private:
  // The smallest number of resident, unallocated bytes seen since the last trim.
  size_t least_ = std::numeric_limits<size_t>::max() / 2;
};

}  // namespace larder
