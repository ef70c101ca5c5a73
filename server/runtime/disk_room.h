// Checks whether a file system has the space that --disk-limit allows the disk tier to use.
//
// The disk tier allocates its files as it needs them, so without this check a file system that is
// too small is noticed much later, when writes fail.
// Thread-safety: any thread may call it.
#pragma once

#include <string>

#include "storage/types.h"

namespace larder {

// Returns by how much the space that the files in `directory` can ever occupy falls short of
// `limit`; they occupy `taken` now.  Returns 0 if the space is sufficient, or if the file system
// does not report it.
[[nodiscard]] ByteCount DiskRoomLacking(const std::string& directory, ByteCount taken,
                                        ByteCount limit);

}  // namespace larder
