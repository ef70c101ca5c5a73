#include "server/runtime/malloc_tuning.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace larder {
namespace {

// Of this process, without the pool; 0: the kernel does not say.
size_t AnonymousBytes() {
  std::ifstream file("/proc/self/statm");
  size_t size = 0, resident = 0, shared = 0;
  if (!(file >> size >> resident >> shared)) return 0;
  return (resident - shared) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Resident, and not allocated: what lies free in the arenas, stacks, and what is mapped otherwise.
size_t UnallocatedBytes() {
  const struct mallinfo2 heap = mallinfo2();
  const size_t allocated = heap.uordblks + heap.hblkhd;
  const size_t resident = AnonymousBytes();
  return resident > allocated ? resident - allocated : 0;
}

}  // namespace

// They fail only for values that are out of range.
void KeepHeapWarm() {
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  (void)mallopt(M_ARENA_MAX, std::max(kHeapArenasLeast, cores));
  (void)mallopt(M_MMAP_THRESHOLD, kHeapMappedBytes);
  (void)mallopt(M_TRIM_THRESHOLD, kHeapKeptBytes);
}

// Not by how much the process has grown: what a burst of messages leaves behind would stay for as
// long as nothing grows beyond it.
void MallocTrimmer::Check() {
  const size_t now = UnallocatedBytes();
  least_ = std::min(least_, now);
  if (now < least_ + kHeapFreeBytes) return;
  (void)malloc_trim(0);
  least_ = UnallocatedBytes();  // what cannot be given back: another trim would be in vain
}

}  // namespace larder
