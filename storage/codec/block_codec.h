// How the bytes of a segment are encoded: the interface of all codecs.
//
// A codec encodes one segment at a time, and knows neither blocks nor tiers.  An encoded segment is
// self-contained: it contains the length and the hash of the raw bytes, so that Decode returns the
// bytes that Encode was given, or an error.
//
// tests/contract/block_codec_contract.h tests every codec against these comments.
// Ownership: a codec belongs to the thread that encodes or decodes, and keeps its scratch memory
// between calls.
// Thread-safety: none; each thread has a codec of its own.
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
  // Whether Decode returns bit for bit what Encode was given.  If not, the decoded numbers differ
  // from the original ones by no more than the bound that the codec states.
  [[nodiscard]] virtual bool lossless() const = 0;

  // Encodes one segment into the front of `to` and returns the encoded length.  Returns nullopt if
  // the segment would not become shorter; the caller then keeps the raw bytes.  `element_bytes` is
  // the size of the numbers in the segment (ElementBytes); a wrong value makes the result longer,
  // not wrong.
  // REQUIRES: to.size() >= raw.size(), `raw` and `to` do not overlap, element_bytes is 1, 2 or 4.
  [[nodiscard]] virtual std::optional<size_t> Encode(std::span<const std::byte> raw,
                                                     size_t element_bytes,
                                                     std::span<std::byte> to) = 0;

  // Returns the raw length that an encoded segment states, or DataLoss if the segment is not of
  // this codec.  A caller that allocates memory of this length checks the length against a bound
  // first.
  [[nodiscard]] virtual absl::StatusOr<size_t> DecodedBytes(
      std::span<const std::byte> encoded) const = 0;

  // Decodes one segment.  Returns DataLoss if it is damaged or forged; then the bytes in `to` must
  // not be used.
  // REQUIRES: to.size() is DecodedBytes(encoded), and `encoded` and `to` do not overlap.
  [[nodiscard]] virtual absl::Status Decode(std::span<const std::byte> encoded,
                                            std::span<std::byte> to) = 0;
};

// Returns how many bytes one number of a variant's dtype has; 1 if the dtype is unknown or packed.
[[nodiscard]] size_t ElementBytes(std::string_view dtype);

}  // namespace larder
