// How the bytes of a segment are encoded: the interface of all codecs.
//
// A codec encodes one segment at a time, and knows neither blocks nor tiers.  A segment that the
// lossless codec has encoded contains the length and a hash of the raw bytes, by which Decode
// detects damage.  The identity codec encodes nothing: its Decode copies the bytes without a check.
//
// tests/contract/block_codec_contract.h tests every codec against these comments.
// Ownership: the user's.  A codec keeps its scratch memory between calls.
// Thread-safety: none; one thread at a time uses a codec.
// Limits: segments of 1 byte to 1 GiB - 1 (kSegmentBytesMax).
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
  // Returns true if Decode returns bit for bit what Encode was given, as every codec does today.
  [[nodiscard]] virtual bool lossless() const = 0;

  // Encodes one segment into the front of `to` and returns the encoded length.  Returns nullopt if
  // the segment would not become shorter; the bytes in `to` are undefined then, and the caller
  // keeps the raw bytes.  `element_bytes` is the size of the numbers in the segment (ElementBytes);
  // it affects the encoded bytes, not what Decode returns.
  // REQUIRES: `raw` has 1 byte to 1 GiB - 1, to.size() >= raw.size(), `raw` and `to` do not
  // overlap, element_bytes is 1, 2 or 4.
  [[nodiscard]] virtual std::optional<size_t> Encode(std::span<const std::byte> raw,
                                                     size_t element_bytes,
                                                     std::span<std::byte> to) = 0;

  // Returns the length that an encoded segment will have after decoding, or DataLoss if the segment
  // is empty or its header is malformed.  The length is only what the segment states: a caller that
  // allocates memory of this length checks it against a bound first.
  [[nodiscard]] virtual absl::StatusOr<size_t> DecodedBytes(
      std::span<const std::byte> encoded) const = 0;

  // Decodes one segment into `to`.  Returns DataLoss if the segment is malformed or if the decoded
  // bytes do not match the hash in it; the bytes in `to` must not be used then.  The identity codec
  // only copies, and cannot detect damage.
  // REQUIRES: to.size() is DecodedBytes(encoded), and `encoded` and `to` do not overlap.
  [[nodiscard]] virtual absl::Status Decode(std::span<const std::byte> encoded,
                                            std::span<std::byte> to) = 0;
};

// Returns the size in bytes of one number of a variant's dtype: 2 for "f16" and "bf16", 4 for
// "f32", and 1 for any other dtype.
[[nodiscard]] size_t ElementBytes(std::string_view dtype);

}  // namespace larder
