#include "server/runtime/disk_room.h"

#include <sys/statvfs.h>

namespace larder {

ByteCount DiskRoomLacking(const std::string& directory, ByteCount taken, ByteCount limit) {
  struct statvfs there {};
  if (statvfs(directory.c_str(), &there) != 0) return ByteCount(0);
  const ByteCount most = taken + ByteCount(uint64_t{there.f_bavail} * there.f_frsize);
  return most < limit ? limit - most : ByteCount(0);
}

}  // namespace larder
