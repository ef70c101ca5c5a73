// Encodes and decodes the payloads of whole blocks, segment by segment, with the codecs of this
// host.
//
// Decoding checks every byte by its hash: the stored bytes by the table's hash, and the raw bytes
// of an encoded segment by the codec's.  So the result is what was encoded, or an error.
// Ownership: the caller that encodes or decodes.  Scratch memory stays with the codec.
// Thread-safety: none; each thread has its own.
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
  // Whether this host can decode every segment of the table, to a size that is known.
  [[nodiscard]] bool CanDecode(const SegmentTable& table);

  // Writes the encoded payload into `to`, with zeros between segments, and returns its table,
  // hashed.  Segments that would not become shorter stay as they are.  Returns nullopt if that is
  // true of all of them.
  // REQUIRES: payload is laid out as `table` says, whose segments are all identity; to.size() >=
  // payload.size(); neither overlaps the other; element_bytes as ElementBytes says.
  [[nodiscard]] std::optional<SegmentTable> Encode(Codec codec, std::span<const std::byte> payload,
                                                   const SegmentTable& table, size_t element_bytes,
                                                   std::span<std::byte> to);

  // Writes the raw payload into `to`, and its table, hashed, into *raw, which may be `table`.
  // Returns DataLoss if the payload is damaged; then `to` must not be used.
  // REQUIRES: table.hashed, CanDecode(table), to.size() >= the payload bytes of table.Decoded().
  [[nodiscard]] absl::Status Decode(std::span<const std::byte> payload, const SegmentTable& table,
                                    std::span<std::byte> to, SegmentTable* raw);

  // Decodes one segment; DataLoss as for Decode.  Does not check the table's hash of `encoded`.
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
