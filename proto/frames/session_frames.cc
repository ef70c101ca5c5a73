#include "proto/frames/session_frames.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace larder {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they lie in memory");

namespace {

struct Header {
  uint32_t length;
  uint16_t type;
  uint16_t version;
};
static_assert(sizeof(Header) == kSessionFrameHeaderBytes);

}  // namespace

std::array<char, kSessionFrameHeaderBytes> EncodeSessionFrameHeader(SessionFrameType type,
                                                                    size_t body_bytes) {
  return std::bit_cast<std::array<char, kSessionFrameHeaderBytes>>(
      Header{.length = static_cast<uint32_t>(body_bytes),
             .type = static_cast<uint16_t>(type),
             .version = kSessionFrameVersion});
}

// Returns the capacity that the bytes which Next has not returned need: twice as many and
// kRoomBytes more, so that each byte of a long frame is moved about once on average.
size_t SessionFrameReader::Wanted() const {
  const size_t left = end_ - begin_;
  return left == 0 ? kRoomBytes : 2 * left + kRoomBytes;
}

std::span<std::byte> SessionFrameReader::Room() {
  Trim();
  if (begin_ == end_) begin_ = end_ = 0;
  if (capacity_ - end_ < kRoomBytes) MoveTo(std::max(capacity_, Wanted()));
  return std::span(buffer_.get(), capacity_).subspan(end_);
}

void SessionFrameReader::Trim() {
  if (capacity_ > 4 * Wanted()) MoveTo(Wanted());
}

void SessionFrameReader::MoveTo(size_t capacity) {
  const size_t left = end_ - begin_;
  if (capacity == capacity_) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, left);
  } else {
    auto larger = std::make_unique_for_overwrite<std::byte[]>(capacity);
    if (left > 0) std::memcpy(larger.get(), buffer_.get() + begin_, left);
    buffer_ = std::move(larger);
    capacity_ = capacity;
  }
  begin_ = 0;
  end_ = left;
}

absl::StatusOr<std::optional<SessionFrame>> SessionFrameReader::Next() {
  awaited_ = 0;
  if (end_ - begin_ < kSessionFrameHeaderBytes) return std::nullopt;
  Header header;
  std::memcpy(&header, buffer_.get() + begin_, sizeof header);
  if (header.version != kSessionFrameVersion) {
    return absl::UnimplementedError(absl::StrCat("session frame version ", header.version,
                                                 " is unknown; this end knows version ",
                                                 kSessionFrameVersion));
  }
  const auto type = static_cast<SessionFrameType>(header.type);
  if (type != SessionFrameType::kMessage && type != SessionFrameType::kEnd) {
    return absl::UnimplementedError(
        absl::StrCat("session frame type ", header.type, " is unknown"));
  }
  if (header.length > body_bytes_max_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a session frame of ", header.length, " bytes exceeds the limit of ", body_bytes_max_));
  }
  const std::span body(buffer_.get() + begin_ + kSessionFrameHeaderBytes, header.length);
  if (end_ - begin_ < kSessionFrameHeaderBytes + body.size()) {
    awaited_ = body.size();
    return std::nullopt;
  }
  begin_ += kSessionFrameHeaderBytes + body.size();
  return SessionFrame{.type = type, .body = body};
}

}  // namespace larder
