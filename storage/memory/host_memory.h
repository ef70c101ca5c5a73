// How much memory of this host is available to the daemon, mainly for its pool.
//
// The values are a snapshot: another process may take the memory a moment later.
// Thread-safety: only reads /proc and /sys; no state.
#pragma once

#include <string>

#include "storage/types.h"

namespace larder {

struct HostMemory {
  // Memory that can be used without swapping, in bytes: MemAvailable of /proc/meminfo, or less if
  // the limit of a control group of this process, or of a group above it (v1 or v2), leaves less.
  // A group's page cache counts as available.  UINT64_MAX if there is no limit and MemAvailable is
  // unknown.
  ByteCount available{};
  // Bytes in free 2 MiB hugetlb pages that no process has reserved, or less if the limit of a
  // control group leaves less.  `available` does not include them.
  ByteCount huge_pages_free{};
};

// Reads /proc and /sys below `root`: "" for those of the host; a test passes a directory of its
// own.  A control group whose limit cannot be read or parsed counts as one without a limit.  If the
// number of free hugetlb pages cannot be read, it counts as 0.
[[nodiscard]] HostMemory ReadHostMemory(const std::string& root = "");

}  // namespace larder
