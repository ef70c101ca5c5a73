// How the daemon's heap treats large messages.
//
// A Lookup by 131,072 token ids is a message of 512 KiB, which glibc by default maps anew for each
// message and unmaps after it: 450 us of page faults for 30 us of parsing.
#pragma once

#include <cstddef>
#include <limits>

namespace larder {

// Allocations of more than this are mapped, and go back to the kernel at once.
inline constexpr int kHeapMappedBytes = 4 << 20;
// There are as many malloc arenas as cores, or these (glibc: eight for each core).  What one thread
// has left free in its arena is of no use to a thread of another: eight processes that flooded the
// daemon with long requests left 60 MiB so in 16 arenas, 35 in four.
inline constexpr int kHeapArenasLeast = 4;
// So much may lie free at the top of each arena before it goes back.  What lies free below a live
// allocation stays, until the MallocTrimmer gives it back.
inline constexpr int kHeapKeptBytes = 4 << 20;
// So much may lie free in all arenas together, beyond what is always there, before it goes back.
inline constexpr size_t kHeapFreeBytes = 16 << 20;
// Sets all but the last for this process.  REQUIRES: before any thread is started.
void KeepHeapWarm();
// Gives free memory back to the kernel when kHeapFreeBytes more of it are resident than have been
// at the least since the last time.  Returns at once otherwise.  It takes some ms where it gives
// back much, for which allocations of other threads may wait.
class MallocTrimmer {
 public:
  void Check();

 private:
  // Resident bytes that nobody had allocated, at the least since the last trim.
  size_t least_ = std::numeric_limits<size_t>::max() / 2;
};

}  // namespace larder
