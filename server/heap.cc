#include "server/heap.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace larder {
namespace {

// Of this process, without the pool; 0: the kernel does not say.
size_t AnonymousBytes() {
  std::ifstream file("/proc/self/statm");
  size_t size = 0, resident = 0, shared = 0;
  if (!(file >> size >> resident >> shared)) return 0;
  return (resident - shared) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

// Both fail only for values that are out of range.
void KeepHeapWarm() {
  (void)mallopt(M_MMAP_THRESHOLD, kHeapMappedBytes);
  (void)mallopt(M_TRIM_THRESHOLD, kHeapKeptBytes);
}

void HeapTrimmer::Look() {
  const size_t now = AnonymousBytes();
  least_ = std::min(least_, now);
  if (now < least_ + kHeapGrowthBytes) return;
  (void)malloc_trim(0);
  least_ = AnonymousBytes();
}

}  // namespace larder
