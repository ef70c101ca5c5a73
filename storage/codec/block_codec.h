// How the bytes of a segment are encoded: the interface of all codecs.
//
// A codec knows one segment at a time and neither blocks nor tiers.  What it encodes stands for
// itself: it says how long the raw bytes were, and holds their hash, so that what Decode gives is
// what Encode was given, or an error.
//
// tests/contract/block_codec_contract.h holds every codec to this text.
// Ownership: by whoever encodes or decodes; scratch memory stays with it.
// Thread-safety: none; each thread has its own.
// Limits: segments of 1 to kSegmentBytesMax bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/types.h"

namespace larder {

class BlockCodec {
 public:
  virtual ~BlockCodec() = default;

  [[nodiscard]] virtual Codec id() const = 0;
  // What Decode gives is bit for bit what Encode was given; else within the bound that the codec
  // states.
  [[nodiscard]] virtual bool lossless() const = 0;

  // Encodes one segment into the front of `to`; its length.  nullopt: it would not become shorter,
  // so it is kept as it is.  `element_bytes`: of the numbers in it (ElementBytes); any other value
  // than the right one costs size, not bits.
  // REQUIRES: to.size() >= raw.size(), neither overlaps the other, element_bytes is 1, 2 or 4.
  [[nodiscard]] virtual std::optional<size_t> Encode(std::span<const std::byte> raw,
                                                     size_t element_bytes,
                                                     std::span<std::byte> to) = 0;

  // What an encoded segment says of its raw bytes' number.  DataLoss: it is not one of this codec.
  // Whoever reserves room by it bounds it.
  [[nodiscard]] virtual absl::StatusOr<size_t> DecodedBytes(
      std::span<const std::byte> encoded) const = 0;

  // DataLoss: damaged, or made up; what is in `to` then must not be used.
  // REQUIRES: to.size() is DecodedBytes(encoded), neither overlaps the other.
  [[nodiscard]] virtual absl::Status Decode(std::span<const std::byte> encoded,
                                            std::span<std::byte> to) = 0;
};

// Bytes of one number of a variant's dtype; 1 where it is unknown, or packed.
[[nodiscard]] size_t ElementBytes(std::string_view dtype);

}  // namespace larder
