// Any bytes as an encoded segment decode to the same bytes twice, or to DataLoss.  As a raw
// segment, they come back after encoding and decoding.
#include <algorithm>
#include <cstring>
#include <memory>

#include "storage/check.h"
#include "storage/codec/host_codecs.h"
#include "storage/format/layout.h"
#include "tests/fuzz/byte_fuzz.h"

namespace larder {
namespace {

constexpr size_t kMost = 1 << 20;
using Bytes = std::vector<std::byte>;

BlockCodec& Lossless() {
  static const std::unique_ptr<BlockCodec> codec = MakeHostCodec(Codec::kLossless);
  return *codec;
}

bool DecodeTwice(const Bytes& encoded) {
  const absl::StatusOr<size_t> size = Lossless().DecodedBytes(encoded);
  if (!size.ok() || *size > kMost) return false;
  Bytes once(*size), twice(*size, std::byte{1});
  const absl::Status status = Lossless().Decode(encoded, once);
  LARDER_CHECK(status.code() == Lossless().Decode(encoded, twice).code());
  LARDER_CHECK(status.ok() || absl::IsDataLoss(status));
  LARDER_CHECK(!status.ok() || once == twice);
  return status.ok();
}

void EncodeAndBack(const Bytes& raw) {
  if (raw.empty()) return;
  for (const size_t element_bytes : {1, 2, 4}) {
    Bytes encoded(raw.size());
    const auto size = Lossless().Encode(raw, element_bytes, encoded);
    if (!size) continue;
    encoded.resize(*size);
    Bytes back(raw.size());
    LARDER_CHECK(*Lossless().DecodedBytes(encoded) == raw.size());
    LARDER_CHECK(Lossless().Decode(encoded, back).ok() && back == raw);
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const size_t bytes : {100, 9'001, 30'000}) {
    Bytes raw(bytes);
    for (size_t i = 0; i < bytes; ++i) raw[i] = static_cast<std::byte>(i % 2 == 0 ? i * i : 60);
    Bytes encoded(bytes);
    const auto size = Lossless().Encode(raw, 2, encoded);
    LARDER_CHECK(size.has_value());
    encoded.resize(*size);
    LARDER_CHECK(DecodeTwice(encoded));
    seeds.emplace_back(reinterpret_cast<const char*>(encoded.data()), encoded.size());
  }
  return seeds;
}

}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace larder;
  Bytes bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  DecodeTwice(bytes);
  EncodeAndBack(bytes);
  return 0;
}
