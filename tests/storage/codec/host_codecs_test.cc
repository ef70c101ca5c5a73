// The codecs that run on the CPU: the contract of all codecs, and what each codec is for.
#include "storage/codec/host_codecs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/contract/block_codec_contract.h"

namespace larder {
namespace {

INSTANTIATE_TEST_SUITE_P(HostCodecs, BlockCodecContract,
                         ::testing::ValuesIn(HostCodecs().begin(), HostCodecs().end()),
                         [](const auto& codec) {
                           return "Codec" + std::to_string(static_cast<int>(codec.param));
                         });

TEST(HostCodecs, LosslessShrinksTheHighBytesOfFloats) {
  const auto codec = MakeHostCodec(Codec::kLossless);
  const Bytes raw = Floats(24'576);
  Bytes to(raw.size());
  const auto size = codec->Encode(raw, 2, to);
  ASSERT_TRUE(size);
  EXPECT_LT(*size, raw.size() * 85 / 100);
  const auto as_bytes = codec->Encode(raw, 1, to);
  EXPECT_GT(as_bytes.value_or(raw.size()), *size)
      << "the gain must come from splitting numbers into byte planes";
}

TEST(HostCodecs, HasNoHostCodecForQuantizedAndJoint) {
  for (const Codec codec : {Codec::kQuantized, Codec::kJoint})
    EXPECT_EQ(MakeHostCodec(codec), nullptr);
}

TEST(HostCodecs, KnowsTheElementSizeOfADtype) {
  EXPECT_EQ(ElementBytes("f16"), 2u);
  EXPECT_EQ(ElementBytes("bf16"), 2u);
  EXPECT_EQ(ElementBytes("f32"), 4u);
  EXPECT_EQ(ElementBytes("q8_0"), 1u);
}

}  // namespace
}  // namespace larder
