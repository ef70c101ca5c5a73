#include "server/runtime/malloc_tuning.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

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

}  // namespace

// mallopt fails only for values that are out of range, so its results are ignored.
void KeepHeapWarm() {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  (void)mallopt(M_ARENA_MAX, std::max(kHeapArenasLeast, cores));
  (void)mallopt(M_MMAP_THRESHOLD, kHeapMappedBytes);
  (void)mallopt(M_TRIM_THRESHOLD, kHeapKeptBytes);
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
