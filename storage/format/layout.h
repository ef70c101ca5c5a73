// How the bytes of a block lie inside its extent: a table of segments in layer order.
//
// The first segment starts at offset 0, and each other one at the first multiple of 64 B at or
// after the end of the segment before it.  The writer of a payload writes the bytes between two
// segments as zeros, and readers ignore them.  Offsets follow from the lengths, so a SegmentTable
// has none.
// Thread-safety: values and pure functions.
// Limits: 1 to 1,024 segments and 1 to 1,024 layers per block, 1 to 2^30 - 1 bytes per segment.
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

  // Returns InvalidArgument, with a message for the client, unless all of this holds: the block has
  // 1 to 1,024 layers and 1 to 1,024 segments; each segment has at least 1 layer, 1 to 2^30 - 1
  // bytes, and a known codec; only an encoded segment has a raw length, of at most 2^30 - 1 bytes;
  // the segments have `layers` layers in all.
  [[nodiscard]] absl::Status Validate(uint32_t layers) const;
  // Returns the length of the payload in its extent: the segments, each except the last one padded
  // to a multiple of 64 B.
  [[nodiscard]] ByteCount PayloadBytes() const;
  // Returns the sum of the stored lengths of the segments, without padding.
  [[nodiscard]] ByteCount StoredBytes() const;
  // Returns true if at least one segment is encoded, that is, has a codec other than identity.
  [[nodiscard]] bool encoded() const;
  // Returns the table of the payload after decoding: each encoded segment whose raw length is known
  // becomes an identity segment of that length, without a hash.  An encoded segment of unknown raw
  // length stays as it is.  If any segment changed, the result is not `hashed`.
  [[nodiscard]] SegmentTable Decoded() const;
  // Sets *out to the segments of layers [first_layer, first_layer + layers), counted from the
  // block's own first layer; layers == 0 means all layers from first_layer on.  Returns
  // InvalidArgument, and leaves *out unchanged, if the range does not begin and end at segment
  // borders inside the block.
  [[nodiscard]] absl::Status Range(uint32_t first_layer, uint32_t layers, SegmentRange* out) const;

  friend bool operator==(const SegmentTable&, const SegmentTable&) = default;
};

// Returns `payload_bytes` rounded up to a multiple of 64 bytes.  If payloads of this length lie one
// after the other, each at a multiple of 64 bytes, this is the distance between their beginnings.
[[nodiscard]] constexpr uint64_t PayloadStride(uint64_t payload_bytes) {
  return RoundUp(payload_bytes, kSegmentAlign);
}

// Returns a table of `segments` identity segments of `bytes_each` bytes and one layer each, not
// hashed.
[[nodiscard]] SegmentTable UniformTable(uint32_t segments, uint32_t bytes_each);

// Returns the XXH3-64 of the bytes, with seed 0.
[[nodiscard]] uint64_t HashBytes(std::span<const std::byte> bytes);

// Writes the hash of every segment of a payload into *table, and sets table->hashed.
// REQUIRES: the payload is laid out as the table says.
void HashPayload(std::span<const std::byte> payload, SegmentTable* table);
// Returns the index in the table of the first segment of `range` whose bytes do not match its hash,
// or -1 if all match.
// REQUIRES: table.hashed; `payload` begins at the first byte of the whole payload and covers the
// segments of `range`.
[[nodiscard]] int FirstDamaged(std::span<const std::byte> payload, const SegmentTable& table,
                               const SegmentRange& range);

}  // namespace larder
