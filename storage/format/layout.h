// How the bytes of a block lie inside its extent: a table of segments in layer order.
//
// Segments start at multiples of 64 B inside the extent, in order; padding is zero.  Offsets are
// therefore never stored in memory: they follow from the lengths.  Values only: no ownership, no
// threads.
// Limits: 1..1,024 segments and layers a block, a segment 1 .. 1 GiB-1 bytes.
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
  uint16_t layers = 1;  // consecutive layers in it
  Codec codec = Codec::kIdentity;
  uint32_t bytes = 0;  // stored length
  uint64_t xxh3 = 0;  // XXH3-64, seed 0, of the stored bytes; meaningful when the table is `hashed`
  uint32_t raw_bytes = 0;  // of an encoded one, once it is decoded; 0: unknown, or not encoded

  friend bool operator==(const Segment&, const Segment&) = default;
};

// Consecutive segments [first, first + count), where the first begins inside the payload.
struct SegmentRange {
  uint32_t first = 0;
  uint32_t count = 0;
  uint64_t begin = 0;  // byte offset in the payload, multiple of 64
  uint64_t end = 0;    // one past the last stored byte
};

struct SegmentTable {
  std::vector<Segment> segments;
  bool hashed = false;

  // InvalidArgument with a sentence when a limit of the header comment is broken or layers do not
  // add up.
  [[nodiscard]] absl::Status Validate(uint32_t layers) const;
  // Of the extent: all segments, each but the last padded to 64 B.
  [[nodiscard]] ByteCount PayloadBytes() const;
  // Sum of stored lengths: what a byte stream carries.
  [[nodiscard]] ByteCount StoredBytes() const;
  // Some segment is not the engine's own bytes.
  [[nodiscard]] bool encoded() const;
  // Of the same segments once they are decoded: all identity, not hashed where any was encoded.
  // One whose raw bytes are unknown stays as it is.
  [[nodiscard]] SegmentTable Decoded() const;
  // Segments that hold layers [first_layer, first_layer + layers); layers == 0 means all from
  // first_layer. InvalidArgument when the range does not fall on segment borders.
  [[nodiscard]] absl::Status Range(uint32_t first_layer, uint32_t layers, SegmentRange* out) const;

  friend bool operator==(const SegmentTable&, const SegmentTable&) = default;
};

// One table for a block of `segments` equal identity segments of one layer each, not hashed.
[[nodiscard]] SegmentTable UniformTable(uint32_t segments, uint32_t bytes_each);

// XXH3-64, seed 0.
[[nodiscard]] uint64_t HashBytes(std::span<const std::byte> bytes);

// Hashes every segment of a payload that lies as the table says; sets `hashed`.
void HashPayload(std::span<const std::byte> payload, SegmentTable* table);
// Index of the first segment in [first, first + count) whose bytes do not match; -1 when all do.
// REQUIRES: table.hashed, payload covers those segments (payload[0] is the payload's byte 0).
[[nodiscard]] int FirstDamaged(std::span<const std::byte> payload, const SegmentTable& table,
                               const SegmentRange& range);

}  // namespace larder
