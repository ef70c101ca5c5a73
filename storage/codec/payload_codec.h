// Encodes and decodes the payloads of whole blocks, segment by segment, with the codecs of this
// host.
//
// Decode checks every byte against a hash: the stored bytes of a segment against the hash in the
// segment table, and the raw bytes of an encoded segment against the hash that the codec stored in
// it.  So the result is what was encoded, or an error.
// Ownership: a PayloadCodec belongs to the thread that encodes or decodes, and owns its codecs.
// Thread-safety: none; each thread has a PayloadCodec of its own.
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
  // Whether this host has a codec for every encoded segment of the table, and every raw length is
  // known.
  [[nodiscard]] bool CanDecode(const SegmentTable& table);

  // Writes the encoded payload into `to`, with zeros between segments, and returns the table of the
  // encoded payload, hashed.  Segments that would not become shorter are copied as they are.
  // Returns nullopt if no segment would become shorter.
  // REQUIRES: MakeHostCodec can make `codec`; `payload` is laid out as `table` says; all segments
  // of `table` are identity; to.size() >= payload.size(); `payload` and `to` do not overlap;
  // element_bytes is 1, 2 or 4 (ElementBytes).
  [[nodiscard]] std::optional<SegmentTable> Encode(Codec codec, std::span<const std::byte> payload,
                                                   const SegmentTable& table, size_t element_bytes,
                                                   std::span<std::byte> to);

  // Writes the raw payload into `to`, and the table of the raw payload, hashed, into *raw, which
  // may be the same object as `table`.  Returns DataLoss if the payload is damaged; then the bytes
  // in `to` must not be used.
  // REQUIRES: table.hashed, CanDecode(table), to.size() >= the payload bytes of table.Decoded().
  [[nodiscard]] absl::Status Decode(std::span<const std::byte> payload, const SegmentTable& table,
                                    std::span<std::byte> to, SegmentTable* raw);

  // Decodes one segment, whose stored bytes are `encoded`.  Returns DataLoss if it is damaged, but
  // does not compare `encoded` with segment.xxh3.
  // REQUIRES: this host has the segment's codec (CanDecode).
  // REQUIRES: to.size() == segment.raw_bytes, or segment.bytes if the segment is not encoded.
  [[nodiscard]] absl::Status DecodeSegment(const Segment& segment,
                                           std::span<const std::byte> encoded,
                                           std::span<std::byte> to);

 private:
  // Returns nullptr if this host has no codec of that kind.
  [[nodiscard]] BlockCodec* Of(Codec codec);

  std::array<std::unique_ptr<BlockCodec>, static_cast<size_t>(Codec::kJoint) + 1> codecs_;
};

}  // namespace larder
