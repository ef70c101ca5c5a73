// Any bytes decode to a header or DataLoss, and a decoded header encodes to exactly the bytes that
// it came from.
#include <cstring>

#include "storage/check.h"
#include "storage/format/record.h"
#include "tests/fuzz/byte_fuzz.h"

namespace larder {
namespace {

// Returns true if the bytes decoded.
bool DecodeAndEncode(std::span<const std::byte> bytes) {
  const absl::StatusOr<DecodedHeader> decoded = DecodeRecordHeader(bytes);
  if (!decoded.ok()) {
    LARDER_CHECK(decoded.status().code() == absl::StatusCode::kDataLoss);
    return false;
  }
  const std::string again = EncodeRecordHeader(decoded->header);
  LARDER_CHECK(again.size() == decoded->header_bytes.value());
  LARDER_CHECK(std::memcmp(again.data(), bytes.data(), again.size()) == 0);
  return true;
}

RecordHeader SomeHeader(size_t segments) {
  RecordHeader header;
  header.block_tokens = 64;
  header.layout = "llama.cpp/rows/1";
  header.dtype = "f16";
  header.table = UniformTable(static_cast<uint32_t>(segments), 100);
  header.table.hashed = true;
  if (segments % 2 == 1) header.content.bytes.fill(std::byte{5});
  return header;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  RecordHeader mixed = SomeHeader(3);
  mixed.table.segments[1] = {5, Codec::kLossless, kSegmentBytesMax, 7};
  std::vector<std::string> seeds;
  for (const RecordHeader& header : {SomeHeader(1), SomeHeader(30), mixed}) {
    seeds.push_back(EncodeRecordHeader(header));
  }
  for (const std::string& seed : seeds)
    LARDER_CHECK(DecodeAndEncode(std::as_bytes(std::span(seed))));
  return seeds;
}

}  // namespace larder

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace larder;
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  DecodeAndEncode(bytes);
  // The checksum rejects nearly all mutations.  With a right checksum they reach the code behind
  // it.
  const absl::StatusOr<ByteCount> header_bytes = RecordHeaderBytes(bytes);
  if (header_bytes.ok() && header_bytes->value() <= size) {
    const size_t head = header_bytes->value() - sizeof(uint64_t);
    const uint64_t checksum = HashBytes(std::span(bytes).first(head));
    std::memcpy(bytes.data() + head, &checksum, sizeof checksum);
    DecodeAndEncode(bytes);
  }
  return 0;
}
