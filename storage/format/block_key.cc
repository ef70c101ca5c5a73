// Computes SHA-256 through OpenSSL's low-level calls.  They are deprecated in favour of EVP, but
// one step of the digest chain took 320 ns with EVP_Digest and takes 79 ns as in ChainStep.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "storage/format/block_key.h"

#include <openssl/sha.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "storage/check.h"

namespace larder {
namespace {

using namespace std::string_view_literals;

static_assert(std::endian::native == std::endian::little, "names are hashed in memory order");

// Each tag ends with a NUL, so no tag is a prefix of another.
constexpr std::string_view kContentTag = "larder/content/v1\0"sv;
constexpr std::string_view kVariantTag = "larder/variant/v1\0"sv;
// 16 bytes long, so that the digest behind it in the hashed bytes of a step lies at a multiple of
// 16 bytes.
constexpr std::string_view kChainTag = "larder/chain/v1\0"sv;

constexpr size_t kBlockBytes = SHA256_CBLOCK;
constexpr size_t kStepBytes = kStepTokens * sizeof(uint32_t);
constexpr size_t kStepMessageBytes = kChainTag.size() + kDigestBytes + kStepBytes;
static_assert(kChainTag.size() == 16);
static_assert(kStepMessageBytes + 1 + 8 <= 2 * kBlockBytes, "a step is two compressions");

// The bytes that one step of the digest chain hashes, followed by SHA-256's own padding: two whole
// 64-byte blocks of SHA-256.  SHA256_Update compresses whole blocks directly, so neither the
// context's buffer nor SHA256_Final is needed.  The tag and the padding are written once for a
// whole chain, and each digest is written straight into the bytes of the next step.
class ChainStep {
 public:
  explicit ChainStep(const Digest& seed) {
    std::memcpy(message_, kChainTag.data(), kChainTag.size());
    std::memcpy(message_ + kPreviousAt, seed.bytes.data(), kDigestBytes);
    message_[kStepMessageBytes] = std::byte{0x80};
    constexpr size_t kBits = kStepMessageBytes * 8;
    static_assert(kBits < 1u << 16);
    message_[sizeof message_ - 2] = std::byte{kBits >> 8};
    message_[sizeof message_ - 1] = std::byte{kBits & 0xff};
  }

  // Sets *digest to the digest of the next step, whose 16 token ids begin at `tokens`.
  void Next(const uint32_t* tokens, Digest* digest) {
    std::memcpy(message_ + kPreviousAt + kDigestBytes, tokens, kStepBytes);
    SHA256_CTX sha;
    SHA256_Init(&sha);
    SHA256_Update(&sha, message_, sizeof message_);
    for (size_t i = 0; i < kDigestBytes / 4; ++i) {
      const uint32_t word = __builtin_bswap32(sha.h[i]);  // SHA-256 stores its words big endian
      std::memcpy(message_ + kPreviousAt + 4 * i, &word, sizeof word);
      std::memcpy(digest->bytes.data() + 4 * i, &word, sizeof word);
    }
  }

 private:
  static constexpr size_t kPreviousAt = kChainTag.size();
  alignas(64) std::byte message_[2 * kBlockBytes] = {};
};

// Hashes a ContentSpec or a VariantSpec (docs/format.md, "Specs"): the tag `domain`, then each
// field with its number and length.  The first call of Field adds field 1, the next one field 2.
class SpecHash {
 public:
  explicit SpecHash(std::string_view domain) {
    SHA256_Init(&sha_);
    SHA256_Update(&sha_, domain.data(), domain.size());
  }

  void Field(std::string_view bytes) {
    unsigned char prefix[5] = {++field_};
    const auto length = static_cast<uint32_t>(bytes.size());
    std::memcpy(prefix + 1, &length, sizeof length);
    SHA256_Update(&sha_, prefix, sizeof prefix);
    SHA256_Update(&sha_, bytes.data(), bytes.size());
  }
  void Field(uint32_t number) {
    char bytes[sizeof number];
    std::memcpy(bytes, &number, sizeof number);
    Field(std::string_view(bytes, sizeof bytes));
  }

  [[nodiscard]] Digest Finish() {
    unsigned char hash[SHA256_DIGEST_LENGTH];
    SHA256_Final(hash, &sha_);
    Digest digest;
    std::memcpy(digest.bytes.data(), hash, kDigestBytes);
    return digest;
  }

 private:
  SHA256_CTX sha_;
  uint8_t field_ = 0;
};

absl::Status CheckLength(const char* what, const std::string& value, size_t least, size_t most) {
  if (value.size() >= least && value.size() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", value.size(), " bytes; it must have ", least, " to ", most));
}

absl::Status CheckNumber(const char* what, uint32_t value, uint32_t least, uint32_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, "; it must be ", least, " to ", most));
}

}  // namespace

absl::Status ContentSpec::Validate() const {
  absl::Status status = CheckLength("tenant", tenant, 1, 64);
  if (status.ok()) status = CheckLength("model", model, 1, kStringBytesMax);
  if (status.ok()) status = CheckLength("revision", revision, 0, kStringBytesMax);
  if (status.ok()) status = CheckLength("salt", salt, 0, 64);
  if (status.ok()) status = CheckLength("lora", lora, 0, kStringBytesMax);
  if (status.ok()) status = CheckLength("multimodal", multimodal, 0, 64);
  return status;
}

Digest ContentSpec::Id() const {
  SpecHash hash(kContentTag);
  for (const std::string* field : {&tenant, &model, &revision, &salt, &lora, &multimodal})
    hash.Field(*field);
  return hash.Finish();
}

absl::Status VariantSpec::Validate() const {
  absl::Status status = CheckLength("dtype", dtype, 1, kDtypeBytesMax);
  if (status.ok()) status = CheckLength("layout", layout, 1, kLayoutBytesMax);
  if (status.ok()) status = CheckNumber("ranks", ranks, 1, 1024);
  if (status.ok()) status = CheckNumber("rank", rank, 0, ranks - 1);
  if (status.ok()) status = CheckLength("group", group, 0, 64);
  if (status.ok()) status = CheckNumber("block_tokens", block_tokens, kStepTokens, kBlockTokensMax);
  if (status.ok() && block_tokens % kStepTokens != 0) {
    status = absl::InvalidArgumentError(
        absl::StrCat("block_tokens is ", block_tokens, "; it must be a multiple of ", kStepTokens));
  }
  if (status.ok()) status = CheckNumber("layers", layers, 1, kLayersMax);
  if (status.ok()) status = CheckNumber("first_layer", first_layer, 0, kFirstLayerMax);
  if (status.ok() && kind == GroupKind::kWindow && window_tokens == 0) {
    status = absl::InvalidArgumentError("window_tokens is 0; a window has at least 1 token");
  }
  return status;
}

Digest VariantSpec::Id() const {
  SpecHash hash(kVariantTag);
  hash.Field(dtype);
  hash.Field(layout);
  hash.Field(rank);
  hash.Field(ranks);
  hash.Field(group);
  hash.Field(block_tokens);
  hash.Field(layers);
  hash.Field(first_layer);
  return hash.Finish();
}

Digest NextDigest(const Digest& previous, std::span<const uint32_t> tokens) {
  LARDER_CHECK(tokens.size() == kStepTokens);
  Digest digest;
  ChainStep(previous).Next(tokens.data(), &digest);
  return digest;
}

uint16_t EngineNumber(std::string_view engine_id) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(engine_id.data()), engine_id.size(), hash);
  const auto number = static_cast<uint16_t>(hash[0] | hash[1] << 8);
  return std::max<uint16_t>(number, 1);
}

void AppendChain(const Digest& seed, std::span<const uint32_t> tokens, std::vector<Digest>* out) {
  const size_t steps = tokens.size() / kStepTokens;
  const size_t before = out->size();
  ChainStep chain(seed);  // before resize, because `seed` may lie in *out
  out->resize(before + steps);
  for (size_t i = 0; i < steps; ++i) {
    chain.Next(tokens.data() + i * kStepTokens, &(*out)[before + i]);
  }
}

std::vector<Digest> Chain(const Digest& seed, std::span<const uint32_t> tokens) {
  std::vector<Digest> chain;
  AppendChain(seed, tokens, &chain);
  return chain;
}

}  // namespace larder
