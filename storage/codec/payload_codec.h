// Encodes and decodes the payloads of whole blocks, segment by segment, by the codecs of this host.
//
// Every byte is checked on the way: what is decoded by its hash before (the table's) and after (the
// codec's), so that what comes out is what went in, or an error.
// Ownership: by whoever encodes or decodes; scratch memory stays with it.
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
  // Whether all of it can be decoded here, to a size that is known.
  [[nodiscard]] bool CanDecode(const SegmentTable& table);

  // Writes the payload into `to`, with zeros between segments; its table, hashed.  Segments that
  // would not become shorter stay as they are.  nullopt: that is all of them.
  // REQUIRES: payload lies as `table` says, which is of identity segments; to.size() >=
  // payload.size(), neither overlaps the other; element_bytes as ElementBytes says.
  [[nodiscard]] std::optional<SegmentTable> Encode(Codec codec, std::span<const std::byte> payload,
                                                   const SegmentTable& table, size_t element_bytes,
                                                   std::span<std::byte> to);

  // Likewise the raw payload; *raw, which may be `table`: its table, hashed.  DataLoss: it is
  // damaged, and `to` must not be used.  REQUIRES: table.hashed, CanDecode(table), to.size() >=
  // that of table.Decoded().
  [[nodiscard]] absl::Status Decode(std::span<const std::byte> payload, const SegmentTable& table,
                                    std::span<std::byte> to, SegmentTable* raw);

  // One segment; DataLoss as above.  REQUIRES: to.size() == segment.raw_bytes, or its bytes where
  // it is not encoded.
  [[nodiscard]] absl::Status DecodeSegment(const Segment& segment,
                                           std::span<const std::byte> encoded,
                                           std::span<std::byte> to);

 private:
  // nullptr: there is none of that kind.
  [[nodiscard]] BlockCodec* Of(Codec codec);

  std::array<std::unique_ptr<BlockCodec>, static_cast<size_t>(Codec::kJoint) + 1> codecs_;
};

}  // namespace larder
