// Names of blocks: content id, variant id, digest chain, block key.  docs/format.md specifies their
// bytes, so that any language can compute them.
//
// The content id, the variant id and each digest of the chain are the first 16 bytes of a SHA-256.
// The two ids are hashes of a ContentSpec and of a VariantSpec.  The chain has one digest per step
// of 16 tokens, h(i) = H(tag, h(i-1), 16 x u32 little endian), and its seed h(0) is the content id,
// so a digest names its tokens and all tokens before them.  The key of a block is its variant id
// and the digest of its last step.
//
// Thread-safety: values and pure functions.
// Limits: those of docs/format.md; Validate checks the limits of a spec.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "storage/types.h"

namespace larder {

inline constexpr uint32_t kBlockTokensMax = 4096;
inline constexpr uint32_t kLayersMax = 1024;
inline constexpr uint32_t kFirstLayerMax = 65'535;
inline constexpr size_t kStringBytesMax = 256;
inline constexpr size_t kLayoutBytesMax = 128;
inline constexpr size_t kDtypeBytesMax = 32;

// Everything besides the token ids that decides what a block's tokens mean.  `tenant` is the tenant
// that the server authenticated, never a name that a client chose.
struct ContentSpec {
  std::string tenant;      // 1 to 64 bytes
  std::string model;       // 1 to 256 bytes
  std::string revision;    // at most 256 bytes
  std::string salt;        // at most 64 bytes, of any value
  std::string lora;        // at most 256 bytes
  std::string multimodal;  // at most 64 bytes, of any value

  [[nodiscard]] absl::Status Validate() const;
  [[nodiscard]] Digest Id() const;
  friend bool operator==(const ContentSpec&, const ContentSpec&) = default;
};

// Which blocks of a chain an engine needs to go on after a prefix of it (storage/format/prefix.h).
enum class GroupKind : uint8_t {
  kUnknown,  // a kind that a newer client knows; nothing is found for its engine
  kFull,     // all blocks of the prefix: full attention
  kWindow,   // those that cover its last `window_tokens` tokens: a sliding window
  kState,    // the last one, which has the state after its last token: recurrent layers
};

// How an engine lays out its KV in a block.
struct VariantSpec {
  std::string dtype;          // 1 to 32 bytes
  std::string layout;         // 1 to 128 bytes: family/version/isa
  uint32_t rank = 0;          // below `ranks`
  uint32_t ranks = 1;         // 1 to 1,024
  std::string group;          // at most 64 bytes
  uint32_t block_tokens = 0;  // a multiple of 16, from 16 to 4,096
  uint32_t layers = 0;        // 1 to 1,024
  uint32_t first_layer = 0;   // at most 65,535
  // These two are not part of the id: they say how the engine uses the blocks.
  GroupKind kind = GroupKind::kFull;
  uint32_t window_tokens = 0;  // kWindow: at least 1; otherwise 0

  [[nodiscard]] absl::Status Validate() const;
  [[nodiscard]] Digest Id() const;
  friend bool operator==(const VariantSpec&, const VariantSpec&) = default;
};

struct BlockKey {
  Digest variant;
  Digest digest;
  friend bool operator==(const BlockKey&, const BlockKey&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BlockKey& k) {
    return H::combine(std::move(h), k.variant, k.digest);
  }
};

// Returns a number from 1 to 65,535 for an engine id.  The daemon keeps this number with a block in
// host memory, to say which engine stored the block.  It is a hash, so several engines may have the
// same number.
[[nodiscard]] uint16_t EngineNumber(std::string_view engine_id);

// Returns the digest of the step of 16 tokens that follows `previous` (the digest of the step
// before, or the content id for the first step).  REQUIRES: tokens.size() == 16.
[[nodiscard]] Digest NextDigest(const Digest& previous, std::span<const uint32_t> tokens);

// Appends to `out` the digest of each whole step of 16 tokens in `tokens`; tokens after the last
// whole step are ignored.  `seed` is the content id if the tokens begin the chain, otherwise the
// digest of the step before them; it may lie in `out`.
void AppendChain(const Digest& seed, std::span<const uint32_t> tokens, std::vector<Digest>* out);
// Returns the digest of each whole step of 16 tokens in `tokens`; tokens after the last whole step
// are ignored.  `seed` is the content id if the tokens begin the chain, otherwise the digest of the
// step before them.
[[nodiscard]] std::vector<Digest> Chain(const Digest& seed, std::span<const uint32_t> tokens);

}  // namespace larder
