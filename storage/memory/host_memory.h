// How much memory this host has left for us, in which a pool must fit.
//
// A snapshot, not a promise: another process may take the memory a moment later.
// Thread-safety: only reads /proc and /sys; no state.
#pragma once

#include <string>

#include "storage/types.h"

namespace larder {

struct HostMemory {
  // Memory that can be used without swapping: MemAvailable, or less if a control group of this
  // process, or one above it (v1 or v2), leaves less.  A group's page cache counts as available.
  // The largest value if nothing limits it.
  ByteCount available{};
  // Bytes in free 2 MiB hugetlb pages that no process has reserved, or less if a control group
  // leaves less.  `available` does not include them.
  ByteCount huge_pages_free{};
};

// Reads the files below `root`; "" is the host, a test passes a directory of its own.  A file that
// cannot be read or parsed is no limit.
[[nodiscard]] HostMemory ReadHostMemory(const std::string& root = "");

}  // namespace larder
