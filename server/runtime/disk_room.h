// Checks whether a file system has the space that --disk-limit allows the disk tier to use.
//
// The disk tier allocates its files as it needs them, so without this check a file system that is
// too small is noticed only when writes fail.
// Thread-safety: any thread may call it.
#pragma once

#include <string>

#include "storage/types.h"

namespace larder {

// Returns how many bytes of free space are missing for the files in `directory`, which occupy
// `taken` now, to grow to `limit`.  Returns 0 if nothing is missing, or if the file system does not
// report its free space.
[[nodiscard]] ByteCount DiskRoomLacking(const std::string& directory, ByteCount taken,
                                        ByteCount limit);

}  // namespace larder
