// What every codec promises (storage/codec/block_codec.h), as tests.  A codec's test instantiates
// them with its kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/codec/host_codecs.h"
#include "tests/contract/codec_shapes.h"

namespace larder {

class BlockCodecContract : public ::testing::TestWithParam<Codec> {
 protected:
  // Returns nullopt if encoding does not make the bytes smaller.
  [[nodiscard]] std::optional<Bytes> Encode(const Bytes& raw, size_t element_bytes = 2) {
    Bytes to(raw.size() + kGuard, std::byte{0xEE});
    const auto size = codec_->Encode(raw, element_bytes, std::span(to).first(raw.size()));
    for (size_t i = 0; i < kGuard; ++i) EXPECT_EQ(to[raw.size() + i], std::byte{0xEE});
    if (!size) return std::nullopt;
    EXPECT_LT(*size, raw.size());
    to.resize(*size);
    return to;
  }
  [[nodiscard]] absl::StatusOr<Bytes> Decode(const Bytes& encoded) {
    const absl::StatusOr<size_t> size = codec_->DecodedBytes(encoded);
    if (!size.ok()) return size.status();
    if (*size > kMost) return absl::DataLossError("more than the test reserves");
    Bytes to(*size + kGuard, std::byte{0xEE});
    const absl::Status status = codec_->Decode(encoded, std::span(to).first(*size));
    for (size_t i = 0; i < kGuard; ++i) EXPECT_EQ(to[*size + i], std::byte{0xEE});
    if (!status.ok()) return status;
    to.resize(*size);
    return to;
  }

  static constexpr size_t kGuard = 64, kMost = 64 << 20;
  const std::unique_ptr<BlockCodec> codec_ = MakeHostCodec(GetParam());
};

TEST_P(BlockCodecContract, ReportsItsId) {
  ASSERT_NE(codec_, nullptr);
  EXPECT_EQ(codec_->id(), GetParam());
}

// All small lengths, so that every remainder occurs, and some large ones.
TEST_P(BlockCodecContract, DecodingReturnsTheEncodedBytes) {
  std::vector<size_t> sizes;
  for (size_t size = 1; size < 300; ++size) sizes.push_back(size);
  for (const size_t size : {4095, 8191, 8192, 8193, 24'576, 100'003, 1 << 20})
    sizes.push_back(size);
  for (const size_t size : sizes) {
    for (const size_t element_bytes : {1, 2, 4}) {
      for (const Bytes& raw : {Noise(size), Floats(size), Bytes(size), Bytes(size, std::byte{7})}) {
        const std::optional<Bytes> encoded = Encode(raw, element_bytes);
        if (!encoded) continue;
        const absl::StatusOr<Bytes> decoded = Decode(*encoded);
        ASSERT_TRUE(decoded.ok()) << size << " " << element_bytes << ": " << decoded.status();
        if (codec_->lossless()) {
          ASSERT_EQ(*decoded, raw) << size << " " << element_bytes;
        }
        ASSERT_EQ(decoded->size(), raw.size());
      }
    }
  }
}

TEST_P(BlockCodecContract, DoesNotEncodeNoise) {
  for (const size_t size : {1, 2, 15, 16, 100, 4096, 65'537}) EXPECT_FALSE(Encode(Noise(size)));
}

// Segments are encoded in turn and repeatedly: nothing of one segment affects the next.
TEST_P(BlockCodecContract, CanBeReused) {
  const Bytes large = Floats(1 << 20), small = Floats(5'000, 2);
  const auto first = Encode(small);
  (void)Encode(large);
  EXPECT_EQ(Encode(small), first);
  if (!first) return;
  EXPECT_EQ(*Decode(*first), small);
}

// Any bytes that are flipped, cut or added cause an error, or do not change the output.
TEST_P(BlockCodecContract, DamageIsDetected) {
  const Bytes raw = Floats(20'000);
  const std::optional<Bytes> encoded = Encode(raw);
  if (!encoded) return;
  std::mt19937 random(3);
  uint64_t seen = 0;
  for (int i = 0; i < 4'000; ++i) {
    Bytes damaged = *encoded;
    if (i % 4 == 0) {
      damaged.resize(random() % damaged.size());
    } else if (i % 4 == 1) {
      damaged.resize(damaged.size() + 1 + random() % 100);
    } else {
      // First each byte of the front, where the lengths are, then any byte.
      const size_t at = i < 1'000 ? static_cast<size_t>(i) % 200 : random() % damaged.size();
      damaged[at] ^= static_cast<std::byte>(1u << random() % 8);
    }
    const absl::StatusOr<Bytes> decoded = Decode(damaged);
    if (decoded.ok()) {
      ASSERT_EQ(*decoded, raw);
    } else {
      ASSERT_TRUE(absl::IsDataLoss(decoded.status())) << decoded.status();
      ++seen;
    }
  }
  EXPECT_GT(seen, 3'900u);
}

TEST_P(BlockCodecContract, GarbageIsRefused) {
  EXPECT_FALSE(codec_->DecodedBytes({}).ok());
  for (uint32_t seed = 0; seed < 2'000; ++seed) {
    Bytes garbage = Noise(1 + seed % 300, seed);
    if (seed % 2 == 0) garbage[0] = std::byte{1};
    const absl::StatusOr<Bytes> decoded = Decode(garbage);
    if (GetParam() != Codec::kIdentity) {
      EXPECT_FALSE(decoded.ok());
    }
  }
}

}  // namespace larder
