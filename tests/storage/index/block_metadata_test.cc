#include "storage/index/block_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <numeric>
#include <thread>
#include <vector>

#include "storage/format/block_key.h"

namespace larder {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

Digest SomeDigest() {
  Digest digest;
  digest.bytes.fill(std::byte{7});
  return digest;
}

SegmentTable MixedTable(bool hashed) {
  SegmentTable table;
  table.segments = {
      {.layers = 1, .codec = Codec::kIdentity, .bytes = 100, .xxh3 = 11},
      {.layers = 5, .codec = Codec::kLossless, .bytes = 64, .xxh3 = 22, .raw_bytes = 300},
      {.layers = 2, .codec = Codec::kJoint, .bytes = 1, .xxh3 = 33}};
  table.hashed = hashed;
  return table;
}

TEST(BlockMetadata, ReturnsWhatItWasMadeFrom) {
  std::vector<uint32_t> tokens(48);
  std::iota(tokens.begin(), tokens.end(), 1'000'000u);
  const SegmentTable table = MixedTable(/*hashed=*/true);
  const auto metadata = BlockMetadata::Make(SomeDigest(), tokens, table);
  EXPECT_EQ(metadata->parent(), SomeDigest());
  EXPECT_THAT(metadata->tokens(), ElementsAreArray(tokens));
  EXPECT_EQ(metadata->segment_count(), 3u);
  EXPECT_EQ(metadata->segment(1), table.segments[1]);
  EXPECT_EQ(metadata->Table(), table);
  EXPECT_EQ(metadata->payload_bytes(), table.PayloadBytes());
  EXPECT_EQ(metadata->stored_bytes(), table.StoredBytes());
  EXPECT_TRUE(metadata->encoded());
  EXPECT_EQ(metadata->raw_payload_bytes(), ByteCount(128 + 320 + 1));
  EXPECT_TRUE(metadata->hashed());
}

TEST(BlockMetadata, MemoryIsAsDocumented) {
  const std::vector<uint32_t> tokens(16);
  const auto metadata = BlockMetadata::Make({}, tokens, MixedTable(true));
  EXPECT_EQ(metadata->memory_bytes(), ByteCount(64 + 4 * 16 + 19 * 3));
  const auto raw = BlockMetadata::Make({}, tokens, UniformTable(3, 100));
  EXPECT_EQ(raw->memory_bytes(), ByteCount(64 + 4 * 16 + 15 * 3));
}

TEST(BlockMetadata, TheWriterTakesNoExtraMemory) {
  const std::vector<uint32_t> tokens(16);
  const auto unknown = BlockMetadata::Make({}, tokens, MixedTable(true));
  EXPECT_EQ(unknown->writer(), BlockWriter());
  for (const BlockWriter writer : {BlockWriter{.uid = 0, .engine = 1},
                                   BlockWriter{.uid = UINT32_MAX - 1, .engine = UINT16_MAX}}) {
    const auto metadata = BlockMetadata::Make({}, tokens, MixedTable(true), {}, writer);
    EXPECT_EQ(metadata->writer(), writer);
    EXPECT_EQ(metadata->Table(), MixedTable(true));
    EXPECT_EQ(metadata->memory_bytes(), unknown->memory_bytes());
  }
}

TEST(BlockWriter, CoversTheEnginesOfAUser) {
  const BlockWriter user{.uid = 7, .engine = 0}, engine{.uid = 7, .engine = 3};
  EXPECT_TRUE(user.Covers(engine));
  EXPECT_TRUE(engine.Covers(engine));
  EXPECT_FALSE(engine.Covers(user)) << "the block's engine is unknown";
  EXPECT_FALSE(engine.Covers({.uid = 7, .engine = 4}));
  EXPECT_FALSE(user.Covers({.uid = 8, .engine = 3}));
  EXPECT_FALSE(user.Covers({}));
  EXPECT_TRUE(BlockWriter().Covers({}));
  EXPECT_FALSE(BlockWriter().Covers(user));
}

TEST(BlockMetadata, MayBeWithoutTokens) {
  const auto metadata = BlockMetadata::Make({}, {}, UniformTable(1, 1));
  EXPECT_THAT(metadata->tokens(), IsEmpty());
  EXPECT_EQ(metadata->Table(), UniformTable(1, 1));
}

TEST(BlockMetadata, HoldsTheLargestBlock) {
  const std::vector<uint32_t> tokens(kBlockTokensMax, 9);
  const SegmentTable table = UniformTable(kSegmentsMax, kSegmentBytesMax);
  const auto metadata = BlockMetadata::Make({}, tokens, table);
  EXPECT_EQ(metadata->Table(), table);
  EXPECT_THAT(metadata->tokens(), ElementsAreArray(tokens));
}

TEST(BlockMetadata, HashesAreVisibleOnlyOnceTheyAreSet) {
  const auto metadata = BlockMetadata::Make({}, {}, MixedTable(/*hashed=*/false));
  EXPECT_FALSE(metadata->hashed());
  EXPECT_EQ(metadata->segment(0).xxh3, 0u);
  EXPECT_FALSE(metadata->Table().hashed);

  metadata->SetHashes(std::vector<uint64_t>{11, 22, 33});
  EXPECT_TRUE(metadata->hashed());
  EXPECT_EQ(metadata->Table(), MixedTable(/*hashed=*/true));
}

TEST(BlockMetadata, HashesAreSetOnce) {
  const auto metadata = BlockMetadata::Make({}, {}, MixedTable(/*hashed=*/true));
  metadata->SetHashes(std::vector<uint64_t>{1, 2, 3});
  EXPECT_EQ(metadata->Table(), MixedTable(/*hashed=*/true));
}

TEST(BlockMetadata, RacingSettersAndReaders) {
  constexpr uint32_t kSegments = 256;
  std::vector<uint64_t> hashes(kSegments);
  std::iota(hashes.begin(), hashes.end(), 1u);
  for (int round = 0; round < 100; ++round) {
    const auto metadata = BlockMetadata::Make({}, {}, UniformTable(kSegments, 64));
    std::latch start(4);
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        metadata->SetHashes(hashes);
        EXPECT_TRUE(metadata->hashed());
      });
      threads.emplace_back([&] {
        start.arrive_and_wait();
        const SegmentTable table = metadata->Table();
        for (uint32_t i = 0; i < kSegments; ++i) {
          EXPECT_EQ(table.segments[i].xxh3, table.hashed ? hashes[i] : 0);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace larder
