#include "storage/format/layout.h"

#include "gtest/gtest.h"

namespace larder {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A table of layers 0-1, 2 and 3-5, at offsets 0, 128 and 192.
SegmentTable ThreeSegments() {
  SegmentTable table;
  table.segments = {
      {.layers = 2, .bytes = 100}, {.layers = 1, .bytes = 64}, {.layers = 3, .bytes = 33}};
  return table;
}

std::vector<std::byte> Payload(const SegmentTable& table) {
  std::vector<std::byte> bytes(table.PayloadBytes().value());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + 7);
  return bytes;
}

TEST(SegmentTable, Sizes) {
  EXPECT_EQ(ThreeSegments().PayloadBytes(), ByteCount(192 + 33));
  EXPECT_EQ(ThreeSegments().StoredBytes(), ByteCount(100 + 64 + 33));
  EXPECT_EQ(SegmentTable{}.PayloadBytes(), ByteCount(0));
  const SegmentTable uniform = UniformTable(30, 4096);
  EXPECT_EQ(uniform.PayloadBytes(), ByteCount(30 * 4096));
  EXPECT_TRUE(uniform.Validate(30).ok());
  EXPECT_FALSE(uniform.hashed);
  const SegmentTable largest = UniformTable(kSegmentsMax, kSegmentBytesMax);
  EXPECT_TRUE(largest.Validate(kSegmentsMax).ok());
  EXPECT_EQ(largest.PayloadBytes(), ByteCount((1024ull << 30) - 1));
}

TEST(SegmentTable, ValidateRefuses) {
  EXPECT_TRUE(ThreeSegments().Validate(6).ok());
  for (const uint32_t layers : {0u, 5u, 7u, 1025u})
    EXPECT_EQ(ThreeSegments().Validate(layers).code(), kInvalid);
  EXPECT_EQ(SegmentTable{}.Validate(1).code(), kInvalid);
  EXPECT_EQ(UniformTable(1025, 1).Validate(1025).code(), kInvalid);
  const auto with = [](Segment bad) {
    SegmentTable table = ThreeSegments();
    table.segments[1] = bad;
    return table.Validate(5u + bad.layers).code();
  };
  EXPECT_EQ(with({.bytes = 1}), absl::StatusCode::kOk);
  EXPECT_EQ(with({.layers = 0, .bytes = 1}), kInvalid);
  EXPECT_EQ(with({.bytes = 0}), kInvalid);
  EXPECT_EQ(with({.bytes = kSegmentBytesMax + 1}), kInvalid);
  EXPECT_EQ(with({.codec = static_cast<Codec>(0), .bytes = 1}), kInvalid);
  EXPECT_EQ(with({.codec = static_cast<Codec>(5), .bytes = 1}), kInvalid);
  // 1,024 x 65,535 layers must not wrap to a small number.
  SegmentTable many = UniformTable(1024, 1);
  for (Segment& s : many.segments) s.layers = 65'535;
  EXPECT_EQ(many.Validate(1024).code(), kInvalid);
}

// Every possible range, compared with the definition.
TEST(SegmentTable, RangeIsExactlyWholeSegments) {
  const SegmentTable table = ThreeSegments();
  const uint32_t layer_at[] = {0, 2, 3, 6};
  const uint64_t begin_at[] = {0, 128, 192};
  const uint64_t end_at[] = {100, 192, 225};
  for (uint32_t first_layer = 0; first_layer < 9; ++first_layer) {
    for (uint32_t layers = 0; layers < 9; ++layers) {
      const uint32_t end_layer = layers == 0 ? 6 : first_layer + layers;
      int first = -1, last = -1;
      for (int i = 0; i < 3; ++i) {
        if (layer_at[i] == first_layer) first = i;
        if (layer_at[i + 1] == end_layer) last = i;
      }
      SegmentRange range;
      const absl::Status status = table.Range(first_layer, layers, &range);
      ASSERT_EQ(status.ok(), first >= 0 && last >= first)
          << first_layer << "+" << layers << " " << status;
      if (!status.ok()) {
        EXPECT_EQ(status.code(), kInvalid);
        continue;
      }
      EXPECT_EQ(range.first, static_cast<uint32_t>(first));
      EXPECT_EQ(range.count, static_cast<uint32_t>(last - first + 1));
      EXPECT_EQ(range.begin, begin_at[first]);
      EXPECT_EQ(range.end, end_at[last]);
    }
  }
}

TEST(SegmentTable, RangeOfHugeNumbersDoesNotWrap) {
  SegmentRange range;
  EXPECT_EQ(ThreeSegments().Range(3, UINT32_MAX, &range).code(), kInvalid);
  EXPECT_EQ(ThreeSegments().Range(UINT32_MAX, 1, &range).code(), kInvalid);
  EXPECT_EQ(ThreeSegments().Range(2, UINT32_MAX, &range).code(),
            kInvalid);  // 2 + (2^32-1) wraps to 1
  EXPECT_EQ(SegmentTable{}.Range(0, 0, &range).code(), kInvalid);
}

TEST(HashBytes, IsXxh3OfSeedZero) {
  EXPECT_EQ(HashBytes({}), 0x2D06800538D394C2u);  // published vector of XXH3-64 for an empty input
}

TEST(HashPayload, EveryStoredByteCountsAndPaddingDoesNot) {
  SegmentTable table = ThreeSegments();
  std::vector<std::byte> payload = Payload(table);
  HashPayload(payload, &table);
  ASSERT_TRUE(table.hashed);
  SegmentRange all;
  ASSERT_TRUE(table.Range(0, 0, &all).ok());
  EXPECT_EQ(FirstDamaged(payload, table, all), -1);
  for (size_t i = 0; i < payload.size(); ++i) {
    payload[i] ^= std::byte{1};
    const int want = i < 100 ? 0 : i < 128 ? -1 : i < 192 ? 1 : 2;
    EXPECT_EQ(FirstDamaged(payload, table, all), want) << i;
    payload[i] ^= std::byte{1};
  }
}

TEST(FirstDamaged, ChecksOnlyItsRange) {
  SegmentTable table = ThreeSegments();
  std::vector<std::byte> payload = Payload(table);
  HashPayload(payload, &table);
  payload[0] ^= std::byte{1};
  payload[200] ^= std::byte{1};
  SegmentRange middle, tail;
  ASSERT_TRUE(table.Range(2, 1, &middle).ok());
  ASSERT_TRUE(table.Range(2, 0, &tail).ok());
  EXPECT_EQ(FirstDamaged(payload, table, middle), -1);
  EXPECT_EQ(FirstDamaged(payload, table, tail), 2);
  EXPECT_EQ(FirstDamaged(std::span(payload).first(192), table, middle), -1);
}

TEST(HashPayloadDeathTest, AShortPayloadIsABug) {
  SegmentTable table = ThreeSegments();
  const std::vector<std::byte> payload = Payload(table);
  EXPECT_DEATH(HashPayload(std::span(payload).first(224), &table), "invariant");
}

}  // namespace
}  // namespace larder
