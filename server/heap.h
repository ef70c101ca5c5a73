// How the daemon's heap treats large messages.
//
// A Lookup by 131,072 token ids is a message of 512 KiB, which glibc by default maps anew for each
// message and unmaps after it: 450 us of page faults for 30 us of parsing.
#pragma once

#include <cstddef>

namespace larder {

// Allocations of more than this are mapped, and go back to the kernel at once.
inline constexpr int kHeapMappedBytes = 4 << 20;
// So much may lie free at the top of each malloc arena (there is about one per RPC thread) before
// it goes back.  What lies free below a live allocation stays, until TrimHeap.
inline constexpr int kHeapKeptBytes = 16 << 20;
// By so much may the process grow before what lies free of it is looked for.
inline constexpr size_t kHeapGrowthBytes = 32 << 20;
// Sets both for this process.  REQUIRES: before any thread is started.
void KeepHeapWarm();
// Gives free memory back to the kernel when the process has grown by kHeapGrowthBytes since the
// last time.  Returns at once otherwise.  It takes some ms where it gives back much, for which
// allocations of other threads may wait.
class HeapTrimmer {
 public:
  void Look();

 private:
  size_t least_ = 0;  // bytes that it has had since it was trimmed last
};

}  // namespace larder
