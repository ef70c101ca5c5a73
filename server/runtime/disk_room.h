// Whether a file system has what --disk-limit allows the disk tier.
//
// Files of the tier are allocated as they are needed, so a file system that is too small shows much
// later, as writes that fail.
// Thread-safety: any thread.
#pragma once

#include <string>

#include "storage/types.h"

namespace larder {

// How much less than `limit` the files in `directory` can take in all, where they take `taken` now;
// 0: enough, or the file system does not say.
[[nodiscard]] ByteCount DiskRoomLacking(const std::string& directory, ByteCount taken,
                                        ByteCount limit);

}  // namespace larder
