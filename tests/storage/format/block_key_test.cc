#include "storage/format/block_key.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "gtest/gtest.h"

namespace larder {
namespace {

nlohmann::json Golden() {
  std::ifstream file(std::string(LARDER_GOLDEN_DIR) + "/keys.json");
  return nlohmann::json::parse(file);
}

std::string Unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

Digest DigestOf(const std::string& hex) {
  const std::string bytes = Unhex(hex);
  Digest digest;
  std::memcpy(digest.bytes.data(), bytes.data(), kDigestBytes);
  return digest;
}

ContentSpec SomeContent() {
  return {.tenant = "default",
          .model = "m",
          .revision = "r",
          .salt = "s",
          .lora = "l",
          .multimodal = "x"};
}

VariantSpec SomeVariant() {
  return {.dtype = "f16",
          .layout = "a/b/1",
          .rank = 1,
          .ranks = 2,
          .group = "full",
          .block_tokens = 16,
          .layers = 4,
          .first_layer = 8};
}

std::vector<uint32_t> Tokens(size_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1u);
  return tokens;
}

TEST(BlockKeyGolden, Contents) {
  const nlohmann::json golden = Golden();
  ASSERT_GE(golden.at("contents").size(), 4u);
  for (const auto& c : golden.at("contents")) {
    const ContentSpec spec{.tenant = c.at("tenant"),
                           .model = c.at("model"),
                           .revision = c.at("revision"),
                           .salt = Unhex(c.at("salt_hex")),
                           .lora = c.at("lora"),
                           .multimodal = Unhex(c.at("multimodal_hex"))};
    EXPECT_TRUE(spec.Validate().ok()) << c;
    EXPECT_EQ(spec.Id().Hex(), c.at("id")) << c;
  }
}

TEST(BlockKeyGolden, Variants) {
  const nlohmann::json golden = Golden();
  ASSERT_GE(golden.at("variants").size(), 4u);
  for (const auto& v : golden.at("variants")) {
    const VariantSpec spec{.dtype = v.at("dtype"),
                           .layout = v.at("layout"),
                           .rank = v.at("rank"),
                           .ranks = v.at("ranks"),
                           .group = v.at("group"),
                           .block_tokens = v.at("block_tokens"),
                           .layers = v.at("layers"),
                           .first_layer = v.at("first_layer")};
    EXPECT_TRUE(spec.Validate().ok()) << v;
    EXPECT_EQ(spec.Id().Hex(), v.at("id")) << v;
  }
}

TEST(BlockKeyGolden, Chains) {
  const nlohmann::json golden = Golden();
  ASSERT_GE(golden.at("chains").size(), 4u);
  for (const auto& c : golden.at("chains")) {
    const std::vector<uint32_t> tokens = c.at("tokens");
    const std::vector<Digest> chain = Chain(DigestOf(c.at("seed")), tokens);
    ASSERT_EQ(chain.size(), c.at("digests").size());
    for (size_t i = 0; i < chain.size(); ++i) EXPECT_EQ(chain[i].Hex(), c.at("digests")[i]) << i;
  }
}

TEST(Chain, NextDigestStepByStepYieldsTheChain) {
  const std::vector<uint32_t> tokens = Tokens(160);
  Digest digest = SomeContent().Id();
  const std::vector<Digest> chain = Chain(digest, tokens);
  ASSERT_EQ(chain.size(), 10u);
  for (size_t i = 0; i < chain.size(); ++i) {
    digest = NextDigest(digest, std::span(tokens).subspan(i * kStepTokens, kStepTokens));
    EXPECT_EQ(digest, chain[i]);
  }
}

TEST(Chain, ContinuesFromAnyStepAndAppends) {
  const std::vector<uint32_t> tokens = Tokens(96);
  const std::vector<Digest> whole = Chain(SomeContent().Id(), tokens);
  std::vector<Digest> parts = Chain(SomeContent().Id(), std::span(tokens).first(32));
  AppendChain(Digest(parts.back()), std::span(tokens).subspan(32), &parts);
  EXPECT_EQ(parts, whole);
}

TEST(Chain, TailOfLessThanAStepIsIgnored) {
  EXPECT_TRUE(Chain(Digest{}, Tokens(15)).empty());
  EXPECT_TRUE(Chain(Digest{}, {}).empty());
  EXPECT_EQ(Chain(Digest{}, Tokens(47)), Chain(Digest{}, Tokens(32)));
}

TEST(Chain, EachTokenChangesItsStepAndAllLaterOnes) {
  const std::vector<uint32_t> tokens = Tokens(64);
  const std::vector<Digest> chain = Chain(Digest{}, tokens);
  for (size_t changed = 0; changed < tokens.size(); ++changed) {
    std::vector<uint32_t> other = tokens;
    other[changed] ^= 1u << (changed % 32);
    const std::vector<Digest> moved = Chain(Digest{}, other);
    for (size_t step = 0; step < chain.size(); ++step) {
      EXPECT_EQ(moved[step] == chain[step], step < changed / kStepTokens) << changed << " " << step;
    }
  }
}

TEST(ChainDeathTest, NextDigestRequiresAWholeStep) {
  EXPECT_DEATH((void)NextDigest(Digest{}, Tokens(15)), "invariant");
}

// The first two bytes of the SHA-256, computed by another program.  The SHA-256 of 88484 begins
// with two zero bytes.
TEST(EngineNumber, IsDerivedFromTheId) {
  EXPECT_EQ(EngineNumber("engine"), 40'941);
  EXPECT_EQ(EngineNumber("writer-1"), 60'171);
  EXPECT_EQ(EngineNumber("88484"), 1) << "zero is not a valid number";
  EXPECT_EQ(EngineNumber("engine-180"), EngineNumber("engine-248"))
      << "different ids may share a number";
}

TEST(ContentSpec, EveryFieldIsPartOfTheName) {
  const std::vector<std::function<void(ContentSpec&)>> changes = {
      [](auto& s) { s.tenant += "1"; },   [](auto& s) { s.model += "1"; },
      [](auto& s) { s.revision += "1"; }, [](auto& s) { s.salt += "1"; },
      [](auto& s) { s.lora += "1"; },     [](auto& s) { s.multimodal += "1"; }};
  std::vector<Digest> ids = {SomeContent().Id()};
  for (const auto& change : changes) {
    ContentSpec spec = SomeContent();
    change(spec);
    ids.push_back(spec.Id());
  }
  std::ranges::sort(ids);
  EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end());
}

TEST(ContentSpec, BytesDoNotMoveBetweenFields) {
  ContentSpec a = SomeContent(), b = SomeContent();
  a.model = "ab", a.revision = "c";
  b.model = "a", b.revision = "bc";
  EXPECT_NE(a.Id(), b.Id());
  a.salt = std::string("\0", 1);
  b = a;
  b.salt.clear();
  EXPECT_NE(a.Id(), b.Id());
}

TEST(ContentSpec, Limits) {
  struct Case {
    std::string ContentSpec::*field;
    size_t least;
    size_t most;
  };
  const Case cases[] = {{&ContentSpec::tenant, 1, 64},    {&ContentSpec::model, 1, 256},
                        {&ContentSpec::revision, 0, 256}, {&ContentSpec::salt, 0, 64},
                        {&ContentSpec::lora, 0, 256},     {&ContentSpec::multimodal, 0, 64}};
  for (const Case& c : cases) {
    ContentSpec spec = SomeContent();
    spec.*c.field = std::string(c.most, 'x');
    EXPECT_TRUE(spec.Validate().ok());
    spec.*c.field = std::string(c.most + 1, 'x');
    EXPECT_EQ(spec.Validate().code(), absl::StatusCode::kInvalidArgument);
    spec.*c.field = "";
    EXPECT_EQ(spec.Validate().ok(), c.least == 0);
  }
}

TEST(VariantSpec, EveryFieldIsPartOfTheName) {
  const std::vector<std::function<void(VariantSpec&)>> changes = {
      [](auto& s) { s.dtype += "1"; }, [](auto& s) { s.layout += "1"; },
      [](auto& s) { s.rank ^= 1; },    [](auto& s) { s.ranks += 1; },
      [](auto& s) { s.group += "1"; }, [](auto& s) { s.block_tokens += 16; },
      [](auto& s) { s.layers += 1; },  [](auto& s) { s.first_layer += 1; }};
  std::vector<Digest> ids = {SomeVariant().Id()};
  for (const auto& change : changes) {
    VariantSpec spec = SomeVariant();
    change(spec);
    EXPECT_TRUE(spec.Validate().ok());
    ids.push_back(spec.Id());
  }
  std::ranges::sort(ids);
  EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end());
}

TEST(VariantSpec, Limits) {
  const std::vector<std::function<void(VariantSpec&)>> good = {
      [](auto& s) { s.dtype = std::string(32, 'x'); },
      [](auto& s) { s.layout = std::string(128, 'x'); },
      [](auto& s) { s.group = ""; },
      [](auto& s) { s.group = std::string(64, 'x'); },
      [](auto& s) { s.ranks = 1024, s.rank = 1023; },
      [](auto& s) { s.block_tokens = 4096; },
      [](auto& s) { s.layers = 1024; },
      [](auto& s) { s.first_layer = 65'535; }};
  const std::vector<std::function<void(VariantSpec&)>> bad = {
      [](auto& s) { s.dtype = ""; },
      [](auto& s) { s.dtype = std::string(33, 'x'); },
      [](auto& s) { s.layout = ""; },
      [](auto& s) { s.layout = std::string(129, 'x'); },
      [](auto& s) { s.group = std::string(65, 'x'); },
      [](auto& s) { s.rank = 2; },
      [](auto& s) { s.ranks = 0; },
      [](auto& s) { s.ranks = 1025; },
      [](auto& s) { s.block_tokens = 0; },
      [](auto& s) { s.block_tokens = 24; },
      [](auto& s) { s.block_tokens = 4112; },
      [](auto& s) { s.layers = 0; },
      [](auto& s) { s.layers = 1025; },
      [](auto& s) { s.first_layer = 65'536; }};
  for (const auto& change : good) {
    VariantSpec spec = SomeVariant();
    change(spec);
    EXPECT_TRUE(spec.Validate().ok()) << spec.Validate();
  }
  for (size_t i = 0; i < bad.size(); ++i) {
    VariantSpec spec = SomeVariant();
    bad[i](spec);
    EXPECT_EQ(spec.Validate().code(), absl::StatusCode::kInvalidArgument) << i;
  }
}

}  // namespace
}  // namespace larder
