#include "server/runtime/malloc_tuning.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

namespace larder {
namespace {

// Returns the anonymous resident bytes of this process, which do not include the pool.  Returns 0
// if the kernel does not report them.
size_t AnonymousBytes() {
  std::ifstream file("/proc/self/statm");
  size_t size = 0, resident = 0, shared = 0;
  if (!(file >> size >> resident >> shared)) return 0;
  return (resident - shared) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Returns about how many bytes are resident but not allocated, such as free memory in the arenas.
size_t UnallocatedBytes() {
  const struct mallinfo2 heap = mallinfo2();
  const size_t allocated = heap.uordblks + heap.hblkhd;
  const size_t resident = AnonymousBytes();
  return resident > allocated ? resident - allocated : 0;
}

// Makes kHeapReadyBytes of as many arenas writable, the first one excepted.  If the kernel commits
// no more than it has (vm.overcommit_memory = 2), glibc gives the bytes back at once, so that
// nothing is gained.
void ReadyArenas(int arenas) {
  // A thread that begins gets an arena that none uses, so all must have begun before one ends.
  std::barrier begun(arenas);
  std::vector<std::thread> threads;
  for (int i = 0; i < arenas; ++i) {
    threads.emplace_back([&begun] {
      constexpr size_t kPiece = kHeapMappedBytes / 2;  // larger ones may be no part of an arena
      std::array<void*, kHeapReadyBytes / kPiece> pieces;
      for (void*& piece : pieces) piece = std::malloc(kPiece);
      begun.arrive_and_wait();
      for (void* const piece : pieces) std::free(piece);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

// mallopt fails only for values that are out of range, so its results are ignored.
void KeepHeapWarm() {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int arenas = std::max(kHeapArenasLeast, cores);
  (void)mallopt(M_ARENA_MAX, arenas);
  (void)mallopt(M_MMAP_THRESHOLD, kHeapMappedBytes);
  (void)mallopt(M_TRIM_THRESHOLD, kHeapKeptBytes);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they replace the heap
  ReadyArenas(arenas - 1);
#endif
}

// Compares the unallocated bytes and not the size of the process, which also depends on how much is
// allocated.
void MallocTrimmer::Check() {
  const size_t now = UnallocatedBytes();
  least_ = std::min(least_, now);
  if (now < least_ + kHeapFreeBytes) return;
  (void)malloc_trim(0);
  least_ = UnallocatedBytes();  // what the trim could not return does not count
}

}  // namespace larder
