// Blocks that have versions: equal names, and different bytes (and usually sizes) for each version,
// so that old bytes under a newer put are detected.  Facts likewise.
//
// Thread-safety: const after construction.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "storage/disk/disk_tier.h"
#include "storage/disk/page_buffer.h"
#include "tests/support/disk_blocks.h"

namespace larder::powercut {

class VersionedBlock {
 public:
  VersionedBlock(uint32_t number, uint32_t version)
      : pages_(PagesFor(Table(number, version).PayloadBytes())) {
    header_.key = KeyOf(number);
    header_.parent = testing::DigestOf(number);
    header_.block_tokens = kTokens;
    header_.layout = "test/1";
    header_.dtype = "f16";
    header_.table = Table(number, version);
    std::mt19937_64 random = Random(number, version);
    const std::span<std::byte> bytes = pages_.bytes();
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, sizeof word);
    }
    HashPayload(payload(), &header_.table);
    tokens_.assign(kTokens, version);
  }

  [[nodiscard]] static BlockKey KeyOf(uint32_t number) {
    return {.variant = testing::DigestOf(7), .digest = testing::DigestOf(number + 1)};
  }
  // Returns the version that a description names.
  [[nodiscard]] static uint32_t VersionOf(const DiskTier::Description& description) {
    return description.tokens.empty() ? 0 : description.tokens.front();
  }
  [[nodiscard]] const RecordHeader& header() const { return header_; }
  [[nodiscard]] std::span<const std::byte> payload() const {
    return pages_.bytes().first(header_.table.PayloadBytes().value());
  }
  [[nodiscard]] DiskTier::NewBlock AsNew() const {
    return {.header = &header_, .tokens = tokens_, .payload = payload()};
  }
  // Returns true if what was found is this block.
  [[nodiscard]] bool Is(const DiskTier::Description& description,
                        std::span<const std::byte> bytes) const {
    return description.header == header_ && description.tokens == tokens_ &&
           std::ranges::equal(bytes, payload());
  }

 private:
  static constexpr uint32_t kTokens = 32;

  static std::mt19937_64 Random(uint32_t number, uint32_t version) {
    return std::mt19937_64((uint64_t{version} << 32) + number);
  }
  // Now and then a block has many segments, whose headers fill the catalog's log.
  static SegmentTable Table(uint32_t number, uint32_t version) {
    std::mt19937_64 random = Random(number, version);
    const auto segments = static_cast<uint32_t>(1 + random() % (random() % 4 == 0 ? 200 : 12));
    return UniformTable(segments, static_cast<uint32_t>(1 + random() % (100'000 / segments)));
  }

  RecordHeader header_;
  std::vector<uint32_t> tokens_;
  PageBuffer pages_;
};

[[nodiscard]] inline std::string FactKey(uint32_t number) { return absl::StrCat("fact/", number); }
[[nodiscard]] inline std::string FactValue(uint32_t number, uint32_t version) {
  return absl::StrCat(number, " ", version, " ", std::string(number * 7 % 500, 'x'));
}

}  // namespace larder::powercut
