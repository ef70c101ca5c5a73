// How the bytes of a block lie inside its extent: a table of segments in layer order.
//
// Each segment starts at the first multiple of 64 B after the one before it, and padding is zero.
// Offsets follow from the lengths, so the table does not contain them.  Values only: no ownership,
// no threads.
// Limits: 1 to 1,024 segments and 1 to 1,024 layers per block, 1 byte to 1 GiB - 1 per segment.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "storage/types.h"

namespace larder {

inline constexpr uint32_t kSegmentsMax = 1024;
inline constexpr uint32_t kSegmentBytesMax = (1u << 30) - 1;

struct Segment {
  uint16_t layers = 1;  // consecutive layers in this segment
  Codec codec = Codec::kIdentity;
  uint32_t bytes = 0;  // stored length
  uint64_t xxh3 = 0;   // XXH3-64, seed 0, of the stored bytes; meaningful if the table is `hashed`
  // The length of an encoded segment after decoding; 0 if unknown, or if the segment is not
  // encoded.
  uint32_t raw_bytes = 0;

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Consecutive segments, with indices [first, first + count), and where they lie in the payload.
struct SegmentRange {
  uint32_t first = 0;
  uint32_t count = 0;
  uint64_t begin = 0;  // byte offset of the first segment, a multiple of 64
  uint64_t end = 0;    // one past the last byte of the last segment, padding not included
};

struct SegmentTable {
  std::vector<Segment> segments;
  bool hashed = false;

  // Returns InvalidArgument, with a message for the client, if a limit in the header comment is
  // exceeded, if a codec or raw length is invalid, or if the segments do not have `layers` layers
  // in all.
  [[nodiscard]] absl::Status Validate(uint32_t layers) const;
  // The length of the payload in its extent: all segments, each except the last padded to 64 B.
  [[nodiscard]] ByteCount PayloadBytes() const;
  // The sum of the stored lengths, without padding: a byte stream sends this many bytes.
  [[nodiscard]] ByteCount StoredBytes() const;
  // Whether any segment is encoded, so that its bytes are not those that the engine wrote.
  [[nodiscard]] bool encoded() const;
  // Returns the table that describes the payload after decoding: encoded segments become identity
  // segments, and the table is not hashed if there was one.  An encoded segment of unknown raw
  // length is left unchanged.
  [[nodiscard]] SegmentTable Decoded() const;
  // Writes to *out the segments of layers [first_layer, first_layer + layers); layers == 0 means
  // all layers from first_layer on.  Returns InvalidArgument if the range does not begin and end at
  // segment borders.
  [[nodiscard]] absl::Status Range(uint32_t first_layer, uint32_t layers, SegmentRange* out) const;

  friend bool operator==(const SegmentTable&, const SegmentTable&) = default;
};

// Returns the distance from the beginning of a payload of this length to the beginning of the
// payload that follows it in memory.
[[nodiscard]] constexpr uint64_t PayloadStride(uint64_t payload_bytes) {
  return RoundUp(payload_bytes, kSegmentAlign);
}

// Steps through the segments of a payload in order.
//
//   SegmentCursor at;  // or SegmentCursor(range.begin)
//   for (const Segment& segment : table.segments) Use(at.Next(payload, segment.bytes));
class SegmentCursor {
 public:
  constexpr explicit SegmentCursor(uint64_t begin = 0) : next_(begin), end_(begin) {}

  // Returns the offset of the next segment, which has `bytes` bytes, and steps over the segment.
  constexpr uint64_t Next(uint64_t bytes) {
    const uint64_t begin = next_;
    end_ = begin + bytes;
    next_ = PayloadStride(end_);
    return begin;
  }
  // As above, but returns the segment's bytes in `payload`.
  // REQUIRES: the segment lies inside the payload.
  template <class Byte>
  constexpr std::span<Byte> Next(std::span<Byte> payload, uint64_t bytes) {
    return payload.subspan(Next(bytes), bytes);
  }
  // Returns one past the last byte of the segment that was stepped over last.
  [[nodiscard]] constexpr uint64_t end() const { return end_; }

 private:
  uint64_t next_;
  uint64_t end_;
};

// Steps through the segments of a payload that is being written.  The caller writes each segment;
// the PayloadWriter writes zeros from the segment's end to the next multiple of 64 B, or to the end
// of the payload.
class PayloadWriter {
 public:
  // The bytes must outlive the PayloadWriter.
  explicit PayloadWriter(std::span<std::byte> payload) : payload_(payload) {}

  // Returns the bytes of the next segment, for the caller to write, and writes the zeros behind it.
  // REQUIRES: the segment lies inside the payload.
  [[nodiscard]] std::span<std::byte> Next(uint64_t bytes);
  // Returns all bytes from the next segment on, for a segment whose length is known only after it
  // has been written.  The caller then calls Next with that length.
  [[nodiscard]] std::span<std::byte> Rest() const { return payload_.subspan(next_); }

 private:
  const std::span<std::byte> payload_;
  uint64_t next_ = 0;
};

// Returns a table of `segments` identity segments of `bytes_each` bytes and one layer each, not
// hashed.
[[nodiscard]] SegmentTable UniformTable(uint32_t segments, uint32_t bytes_each);

// Returns the XXH3-64 of the bytes, with seed 0.
[[nodiscard]] uint64_t HashBytes(std::span<const std::byte> bytes);

// Hashes every segment of a payload that is laid out as the table says, and sets `hashed`.
void HashPayload(std::span<const std::byte> payload, SegmentTable* table);
// Returns the index of the first segment in `range` whose bytes do not match its hash, or -1 if all
// match.
// REQUIRES: table.hashed; `payload` begins at the first byte of the whole payload and covers the
// segments of `range`.
[[nodiscard]] int FirstDamaged(std::span<const std::byte> payload, const SegmentTable& table,
                               const SegmentRange& range);

}  // namespace larder
