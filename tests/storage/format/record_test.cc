#include "storage/format/record.h"

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "storage/codec/payload_codec.h"

namespace larder {
namespace {

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

std::string ReadGolden(std::string_view name) {
  std::ifstream file(std::string(LARDER_GOLDEN_DIR "/").append(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::span<const std::byte> Bytes(const std::string& s) { return std::as_bytes(std::span(s)); }

Digest Filled(int value) {
  Digest digest;
  digest.bytes.fill(static_cast<std::byte>(value));
  return digest;
}

RecordHeader SomeHeader() {
  RecordHeader header;
  header.key = {Filled(1), Filled(2)};
  header.parent = Filled(3);
  header.block_tokens = 64;
  header.first_layer = 8;
  header.layout = "llama.cpp/rows/1";
  header.dtype = "f16";
  header.table.segments = {
      {2, Codec::kIdentity, 100, 11}, {1, Codec::kLossless, 64, 22}, {3, Codec::kJoint, 33, 33}};
  header.table.hashed = true;
  return header;
}

RecordHeader EncodedHeader() {
  RecordHeader header = SomeHeader();
  header.table.segments[1].raw_bytes = 100;
  header.table.segments[2].raw_bytes = kSegmentBytesMax;
  return header;
}

// Puts the right checksum under a changed header, so that only the changed meaning can be refused.
void Seal(std::string* bytes) {
  const uint64_t sum = HashBytes(Bytes(*bytes).first(bytes->size() - 8));
  std::memcpy(bytes->data() + bytes->size() - 8, &sum, sizeof sum);
}

template <class T>
void Set(std::string* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

class GoldenRecord : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Versions, GoldenRecord, ::testing::Values(1, 2, 3));

TEST_P(GoldenRecord, DecodesAndEncodesToTheSameBytes) {
  const std::string name = absl::StrCat("record_v", GetParam());
  const std::string file = ReadGolden(absl::StrCat(name, ".bin"));
  const auto want = nlohmann::json::parse(ReadGolden(absl::StrCat(name, ".json")));
  const auto decoded = DecodeRecordHeader(Bytes(file));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const RecordHeader& header = decoded->header;
  EXPECT_EQ(decoded->header_bytes.value(), want.at("header_bytes"));
  EXPECT_EQ(header.key.variant.Hex(), want.at("variant"));
  EXPECT_EQ(header.key.digest.Hex(), want.at("digest"));
  EXPECT_EQ(header.parent.Hex(), want.at("parent"));
  EXPECT_EQ(header.version(), static_cast<uint32_t>(GetParam()));
  EXPECT_EQ(header.content.Hex(), want.value("content", Digest().Hex()));
  EXPECT_EQ(header.block_tokens, want.at("block_tokens"));
  EXPECT_EQ(header.first_layer, want.at("first_layer"));
  EXPECT_EQ(header.layout, want.at("layout"));
  EXPECT_EQ(header.dtype, want.at("dtype"));
  EXPECT_EQ(header.table.PayloadBytes().value(), want.at("payload_bytes"));
  ASSERT_EQ(header.table.segments.size(), want.at("segments").size());
  for (size_t i = 0; i < header.table.segments.size(); ++i) {
    const Segment& segment = header.table.segments[i];
    const auto& w = want.at("segments")[i];
    EXPECT_EQ(segment.layers, w.at("layers"));
    EXPECT_EQ(static_cast<int>(segment.codec), w.at("codec"));
    EXPECT_EQ(segment.bytes, w.at("bytes"));
    EXPECT_EQ(segment.raw_bytes, w.value("raw_bytes", 0u));
    EXPECT_EQ(absl::StrCat(absl::Hex(segment.xxh3, absl::kZeroPad16)), w.at("xxh3"));
  }
  const size_t size = decoded->header_bytes.value();
  EXPECT_EQ(EncodeRecordHeader(header), file.substr(0, size));
  SegmentRange all;
  ASSERT_TRUE(header.table.Range(0, 0, &all).ok());
  EXPECT_EQ(FirstDamaged(Bytes(file).subspan(size), header.table, all), -1);
}

// Another implementation encoded this record.
TEST(Record, TheGoldenRecordWithEncodedSegmentsDecodes) {
  const std::string file = ReadGolden("record_v3.bin");
  const auto record = DecodeRecordHeader(Bytes(file));
  ASSERT_TRUE(record.ok()) << record.status();
  const SegmentTable& table = record->header.table;
  SegmentTable raw;
  std::vector<std::byte> bytes(table.Decoded().PayloadBytes().value());
  PayloadCodec codec;
  ASSERT_TRUE(codec.CanDecode(table));
  const auto payload = Bytes(file).subspan(record->header_bytes.value());
  ASSERT_TRUE(codec.Decode(payload, table, bytes, &raw).ok());
  size_t at = 0;
  for (size_t i = 0; i < raw.segments.size(); ++i) {
    for (size_t k = 0; k < raw.segments[i].bytes; ++k) {
      const size_t want =
          k % 2 == 1 ? (7 * k + 13 * i + k / 512) % 256 : (31 * k * k + k / 7) % 251;
      ASSERT_EQ(bytes[at + k], static_cast<std::byte>(want)) << i << " " << k;
    }
    at = RoundUp(at + raw.segments[i].bytes, kSegmentAlign);
  }
}

TEST(Record, RoundTripsOfSmallestAndLargest) {
  RecordHeader smallest = SomeHeader();
  smallest.layout = "l";
  smallest.dtype = "d";
  smallest.block_tokens = 16;
  smallest.first_layer = 0;
  smallest.table.segments = {{1, Codec::kIdentity, 1, 0}};
  RecordHeader largest = SomeHeader();
  largest.layout = std::string(kLayoutBytesMax, '\xff');
  largest.dtype = std::string(kDtypeBytesMax, '\0');
  largest.block_tokens = kBlockTokensMax;
  largest.first_layer = kFirstLayerMax;
  largest.table.segments.assign(kSegmentsMax, {1, Codec::kQuantized, kSegmentBytesMax, ~0ull});
  RecordHeader of_content = SomeHeader(), largest_of_content = largest;
  of_content.content = largest_of_content.content = Filled(4);
  RecordHeader encoded = EncodedHeader(), encoded_of_content = EncodedHeader();
  encoded_of_content.content = Filled(4);
  EXPECT_EQ(encoded.version(), 3u);
  RecordHeader written = SomeHeader();
  written.writer_uid = 1000;
  largest.writer_uid = BlockWriter::kUnknownUid - 1;
  smallest.writer_uid = 0;
  for (const RecordHeader& header : {SomeHeader(), written, smallest, largest, of_content,
                                     largest_of_content, encoded, encoded_of_content}) {
    const std::string bytes = EncodeRecordHeader(header);
    EXPECT_EQ(bytes.size() % kSegmentAlign, 0u);
    EXPECT_LE(bytes.size(), kRecordHeaderBytesMax);
    const auto size = RecordHeaderBytes(Bytes(bytes).first(kRecordPrefixBytes));
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_EQ(size->value(), bytes.size());
    for (const std::string& input : {bytes, bytes + "payload"}) {
      const auto decoded = DecodeRecordHeader(Bytes(input));
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(decoded->header, header);
      EXPECT_EQ(decoded->header_bytes.value(), bytes.size());
    }
  }
}

// All lengths of names: the padding ends at the right place wherever it begins.
TEST(Record, RoundTripsOfAllNameLengths) {
  for (size_t n = 1; n <= kLayoutBytesMax; ++n) {
    RecordHeader header = SomeHeader();
    header.layout = std::string(n, 'l');
    header.dtype = std::string(1 + n % kDtypeBytesMax, 'd');
    const auto decoded = DecodeRecordHeader(Bytes(EncodeRecordHeader(header)));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->header, header);
  }
}

TEST(Record, TheWriterTakesNoExtraBytesAndZeroMeansNone) {
  RecordHeader header = SomeHeader();
  const std::string without = EncodeRecordHeader(header);
  EXPECT_EQ(without.substr(12, 4), std::string(4, '\0')) << "older daemons wrote zeros here";
  header.writer_uid = 0x01020304;
  const std::string with = EncodeRecordHeader(header);
  EXPECT_EQ(with.size(), without.size());
  EXPECT_EQ(with.substr(12, 4), "\x05\x03\x02\x01");
}

TEST(Record, AnotherKeyIsDamage) {
  const RecordHeader header = SomeHeader();
  const std::string bytes = EncodeRecordHeader(header);
  EXPECT_TRUE(DecodeRecordHeaderOf(header.key, Bytes(bytes)).ok());
  for (const BlockKey& other : {BlockKey{Filled(1), Filled(9)}, BlockKey{Filled(9), Filled(2)}}) {
    EXPECT_EQ(DecodeRecordHeaderOf(other, Bytes(bytes)).status().code(), kDataLoss);
  }
}

TEST(Record, EveryFlippedBitIsDamage) {
  const std::string good = EncodeRecordHeader(SomeHeader());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(DecodeRecordHeader(Bytes(bad)).status().code(), kDataLoss) << "bit " << bit;
  }
}

TEST(Record, EveryShorterInputIsDamage) {
  const std::string good = EncodeRecordHeader(SomeHeader());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(DecodeRecordHeader(Bytes(good).first(size)).status().code(), kDataLoss) << size;
  }
  for (size_t size = 0; size < kRecordPrefixBytes; ++size) {
    EXPECT_EQ(RecordHeaderBytes(Bytes(good).first(size)).status().code(), kDataLoss) << size;
  }
}

TEST(Record, TheErrorNamesAnUnknownVersion) {
  std::string bytes = EncodeRecordHeader(SomeHeader());
  Set(&bytes, 4, uint32_t{7});
  Seal(&bytes);
  for (const absl::Status& status :
       {DecodeRecordHeader(Bytes(bytes)).status(), RecordHeaderBytes(Bytes(bytes)).status()}) {
    EXPECT_EQ(status.code(), kDataLoss);
    EXPECT_TRUE(absl::StrContains(status.message(), "version 7")) << status;
  }
}

// A header with a right checksum whose fields docs/format.md does not allow.
TEST(Record, InvalidFieldsWithARightChecksumAreDamage) {
  // In SomeHeader: names at 88..107, the table at 112 with three entries of 32 bytes, padding from
  // 208, the checksum at 248.
  constexpr size_t kTable = 112;
  using Change = std::function<void(std::string*)>;
  const std::pair<const char*, Change> changes[] = {
      {"header too long", [](auto* b) { Set(b, 8, uint32_t{320}); }},
      {"header too short", [](auto* b) { Set(b, 8, uint32_t{192}); }},
      {"header not aligned", [](auto* b) { Set(b, 8, uint32_t{255}); }},
      {"header without end", [](auto* b) { Set(b, 8, ~uint32_t{0} - 63); }},
      {"no tokens", [](auto* b) { Set(b, 64, uint32_t{0}); }},
      {"odd tokens", [](auto* b) { Set(b, 64, uint32_t{63}); }},
      {"many tokens", [](auto* b) { Set(b, 64, uint32_t{4112}); }},
      {"first layer", [](auto* b) { Set(b, 68, uint32_t{65'536}); }},
      {"layers", [](auto* b) { Set(b, 72, uint32_t{7}); }},
      {"no segments", [](auto* b) { Set(b, 76, uint16_t{0}); }},
      {"more segments", [](auto* b) { Set(b, 76, uint16_t{4}); }},
      {"all segments", [](auto* b) { Set(b, 76, uint16_t{65'535}); }},
      {"no layout", [](auto* b) { Set(b, 78, uint8_t{0}); }},
      {"long layout", [](auto* b) { Set(b, 78, uint8_t{255}); }},
      {"no dtype", [](auto* b) { Set(b, 79, uint8_t{0}); }},
      {"payload bytes", [](auto* b) { Set(b, 80, uint64_t{226}); }},
      {"padding of names", [](auto* b) { Set(b, 111, uint8_t{1}); }},
      {"no layers", [](auto* b) { Set(b, kTable, uint16_t{0}); }},
      {"codec 0", [](auto* b) { Set(b, kTable + 2, uint8_t{0}); }},
      {"codec 5", [](auto* b) { Set(b, kTable + 2, uint8_t{5}); }},
      {"reserved 1", [](auto* b) { Set(b, kTable + 3, uint8_t{1}); }},
      {"first layer of 0", [](auto* b) { Set(b, kTable + 4, uint32_t{1}); }},
      {"offset of 1", [](auto* b) { Set(b, kTable + 32 + 8, uint64_t{64}); }},
      {"no bytes", [](auto* b) { Set(b, kTable + 64 + 16, uint32_t{0}); }},
      {"too many bytes", [](auto* b) { Set(b, kTable + 64 + 16, uint32_t{1u << 30}); }},
      {"reserved 2", [](auto* b) { Set(b, kTable + 20, uint32_t{1}); }},
      {"padding of table", [](auto* b) { Set(b, 247, uint8_t{1}); }},
  };
  ASSERT_EQ(EncodeRecordHeader(SomeHeader()).size(), 256u);
  for (const auto& [what, change] : changes) {
    std::string bytes = EncodeRecordHeader(SomeHeader());
    change(&bytes);
    Seal(&bytes);
    EXPECT_EQ(DecodeRecordHeader(Bytes(bytes)).status().code(), kDataLoss) << what;
  }
}

// Versions 1 and 2 have no raw bytes, version 3 has those of all encoded segments.  A writer uses
// the lowest version that can express the record.
TEST(Record, InvalidEncodedSegmentsWithARightChecksumAreDamage) {
  constexpr size_t kTable = 128;
  const auto refused = [](const char* what, RecordHeader header, auto change) {
    std::string bytes = EncodeRecordHeader(header);
    change(&bytes);
    Seal(&bytes);
    EXPECT_EQ(DecodeRecordHeader(Bytes(bytes)).status().code(), kDataLoss) << what;
  };
  RecordHeader of_content = SomeHeader();
  of_content.content = Filled(4);
  refused("version 3 of none", of_content, [](auto* b) { Set(b, 4, uint32_t{3}); });
  refused("raw bytes in version 2", of_content,
          [](auto* b) { Set(b, kTable + 32 + 20, uint32_t{100}); });
  refused("version 2 of some", EncodedHeader(), [](auto* b) { Set(b, 4, uint32_t{2}); });
  refused("raw bytes of identity", EncodedHeader(),
          [](auto* b) { Set(b, kTable + 20, uint32_t{100}); });
  refused("none of an encoded one", EncodedHeader(),
          [](auto* b) { Set(b, kTable + 32 + 20, uint32_t{0}); });
  refused("too many", EncodedHeader(),
          [](auto* b) { Set(b, kTable + 32 + 20, uint32_t{1u << 30}); });
  refused("content zero in version 2", of_content, [](auto* b) { b->replace(88, 16, 16, '\0'); });
}

TEST(RecordDeathTest, EncodingAnInvalidHeaderIsABug) {
  RecordHeader unhashed = SomeHeader();
  unhashed.table.hashed = false;
  EXPECT_DEATH((void)EncodeRecordHeader(unhashed), "invariant");
  RecordHeader nameless = SomeHeader();
  nameless.layout.clear();
  EXPECT_DEATH((void)EncodeRecordHeader(nameless), "invariant");
}

}  // namespace
}  // namespace larder
