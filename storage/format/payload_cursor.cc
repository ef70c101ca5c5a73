#include "storage/format/payload_cursor.h"

#include <algorithm>
#include <cstring>

namespace larder {

std::span<std::byte> PayloadWriter::Next(uint64_t bytes) {
  const std::span<std::byte> segment = payload_.subspan(next_, bytes);
  const uint64_t end = next_ + bytes;
  next_ = std::min<uint64_t>(PayloadStride(end), payload_.size());
  std::memset(payload_.data() + end, 0, next_ - end);
  return segment;
}

}  // namespace larder
