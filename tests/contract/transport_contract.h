// What every Transport promises, as tests.  An implementation provides a TransportWorld (the
// transport and everything that it talks to) and instantiates:
//
//   INSTANTIATE_TEST_SUITE_P(Loopback, TransportContract,
//                            ::testing::Values(TransportRoad{"loopback", MakeLoopback}));
//
// Each test gets a new world, which holds at least 16 MiB.
#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "client/transport/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace larder {

class TransportWorld {
 public:
  virtual ~TransportWorld() = default;
  virtual Transport& transport() = 0;
  // Registers `spec` under `content`, whose tenant the world fills in.  `seed` receives the
  // content's id.
  virtual VariantHandle Register(ContentSpec content, const VariantSpec& spec, Digest* seed) = 0;
};

struct TransportRoad {
  std::string name;
  std::function<std::unique_ptr<TransportWorld>()> make;
  friend void PrintTo(const TransportRoad& road, std::ostream* out) { *out << road.name; }
};

// A block that owns everything it needs.
struct OwnedBlock {
  Digest digest, parent;
  std::vector<uint32_t> tokens;
  std::vector<std::vector<std::byte>> layers;
  std::vector<std::span<const std::byte>> views;

  [[nodiscard]] PutBlock ToPut() {
    views.assign(layers.begin(), layers.end());
    return {.digest = digest, .parent = parent, .tokens = tokens, .segments = views};
  }
};

// Memory into which `sizes` bytes per layer can be read.
struct OwnedSpace {
  std::vector<std::vector<std::byte>> layers;
  std::vector<std::span<std::byte>> views;

  explicit OwnedSpace(std::span<const size_t> sizes) {
    for (const size_t size : sizes) layers.emplace_back(size, std::byte{0xEE});
    views.assign(layers.begin(), layers.end());
  }
  [[nodiscard]] GetBlock ToGet(const Digest& digest, uint32_t first_layer = 0) {
    return {.digest = digest, .segments = views, .first_layer = first_layer};
  }
};

class TransportContract : public ::testing::TestWithParam<TransportRoad> {
 protected:
  void SetUp() override { world_ = GetParam().make(); }

  VariantHandle Variant(uint32_t layers, uint32_t block_tokens = 16,
                        const char* layout = "test/1") {
    ContentSpec content;
    content.model = "m";
    VariantSpec spec;
    spec.dtype = "f16";
    spec.layout = layout;
    spec.block_tokens = block_tokens;
    spec.layers = layers;
    return world_->Register(content, spec, &seed_);
  }
  // Makes block `index` of a chain.  Its digest, parent and tokens are consistent; its bytes depend
  // on `index` and `salt`.
  OwnedBlock Block(const VariantHandle& variant, uint32_t index, std::span<const size_t> sizes,
                   uint32_t salt = 0) {
    std::vector<uint32_t> tokens((index + 1) * variant.spec.block_tokens);
    std::iota(tokens.begin(), tokens.end(), 7);
    const std::vector<Digest> chain = Chain(seed_, tokens);
    const size_t steps = variant.spec.block_tokens / kStepTokens;
    OwnedBlock block;
    block.digest = chain.back();
    block.parent = index == 0 ? seed_ : chain[index * steps - 1];
    block.tokens.assign(tokens.end() - variant.spec.block_tokens, tokens.end());
    uint32_t state = index * 2654435761u + salt + 1;
    for (const size_t size : sizes) {
      std::vector<std::byte>& layer = block.layers.emplace_back(size);
      for (std::byte& b : layer)
        b = static_cast<std::byte>((state = state * 1664525u + 1013904223u) >> 24);
    }
    return block;
  }
  std::vector<BlockStatus> Put(const VariantHandle& variant, std::span<const PutBlock> blocks,
                               const CallOptions& options = {}) {
    auto result = world_->transport().Put(variant, blocks, options);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : std::vector<BlockStatus>{};
  }
  std::vector<BlockStatus> Get(const VariantHandle& variant, std::span<const GetBlock> blocks) {
    auto result = world_->transport().Get(variant, blocks, {});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : std::vector<BlockStatus>{};
  }
  BlockStatus PutOne(const VariantHandle& variant, OwnedBlock& block,
                     const CallOptions& options = {}) {
    const PutBlock put = block.ToPut();
    const std::vector<BlockStatus> status = Put(variant, {&put, 1}, options);
    return status.size() == 1 ? status[0] : BlockStatus{};
  }
  BlockStatus GetOne(const VariantHandle& variant, const GetBlock& block) {
    const std::vector<BlockStatus> status = Get(variant, {&block, 1});
    return status.size() == 1 ? status[0] : BlockStatus{};
  }

  std::unique_ptr<TransportWorld> world_;
  Digest seed_;
};

TEST_P(TransportContract, ReadsBackBlocksThatWerePut) {
  const std::vector<size_t> sizes = {1, 63, 64, 65, 4096, 70'001};  // every kind of padding
  const VariantHandle variant = Variant(6);
  for (const bool hash : {true, false}) {
    OwnedBlock block = Block(variant, hash ? 0 : 1, sizes);
    EXPECT_EQ(PutOne(variant, block, {.hash = hash}), BlockStatus::kOk);
    OwnedSpace space(sizes);
    EXPECT_EQ(GetOne(variant, space.ToGet(block.digest)), BlockStatus::kOk);
    EXPECT_EQ(space.layers, block.layers);
  }
}

TEST_P(TransportContract, AbsentBlockIsMissing) {
  const std::vector<size_t> sizes = {128};
  const VariantHandle variant = Variant(1);
  OwnedBlock block = Block(variant, 0, sizes);
  OwnedSpace space(sizes);
  EXPECT_EQ(GetOne(variant, space.ToGet(block.digest)), BlockStatus::kMissing);
}

TEST_P(TransportContract, TheSameDigestOfAnotherVariantIsAnotherBlock) {
  const std::vector<size_t> sizes = {128};
  const VariantHandle one = Variant(1);
  const VariantHandle other = Variant(1, 16, "test/2");
  OwnedBlock block = Block(one, 0, sizes);
  EXPECT_EQ(PutOne(one, block), BlockStatus::kOk);
  OwnedSpace space(sizes);
  EXPECT_EQ(GetOne(other, space.ToGet(block.digest)), BlockStatus::kMissing);
}

TEST_P(TransportContract, FirstWriterWins) {
  const std::vector<size_t> sizes = {5000, 200};
  const VariantHandle variant = Variant(2);
  OwnedBlock first = Block(variant, 0, sizes, 1);
  OwnedBlock second = Block(variant, 0, sizes, 2);
  ASSERT_NE(first.layers, second.layers);
  EXPECT_EQ(PutOne(variant, first), BlockStatus::kOk);
  EXPECT_EQ(PutOne(variant, second), BlockStatus::kDuplicate);
  OwnedSpace space(sizes);
  EXPECT_EQ(GetOne(variant, space.ToGet(first.digest)), BlockStatus::kOk);
  EXPECT_EQ(space.layers, first.layers);
}

TEST_P(TransportContract, WrongShapesAreInvalid) {
  const std::vector<size_t> sizes = {300, 300};
  const VariantHandle variant = Variant(2);
  OwnedBlock good = Block(variant, 0, sizes);

  OwnedBlock too_few_layers = good;
  too_few_layers.layers.pop_back();
  EXPECT_EQ(PutOne(variant, too_few_layers), BlockStatus::kInvalid);
  OwnedBlock empty_layer = good;
  empty_layer.layers[1].clear();
  EXPECT_EQ(PutOne(variant, empty_layer), BlockStatus::kInvalid);
  OwnedBlock too_few_tokens = good;
  too_few_tokens.tokens.pop_back();
  EXPECT_EQ(PutOne(variant, too_few_tokens), BlockStatus::kInvalid);
  OwnedBlock other_tokens = good;
  other_tokens.tokens[3] ^= 1;  // the digest no longer follows
  EXPECT_EQ(PutOne(variant, other_tokens), BlockStatus::kInvalid);

  EXPECT_EQ(PutOne(variant, good), BlockStatus::kOk);
  const std::vector<size_t> larger_sizes = {300, 5000}, more_sizes = {300, 300, 300},
                            beyond_sizes = {300};
  OwnedSpace larger(larger_sizes);
  EXPECT_EQ(GetOne(variant, larger.ToGet(good.digest)), BlockStatus::kInvalid);
  OwnedSpace more(more_sizes);
  EXPECT_EQ(GetOne(variant, more.ToGet(good.digest)), BlockStatus::kInvalid);
  OwnedSpace beyond(beyond_sizes);
  EXPECT_EQ(GetOne(variant, beyond.ToGet(good.digest, 2)), BlockStatus::kInvalid);
}

TEST_P(TransportContract, ReadsRangesOfLayers) {
  const std::vector<size_t> sizes = {100, 4097, 64, 9000, 33};
  const VariantHandle variant = Variant(5);
  OwnedBlock block = Block(variant, 0, sizes);
  ASSERT_EQ(PutOne(variant, block), BlockStatus::kOk);
  for (uint32_t first = 0; first < sizes.size(); ++first) {
    for (uint32_t end = first + 1; end <= sizes.size(); ++end) {
      OwnedSpace space{std::span<const size_t>(sizes).subspan(first, end - first)};
      ASSERT_EQ(GetOne(variant, space.ToGet(block.digest, first)), BlockStatus::kOk)
          << first << " " << end;
      for (uint32_t i = first; i < end; ++i) {
        ASSERT_EQ(space.layers[i - first], block.layers[i]) << first << " " << end << " " << i;
      }
    }
  }
}

TEST_P(TransportContract, AnEmptyBatchIsAccepted) {
  const VariantHandle variant = Variant(1);
  EXPECT_TRUE(Put(variant, {}).empty());
  EXPECT_TRUE(Get(variant, {}).empty());
}

TEST_P(TransportContract, TooManyBlocksAreRefused) {
  const VariantHandle variant = Variant(1);
  const std::vector<GetBlock> gets(wire::kKeysMax + 1);
  EXPECT_EQ(world_->transport().Get(variant, gets, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::vector<PutBlock> puts(wire::kKeysMax + 1);
  EXPECT_EQ(world_->transport().Put(variant, puts, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(TransportContract, ABlockMayHaveTheMaximumOfSegments) {
  std::vector<size_t> sizes(kSegmentsMax);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = 1 + i % 200;
  const VariantHandle variant = Variant(kSegmentsMax);
  OwnedBlock block = Block(variant, 0, sizes);
  EXPECT_EQ(PutOne(variant, block), BlockStatus::kOk);
  OwnedSpace space(sizes);
  EXPECT_EQ(GetOne(variant, space.ToGet(block.digest)), BlockStatus::kOk);
  EXPECT_EQ(space.layers, block.layers);
}

TEST_P(TransportContract, EveryBlockOfABatchHasItsOwnStatus) {
  const std::vector<size_t> sizes = {2000, 2000};
  const VariantHandle variant = Variant(2, 32);
  std::vector<OwnedBlock> blocks;
  for (uint32_t i = 0; i < 40; ++i) blocks.push_back(Block(variant, i, sizes));
  ASSERT_EQ(PutOne(variant, blocks[7]), BlockStatus::kOk);

  std::vector<PutBlock> puts;
  for (OwnedBlock& block : blocks) puts.push_back(block.ToPut());
  puts[3].tokens = puts[3].tokens.first(16);
  const std::vector<BlockStatus> put = Put(variant, puts);
  ASSERT_EQ(put.size(), blocks.size());
  std::vector<OwnedSpace> spaces(blocks.size(), OwnedSpace(sizes));
  std::vector<GetBlock> gets;
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(put[i], i == 7   ? BlockStatus::kDuplicate
                      : i == 3 ? BlockStatus::kInvalid
                               : BlockStatus::kOk)
        << i;
    spaces[i].views.assign(spaces[i].layers.begin(), spaces[i].layers.end());
    gets.push_back(spaces[i].ToGet(blocks[i].digest));
  }
  gets[5].segments = gets[5].segments.first(0);
  const std::vector<BlockStatus> got = Get(variant, gets);
  ASSERT_EQ(got.size(), blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(got[i], i == 3   ? BlockStatus::kMissing
                      : i == 5 ? BlockStatus::kInvalid
                               : BlockStatus::kOk)
        << i;
    if (got[i] != BlockStatus::kOk) continue;
    EXPECT_EQ(spaces[i].layers, blocks[i].layers) << i;
  }
}

TEST_P(TransportContract, ABatchMayNameABlockTwice) {
  const std::vector<size_t> sizes = {777};
  const VariantHandle variant = Variant(1);
  OwnedBlock block = Block(variant, 0, sizes);
  const std::vector<PutBlock> puts = {block.ToPut(), block.ToPut()};
  EXPECT_THAT(Put(variant, puts),
              ::testing::ElementsAre(BlockStatus::kOk, BlockStatus::kDuplicate));
  OwnedSpace one(sizes), two(sizes);
  const std::vector<GetBlock> gets = {one.ToGet(block.digest), two.ToGet(block.digest)};
  EXPECT_THAT(Get(variant, gets), ::testing::ElementsAre(BlockStatus::kOk, BlockStatus::kOk));
  EXPECT_EQ(one.layers, block.layers);
  EXPECT_EQ(two.layers, block.layers);
}

}  // namespace larder
