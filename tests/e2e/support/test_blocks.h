// Blocks whose bytes follow from their names and from the nonce of their writer, so that any
// process can tell whether bytes are right and which writer put them.
//
// Thread-safety: const after construction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "storage/format/block_key.h"
#include "storage/format/layout.h"
#include "storage/types.h"

namespace larder::e2e {

// Fills `bytes` with the bytes of layer `layer` of a block as this writer puts it.  Another name,
// layer, position or writer gives other bytes.
inline void FillLayer(const Digest& digest, uint32_t layer, std::span<std::byte> bytes,
                      uint32_t writer = 0) {
  uint64_t state = digest.Hash64() ^ ((uint64_t{layer} + 1) * 0x9E3779B97F4A7C15u) ^
                   (writer * 0xD1B54A32D192ED03u);
  for (size_t at = 0; at < bytes.size(); at += sizeof state) {
    state += 0x9E3779B97F4A7C15u;
    const uint64_t word = (state ^ (state >> 31)) * 0xBF58476D1CE4E5B9u;
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
  // The nonce, for WriterOf, is in even bytes, which FillFloats does not change.
  for (size_t i = 0; i < sizeof writer && writer != 0 && 2 * i < bytes.size(); ++i)
    bytes[2 * i] = static_cast<std::byte>(writer >> (8 * i));
}

[[nodiscard]] inline bool LayerIsRight(const Digest& digest, uint32_t layer,
                                       std::span<const std::byte> bytes) {
  std::vector<std::byte> want(bytes.size());
  FillLayer(digest, layer, want);
  return std::memcmp(want.data(), bytes.data(), want.size()) == 0;
}

// The same with as few exponents as the 16-bit floats of KV have, so that the bytes can be encoded.
inline void FillFloats(const Digest& digest, uint32_t layer, std::span<std::byte> bytes,
                       uint32_t writer = 0) {
  FillLayer(digest, layer, bytes, writer);
  for (size_t at = 1; at < bytes.size(); at += 2)
    bytes[at] = std::byte{0x3c} | (bytes[at] & std::byte{0x83});
}

struct TestBlock {
  Digest digest, parent;
  std::vector<uint32_t> tokens;
};

// Makes blocks of one content and variant, by number: each is the first block of its own chain.
struct BlockMaker {
  ContentSpec content{.tenant = "default",
                      .model = "e2e",
                      .revision = {},
                      .salt = {},
                      .lora = {},
                      .multimodal = {}};
  VariantSpec variant{.dtype = "f16",
                      .layout = "e2e/rows/1",
                      .rank = 0,
                      .ranks = 1,
                      .group = {},
                      .block_tokens = 16,
                      .layers = 2,
                      .first_layer = 0};

  bool floats = false;  // fills with FillFloats, not FillLayer
  uint32_t writer = 0;  // the nonce of the writer that puts the blocks; 0: the bytes have none

  void Fill(const Digest& digest, uint32_t layer, std::span<std::byte> bytes) const {
    (floats ? FillFloats : FillLayer)(digest, layer, bytes, writer);
  }
  [[nodiscard]] bool IsRight(const Digest& digest, uint32_t layer,
                             std::span<const std::byte> bytes) const {
    std::vector<std::byte> want(bytes.size());
    Fill(digest, layer, want);
    return std::ranges::equal(want, bytes);
  }
  // Returns the writer that put these bytes, or nullopt if they are not all one writer's.
  // REQUIRES: at least 8 bytes.
  [[nodiscard]] std::optional<uint32_t> WriterOf(const Digest& digest, uint32_t layer,
                                                 std::span<const std::byte> bytes) const {
    BlockMaker maker = *this;
    maker.writer = 0;
    for (size_t i = 0; i < sizeof maker.writer; ++i)
      maker.writer |= static_cast<uint32_t>(bytes[2 * i]) << (8 * i);
    if (!maker.IsRight(digest, layer, bytes)) return std::nullopt;
    return maker.writer;
  }
  [[nodiscard]] TestBlock Block(uint32_t number) const {
    TestBlock block;
    block.parent = content.Id();
    for (uint32_t i = 0; i < variant.block_tokens; ++i) block.tokens.push_back(number * 16 + i);
    block.digest = Chain(block.parent, block.tokens).back();
    return block;
  }
  // Returns the table of a block with layers of equal size, with their hashes.
  [[nodiscard]] SegmentTable Table(const Digest& digest, uint32_t layer_bytes) const {
    SegmentTable table = UniformTable(variant.layers, layer_bytes);
    std::vector<std::byte> bytes(layer_bytes);
    for (uint32_t layer = 0; layer < variant.layers; ++layer) {
      FillLayer(digest, layer, bytes);
      table.segments[layer].xxh3 = HashBytes(bytes);
    }
    table.hashed = true;
    return table;
  }
};

// A block with its filled layers, for Session::Put.  Owns all that its PutBlock refers to.
class FilledBlock {
 public:
  FilledBlock(const BlockMaker& maker, TestBlock block, size_t layer_bytes)
      : FilledBlock(std::move(block), maker.variant.layers, layer_bytes,
                    [&maker](const Digest& digest, uint32_t layer, std::span<std::byte> bytes) {
                      maker.Fill(digest, layer, bytes);
                    }) {}
  // Calls fill(digest, layer, bytes) for each layer.
  template <class Fill>
  FilledBlock(TestBlock block, uint32_t layers, size_t layer_bytes, Fill fill)
      : block_(std::move(block)), layers_(layers, std::vector<std::byte>(layer_bytes)) {
    for (uint32_t layer = 0; layer < layers; ++layer) fill(block_.digest, layer, layers_[layer]);
    views_.assign(layers_.begin(), layers_.end());
  }
  // A copy would refer to the layers of the original.
  FilledBlock(FilledBlock&&) = default;

  // The result is valid as long as this block lives, or the block that it is moved into.
  [[nodiscard]] PutBlock ToPut(const Digest& content = {}) const {
    return {.digest = block_.digest,
            .parent = block_.parent,
            .tokens = block_.tokens,
            .segments = views_,
            .content = content};
  }
  [[nodiscard]] const std::vector<std::vector<std::byte>>& layers() const { return layers_; }

 private:
  TestBlock block_;
  std::vector<std::vector<std::byte>> layers_;
  std::vector<std::span<const std::byte>> views_;
};

// Memory for layers of a block, for Session::Get.  All its bytes are 0xDD until a read fills it.
class LayerSpace {
 public:
  LayerSpace(const Digest& digest, uint32_t layers, size_t layer_bytes, uint32_t first_layer = 0)
      : digest_(digest),
        first_layer_(first_layer),
        layers_(layers, std::vector<std::byte>(layer_bytes, std::byte{0xDD})),
        views_(layers_.begin(), layers_.end()) {}
  // A copy would refer to the layers of the original.
  LayerSpace(LayerSpace&&) = default;

  // The result is valid as long as this space lives, or the space that it is moved into.
  [[nodiscard]] GetBlock ToGet() const {
    return {.digest = digest_, .segments = views_, .first_layer = first_layer_};
  }
  // Layer `first_layer` comes first.
  [[nodiscard]] const std::vector<std::vector<std::byte>>& layers() const { return layers_; }

 private:
  Digest digest_;
  uint32_t first_layer_;
  std::vector<std::vector<std::byte>> layers_;
  std::vector<std::span<std::byte>> views_;
};

[[nodiscard]] inline std::string Packed(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

}  // namespace larder::e2e
