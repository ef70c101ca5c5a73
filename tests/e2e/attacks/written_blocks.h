// Blocks whose bytes contain the nonce of the process that wrote them, so that a reader sees whose
// bytes it got: those of its own engine, those of an attacker that took or overwrote the name, or
// old ones in place of a new put.
//
// Names follow from a victim's model and a number, as BlockMaker makes them, so an attacker that
// knows the model knows the names, too.
// Thread-safety: pure functions.
#pragma once

#include <cstring>
#include <string>

#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {

inline constexpr uint32_t kWrittenLayerBytes = 16 << 10;  // a block has two layers, so 32 KiB

// Block numbers of a victim.
inline constexpr uint32_t kHotBlocks = 16;   // blocks 0 .. 15 are read repeatedly
inline constexpr uint32_t kColdBegin = 100;  // cold blocks are only on disk most of the time
inline constexpr uint32_t kColdBlocks = 8;
inline constexpr uint32_t kNewBegin = 10'000;  // new blocks are stored while the victim runs
inline constexpr uint32_t kChainBlocks = 16;   // blocks of the prefix that is restored

inline constexpr uint64_t kAttackersNonce = 0xBADBADBADBADBAD1u;

// Another writer, name, layer or position gives other bytes.
inline void FillWritten(uint64_t writer, Digest digest, uint32_t layer,
                        std::span<std::byte> bytes) {
  uint64_t word = 0;
  std::memcpy(&word, digest.bytes.data(), sizeof word);
  word ^= writer * 0x9E3779B97F4A7C15u;
  std::memcpy(digest.bytes.data(), &word, sizeof word);
  FillLayer(digest, layer, bytes);
  if (bytes.size() >= sizeof writer) std::memcpy(bytes.data(), &writer, sizeof writer);
}

[[nodiscard]] inline bool IsWritten(uint64_t writer, const Digest& digest, uint32_t layer,
                                    std::span<const std::byte> bytes) {
  std::vector<std::byte> want(bytes.size());
  FillWritten(writer, digest, layer, want);
  return std::memcmp(want.data(), bytes.data(), want.size()) == 0;
}

// Returns the writer's nonce in these bytes.
[[nodiscard]] inline uint64_t WriterOf(std::span<const std::byte> bytes) {
  uint64_t writer = 0;
  if (bytes.size() >= sizeof writer) std::memcpy(&writer, bytes.data(), sizeof writer);
  return writer;
}

// Returns the maker of one victim's blocks.  The victim's role is "mapped" or "staged".
[[nodiscard]] inline BlockMaker MakerOf(const std::string& role) {
  BlockMaker maker;
  maker.content.model = "attacks/" + role;
  return maker;
}
// Returns the blocks of the prefix that a victim restores.
[[nodiscard]] inline std::vector<TestBlock> PrefixOf(const BlockMaker& maker) {
  const uint32_t block_tokens = maker.variant.block_tokens;
  std::vector<uint32_t> tokens(kChainBlocks * block_tokens);
  for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = 5'000'000 + i;
  std::vector<TestBlock> blocks;
  Digest parent = maker.content.Id();
  for (uint32_t i = 0; i < kChainBlocks; ++i) {
    const auto of_block = std::span(tokens).subspan(i * block_tokens, block_tokens);
    blocks.push_back({.digest = NextDigest(parent, of_block),
                      .parent = parent,
                      .tokens = {of_block.begin(), of_block.end()}});
    parent = blocks.back().digest;
  }
  return blocks;
}
// Returns all blocks that a victim reads.
[[nodiscard]] inline std::vector<TestBlock> ReadBlocksOf(const BlockMaker& maker) {
  std::vector<TestBlock> blocks = PrefixOf(maker);
  for (uint32_t i = 0; i < kHotBlocks; ++i) blocks.push_back(maker.Block(i));
  for (uint32_t i = 0; i < kColdBlocks; ++i) blocks.push_back(maker.Block(kColdBegin + i));
  return blocks;
}
[[nodiscard]] inline std::string EngineOf(const std::string& role) { return "victim-" + role; }

}  // namespace larder::e2e
