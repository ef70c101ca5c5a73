// Encodes and decodes the payloads of whole blocks, segment by segment, with the codecs that
// MakeHostCodec makes.
//
// Decode checks the stored bytes of each segment against the hash in the segment table, and the
// decoded bytes of an encoded segment against the hash that the codec stored in the segment.  So it
// returns what was encoded, or an error.
// Ownership: the user's.  A PayloadCodec owns its codecs.
// Thread-safety: none; one thread at a time uses a PayloadCodec.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "storage/codec/block_codec.h"
#include "storage/format/layout.h"

namespace larder {

class PayloadCodec {
 public:
  // Returns true if MakeHostCodec has a codec for every encoded segment of the table, and the table
  // has the raw length of each of these segments.  Also true if no segment is encoded.
  [[nodiscard]] bool CanDecode(const SegmentTable& table);

  // Writes the encoded payload into `to`, with zeros between segments, and returns the table of the
  // encoded payload, hashed.  Segments that would not become shorter are copied as they are.
  // Returns nullopt if no segment would become shorter; the bytes in `to` are undefined then.
  // REQUIRES: MakeHostCodec can make `codec`; `payload` is laid out as `table` says; all segments
  // of `table` are identity; to.size() >= payload.size(); `payload` and `to` do not overlap;
  // element_bytes is 1, 2 or 4 (ElementBytes).
  [[nodiscard]] std::optional<SegmentTable> Encode(Codec codec, std::span<const std::byte> payload,
                                                   const SegmentTable& table, size_t element_bytes,
                                                   std::span<std::byte> to);

  // Writes the decoded payload into `to`, and the table of the decoded payload, hashed, into *raw,
  // which may be the same object as `table`.  Returns DataLoss if a segment is damaged; then the
  // bytes in `to` must not be used, and *raw is unchanged.
  // REQUIRES: `payload` is laid out as `table` says; table.hashed; CanDecode(table); to.size() >=
  // the payload bytes of table.Decoded(); `payload` and `to` do not overlap.
  [[nodiscard]] absl::Status Decode(std::span<const std::byte> payload, const SegmentTable& table,
                                    std::span<std::byte> to, SegmentTable* raw);

  // Decodes one segment, whose stored bytes are `encoded`.  Returns DataLoss if the codec finds the
  // segment damaged.  Does not compare `encoded` with segment.xxh3; so damage to a segment that is
  // not encoded is not detected.
  // REQUIRES: MakeHostCodec has the segment's codec.
  // REQUIRES: to.size() == segment.raw_bytes, or segment.bytes if the segment is not encoded.
  [[nodiscard]] absl::Status DecodeSegment(const Segment& segment,
                                           std::span<const std::byte> encoded,
                                           std::span<std::byte> to);

 private:
  // Makes the codec at the first call.  Returns nullptr if MakeHostCodec has none of that kind.
  [[nodiscard]] BlockCodec* Of(Codec codec);

  std::array<std::unique_ptr<BlockCodec>, static_cast<size_t>(Codec::kJoint) + 1> codecs_;
};

}  // namespace larder
