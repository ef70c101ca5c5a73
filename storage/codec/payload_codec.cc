#include "storage/codec/payload_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "storage/check.h"
#include "storage/codec/host_codecs.h"
#include "storage/format/payload_cursor.h"
#include "storage/status_macros.h"

namespace larder {

BlockCodec* PayloadCodec::Of(Codec codec) {
  const auto i = static_cast<size_t>(codec);
  if (i >= codecs_.size()) return nullptr;
  if (codecs_[i] == nullptr) codecs_[i] = MakeHostCodec(codec);
  return codecs_[i].get();
}

bool PayloadCodec::CanDecode(const SegmentTable& table) {
  return std::ranges::all_of(table.segments, [this](const Segment& segment) {
    return segment.codec == Codec::kIdentity ||
           (segment.raw_bytes != 0 && Of(segment.codec) != nullptr);
  });
}

std::optional<SegmentTable> PayloadCodec::Encode(Codec codec, std::span<const std::byte> payload,
                                                 const SegmentTable& table, size_t element_bytes,
                                                 std::span<std::byte> to) {
  LARDER_CHECK(Of(codec) != nullptr && !table.encoded() && to.size() >= payload.size());
  PayloadWriter out(to.first(payload.size()));
  SegmentTable encoded;
  SegmentCursor at;
  for (const Segment& segment : table.segments) {
    const std::span<const std::byte> raw = at.Next(payload, segment.bytes);
    const std::optional<size_t> bytes = Of(codec)->Encode(raw, element_bytes, out.Rest());
    Segment stored{.layers = segment.layers, .bytes = segment.bytes};
    if (bytes) {
      stored.codec = codec;
      stored.bytes = static_cast<uint32_t>(*bytes);
      stored.raw_bytes = segment.bytes;
    }
    const std::span<std::byte> place = out.Next(stored.bytes);
    if (!bytes) std::memcpy(place.data(), raw.data(), raw.size());
    stored.xxh3 = HashBytes(place);
    encoded.segments.push_back(stored);
  }
  encoded.hashed = true;
  return encoded.encoded() ? std::optional(std::move(encoded)) : std::nullopt;
}

absl::Status PayloadCodec::DecodeSegment(const Segment& segment, std::span<const std::byte> encoded,
                                         std::span<std::byte> to) {
  BlockCodec* const codec = Of(segment.codec);
  LARDER_CHECK(codec != nullptr);
  LARDER_ASSIGN_OR_RETURN(const size_t bytes, codec->DecodedBytes(encoded));
  if (bytes != to.size())
    return absl::DataLossError(
        "encoded segment: its raw length is not the one in the segment table");
  return codec->Decode(encoded, to);
}

absl::Status PayloadCodec::Decode(std::span<const std::byte> payload, const SegmentTable& table,
                                  std::span<std::byte> to, SegmentTable* raw) {
  LARDER_CHECK(table.hashed && CanDecode(table));
  SegmentTable whole = table.Decoded();
  whole.hashed = true;
  PayloadWriter out(to.first(whole.PayloadBytes().value()));
  SegmentCursor at;
  for (size_t i = 0; i < table.segments.size(); ++i) {
    const Segment& segment = table.segments[i];
    const std::span<const std::byte> stored = at.Next(payload, segment.bytes);
    const std::span<std::byte> decoded = out.Next(whole.segments[i].bytes);
    if (HashBytes(stored) != segment.xxh3)
      return absl::DataLossError("encoded segment: the stored bytes do not match their hash");
    LARDER_RETURN_IF_ERROR(DecodeSegment(segment, stored, decoded));
    whole.segments[i].xxh3 = HashBytes(decoded);
  }
  *raw = std::move(whole);
  return absl::OkStatus();
}

}  // namespace larder
