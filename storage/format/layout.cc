#include "storage/format/layout.h"

// On x86-64 xxHash chooses the vector width at run time only through this header (46 GB/s with it,
// 20 GB/s without it).
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/format/payload_cursor.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

absl::Status ValidateSegment(size_t index, const Segment& segment) {
  if (segment.layers == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", index, " has no layers; it must have at least 1"));
  }
  if (segment.bytes == 0 || segment.bytes > kSegmentBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("segment ", index, " has ", segment.bytes,
                                                   " bytes; it must have 1 to ", kSegmentBytesMax));
  }
  if (segment.raw_bytes > (segment.codec == Codec::kIdentity ? 0 : kSegmentBytesMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment ", index, " has ", segment.raw_bytes,
                     " raw bytes; an encoded segment may have at most 1 GiB - 1, any other none"));
  }
  switch (segment.codec) {
    case Codec::kIdentity:
    case Codec::kLossless:
    case Codec::kQuantized:
    case Codec::kJoint:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("segment ", index, " has the unknown codec ", static_cast<int>(segment.codec)));
}

std::span<const std::byte> BytesAt(std::span<const std::byte> payload, uint64_t offset,
                                   const Segment& segment) {
  LARDER_CHECK(offset <= payload.size() && segment.bytes <= payload.size() - offset);
  return payload.subspan(offset, segment.bytes);
}

}  // namespace

absl::Status SegmentTable::Validate(uint32_t layers) const {
  if (layers == 0 || layers > kSegmentsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a block has ", layers, " layers; it must have 1 to ", kSegmentsMax));
  }
  if (segments.empty() || segments.size() > kSegmentsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a block has ", segments.size(),
                                                   " segments; it must have 1 to ", kSegmentsMax));
  }
  uint64_t sum = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    LARDER_RETURN_IF_ERROR(ValidateSegment(i, segments[i]));
    sum += segments[i].layers;
  }
  if (sum != layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("the segments hold ", sum, " layers in all, but the block has ", layers));
  }
  return absl::OkStatus();
}

ByteCount SegmentTable::PayloadBytes() const {
  SegmentCursor at;
  for (const Segment& segment : segments) (void)at.Next(segment.bytes);
  return ByteCount(at.end());
}

ByteCount SegmentTable::StoredBytes() const {
  uint64_t sum = 0;
  for (const Segment& segment : segments) sum += segment.bytes;
  return ByteCount(sum);
}

bool SegmentTable::encoded() const {
  return std::ranges::any_of(
      segments, [](const Segment& segment) { return segment.codec != Codec::kIdentity; });
}

SegmentTable SegmentTable::Decoded() const {
  SegmentTable raw = *this;
  for (Segment& segment : raw.segments) {
    if (segment.raw_bytes == 0) continue;
    segment = {.layers = segment.layers, .bytes = segment.raw_bytes};
    raw.hashed = false;
  }
  return raw;
}

absl::Status SegmentTable::Range(uint32_t first_layer, uint32_t layers, SegmentRange* out) const {
  const uint64_t wanted_end = uint64_t{first_layer} + layers;
  SegmentRange range;
  bool found = false;
  uint64_t layer = 0;
  SegmentCursor at;
  for (uint32_t i = 0; i < segments.size(); ++i) {
    const Segment& segment = segments[i];
    const uint64_t offset = at.Next(segment.bytes);
    if (layer == first_layer) {
      found = true;
      range.first = i;
      range.begin = offset;
    }
    layer += segment.layers;
    if (found) {
      range.count = i + 1 - range.first;
      range.end = at.end();
      if (layers != 0 && layer >= wanted_end) break;
    }
  }
  if (!found || (layers != 0 && layer != wanted_end)) {
    return absl::InvalidArgumentError(
        absl::StrCat("layers [", first_layer, ", ", layers == 0 ? "end" : absl::StrCat(wanted_end),
                     ") do not begin and end at borders of the block's segments"));
  }
  *out = range;
  return absl::OkStatus();
}

SegmentTable UniformTable(uint32_t segments, uint32_t bytes_each) {
  SegmentTable table;
  table.segments.assign(segments, Segment{.bytes = bytes_each});
  return table;
}

uint64_t HashBytes(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void HashPayload(std::span<const std::byte> payload, SegmentTable* table) {
  SegmentCursor at;
  for (Segment& segment : table->segments)
    segment.xxh3 = HashBytes(BytesAt(payload, at.Next(segment.bytes), segment));
  table->hashed = true;
}

int FirstDamaged(std::span<const std::byte> payload, const SegmentTable& table,
                 const SegmentRange& range) {
  LARDER_CHECK(table.hashed);
  LARDER_CHECK(uint64_t{range.first} + range.count <= table.segments.size());
  SegmentCursor at(range.begin);
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    const Segment& segment = table.segments[i];
    const uint64_t offset = at.Next(segment.bytes);
    if (HashBytes(BytesAt(payload, offset, segment)) != segment.xxh3) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace larder
