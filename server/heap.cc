#include "server/heap.h"

#include <malloc.h>

namespace larder {

// Both fail only for values that are out of range.
void KeepHeapWarm() {
  (void)mallopt(M_MMAP_THRESHOLD, kHeapMappedBytes);
  (void)mallopt(M_TRIM_THRESHOLD, kHeapKeptBytes);
}

void TrimHeap() {
  if (mallinfo2().fordblks > kHeapFreeBytes) (void)malloc_trim(0);
}

}  // namespace larder
