// How the bytes of a segment are encoded: the interface of all codecs.
//
// A codec sees one segment at a time, and knows neither blocks nor tiers.  An encoded segment is
// self-contained: it holds the length and the hash of the raw bytes, so that Decode returns the
// bytes that Encode was given, or an error.
//
// tests/contract/block_codec_contract.h tests every codec against these comments.
// Ownership: the caller that encodes or decodes.  Scratch memory stays with the codec.
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
  // Whether Decode returns bit for bit what Encode was given.  Otherwise it does so within the
  // bound that the codec states.
  [[nodiscard]] virtual bool lossless() const = 0;

  // Encodes one segment into the front of `to` and returns its length.  Returns nullopt if it would
  // not become shorter, so that the caller keeps it as it is.  `element_bytes` is the size of the
  // numbers in the segment (ElementBytes); a wrong value costs size, not bits.
  // REQUIRES: to.size() >= raw.size(), neither overlaps the other, element_bytes is 1, 2 or 4.
  [[nodiscard]] virtual std::optional<size_t> Encode(std::span<const std::byte> raw,
                                                     size_t element_bytes,
                                                     std::span<std::byte> to) = 0;

  // Returns how many raw bytes an encoded segment says it has, or DataLoss if the segment is not
  // one of this codec.  A caller that allocates memory of this length checks it against a bound
  // first.
  [[nodiscard]] virtual absl::StatusOr<size_t> DecodedBytes(
      std::span<const std::byte> encoded) const = 0;

  // Decodes one segment.  Returns DataLoss if it is damaged or forged; then `to` must not be used.
  // REQUIRES: to.size() is DecodedBytes(encoded), neither overlaps the other.
  [[nodiscard]] virtual absl::Status Decode(std::span<const std::byte> encoded,
                                            std::span<std::byte> to) = 0;
};

// Returns the bytes of one number of a variant's dtype; 1 if the dtype is unknown or packed.
[[nodiscard]] size_t ElementBytes(std::string_view dtype);

}  // namespace larder
