// How much memory this host still has for us: what a pool must fit in.
//
// A snapshot, not a promise: another process may take the memory a moment later.
// Thread-safety: pure reads of /proc and /sys; no state.
#pragma once

#include <string>

#include "storage/types.h"

namespace larder {

struct HostMemory {
  // Without swapping: MemAvailable, or less where a control group of ours (v1 or v2, or any above
  // it) leaves less; its page cache counts as available.  The largest value when nothing says.
  ByteCount available{};
  // In 2 MiB hugetlb pages that nobody has reserved, or less where a control group of ours leaves
  // less.  They are not part of `available`.
  ByteCount huge_pages_free{};
};

// Reads the files below `root` ("" is the host; a test gives a directory of its own).  What cannot
// be read or parsed limits nothing.
[[nodiscard]] HostMemory ReadHostMemory(const std::string& root = "");

}  // namespace larder
