#include "storage/codec/payload_codec.h"

#include <gtest/gtest.h>

#include "tests/contract/codec_shapes.h"

namespace larder {
namespace {

// A payload of two segments of floats, one of noise and one of a few bytes, with its table.
struct Payload {
  Payload() {
    uint16_t number = 0;
    for (const Bytes& segment :
         {Floats(20'001, 1), Floats(4'000, 2), Noise(5'000, 3), Bytes(3, std::byte{9})}) {
      bytes.resize(RoundUp(bytes.size(), kSegmentAlign));
      bytes.insert(bytes.end(), segment.begin(), segment.end());
      table.segments.push_back(
          {.layers = ++number, .bytes = static_cast<uint32_t>(segment.size())});
    }
    HashPayload(bytes, &table);
  }
  Bytes bytes;
  SegmentTable table;
};

TEST(PayloadCodec, DecodingReturnsTheEncodedBytes) {
  const Payload raw;
  PayloadCodec codec;
  Bytes encoded(raw.bytes.size(), std::byte{0xAA});
  const auto table = codec.Encode(Codec::kLossless, raw.bytes, raw.table, 2, encoded);
  ASSERT_TRUE(table.has_value());
  EXPECT_TRUE(table->hashed && table->encoded());
  EXPECT_TRUE(table->Validate(1 + 2 + 3 + 4).ok());
  EXPECT_EQ(table->segments[0].raw_bytes, 20'001u);
  EXPECT_EQ(table->segments[2].codec, Codec::kIdentity) << "noise does not shrink";
  EXPECT_LT(table->PayloadBytes(), raw.table.PayloadBytes());
  const SegmentRange all{0, 4, 0, table->PayloadBytes().value()};
  EXPECT_EQ(FirstDamaged(encoded, *table, all), -1);
  for (size_t at = 0, i = 0; i + 1 < table->segments.size(); ++i) {
    at += table->segments[i].bytes;
    for (; at % kSegmentAlign != 0; ++at) EXPECT_EQ(encoded[at], std::byte{0}) << "padding " << at;
  }
  ASSERT_TRUE(codec.CanDecode(*table));
  Bytes decoded(raw.bytes.size(), std::byte{0x55});
  SegmentTable again;
  ASSERT_TRUE(codec.Decode(encoded, *table, decoded, &again).ok());
  EXPECT_EQ(again, raw.table);
  EXPECT_EQ(decoded, raw.bytes);
}

TEST(PayloadCodec, EncodeReturnsNulloptIfNothingShrinks) {
  const Bytes noise = Noise(10'000);
  SegmentTable table = UniformTable(1, 10'000);
  HashPayload(noise, &table);
  PayloadCodec codec;
  Bytes to(noise.size());
  EXPECT_FALSE(codec.Encode(Codec::kLossless, noise, table, 2, to).has_value());
}

TEST(PayloadCodec, DamageIsDetected) {
  const Payload raw;
  PayloadCodec codec;
  Bytes encoded(raw.bytes.size()), decoded(raw.bytes.size());
  const SegmentTable table = *codec.Encode(Codec::kLossless, raw.bytes, raw.table, 2, encoded);
  SegmentTable out;
  for (size_t at = 0; at < table.segments[0].bytes; at += 997) {
    encoded[at] ^= std::byte{4};
    EXPECT_TRUE(absl::IsDataLoss(codec.Decode(encoded, table, decoded, &out))) << at;
    // Damage is found even if the segment's hash was computed from the damaged bytes.
    SegmentTable sealed = table;
    HashPayload(encoded, &sealed);
    EXPECT_TRUE(absl::IsDataLoss(codec.Decode(encoded, sealed, decoded, &out))) << at;
    encoded[at] ^= std::byte{4};
  }
  SegmentTable longer = table;
  longer.segments[0].raw_bytes += 1;
  Bytes more(raw.bytes.size() + kSegmentAlign);
  EXPECT_TRUE(absl::IsDataLoss(codec.Decode(encoded, longer, more, &out)));
}

TEST(PayloadCodec, CannotDecodeUnknownCodecsOrSizes) {
  PayloadCodec codec;
  SegmentTable table = UniformTable(2, 100);
  EXPECT_TRUE(codec.CanDecode(table));
  table.segments[1].codec = Codec::kLossless;
  EXPECT_FALSE(codec.CanDecode(table)) << "the decoded size is unknown";
  table.segments[1].raw_bytes = 200;
  EXPECT_TRUE(codec.CanDecode(table));
  table.segments[1].codec = Codec::kQuantized;
  EXPECT_FALSE(codec.CanDecode(table));
}

}  // namespace
}  // namespace larder
