// Blocks for tests of disk tiers.  Every byte follows from a number, so bytes can be checked
// without a copy of them.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "storage/disk/disk_tier.h"
#include "storage/disk/page_buffer.h"

namespace larder::testing {

inline Digest DigestOf(uint64_t number) {
  Digest digest;
  std::memcpy(digest.bytes.data(), &number, sizeof number);
  const uint64_t mixed = number * 0x9E3779B97F4A7C15;
  std::memcpy(digest.bytes.data() + sizeof number, &mixed, sizeof mixed);
  return digest;
}

// A block with its bytes.
class DiskBlock {
 public:
  // Has `segments` segments of `bytes_each`.  The same arguments make the same block.
  DiskBlock(uint64_t number, uint32_t segments, uint32_t bytes_each)
      : number_(number), pages_(PagesFor(UniformTable(segments, bytes_each).PayloadBytes())) {
    header_.key = {.variant = DigestOf(7), .digest = DigestOf(number)};
    header_.parent = DigestOf(number - 1);
    header_.block_tokens = 32;
    header_.layout = "test/1";
    header_.dtype = "f16";
    header_.table = UniformTable(segments, bytes_each);
    std::mt19937_64 random(number);
    const std::span<std::byte> bytes = pages_.bytes();
    for (size_t at = 0; at + sizeof(uint64_t) <= bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, sizeof word);
    }
    HashPayload(payload(), &header_.table);
    tokens_.assign(32, static_cast<uint32_t>(number));
  }
  DiskBlock(DiskBlock&&) = default;
  // Makes the header say that the block is encoded; its bytes cannot be decoded.
  void SetEncoded(uint32_t raw_bytes_each) {
    for (Segment& segment : header_.table.segments) {
      segment.codec = Codec::kLossless;
      segment.raw_bytes = raw_bytes_each;
    }
  }

  // Sets the content of the block's chain, which blocks of older daemons do not name.
  void SetContent(const Digest& content) { header_.content = content; }

  [[nodiscard]] const RecordHeader& header() const { return header_; }
  [[nodiscard]] const BlockKey& key() const { return header_.key; }
  [[nodiscard]] std::span<const std::byte> payload() const {
    return pages_.bytes().first(header_.table.PayloadBytes().value());
  }
  [[nodiscard]] std::span<const uint32_t> tokens() const { return tokens_; }
  [[nodiscard]] SegmentRange all() const {
    return {0, static_cast<uint32_t>(header_.table.segments.size()), 0,
            header_.table.PayloadBytes().value()};
  }
  [[nodiscard]] DiskTier::NewBlock AsNew() const {
    return {.header = &header_, .tokens = tokens_, .payload = payload()};
  }

 private:
  uint64_t number_;
  RecordHeader header_;
  std::vector<uint32_t> tokens_;
  PageBuffer pages_;
};

inline DiskTier::PutResult PutOne(DiskTier& tier, const DiskBlock& block) {
  const DiskTier::NewBlock one = block.AsNew();
  DiskTier::PutResult result;
  tier.Put({&one, 1}, {&result, 1});
  return result;
}

inline void EraseOne(DiskTier& tier, const DiskAddress& address) {
  (void)tier.Erase({&address, 1});  // some tests inject faults
}

inline std::optional<DiskTier::Description> DescribeOne(DiskTier& tier,
                                                        const DiskAddress& address) {
  std::optional<DiskTier::Description> out;
  (void)tier.Describe({&address, 1}, {&out, 1});
  return out;
}

// What Get returned for a range, or why it returned nothing.
struct Got {
  DiskTier::GetStatus status;
  std::vector<std::byte> bytes;  // of the range
};
inline Got GetRange(DiskTier& tier, const DiskAddress& address, const RecordHeader& header,
                    const SegmentRange& range) {
  const ByteCount room = DiskTier::PagesOf(range);
  const PageBuffer pages(PagesFor(room));
  Got got;
  got.status = tier.Get({.block = address, .header = &header, .range = range, .to = pages.bytes()});
  const auto bytes = pages.bytes().subspan(range.begin % kPageBytes, range.end - range.begin);
  if (got.status == DiskTier::GetStatus::kOk) got.bytes = {bytes.begin(), bytes.end()};
  return got;
}

// Returns true if the tier returns the whole block, description and bytes.
inline bool Has(DiskTier& tier, const DiskBlock& block, DiskLocation location) {
  const DiskAddress address{block.key(), location};
  const std::optional<DiskTier::Description> known = DescribeOne(tier, address);
  if (!known || known->header != block.header() ||
      !std::equal(known->tokens.begin(), known->tokens.end(), block.tokens().begin(),
                  block.tokens().end())) {
    return false;
  }
  const Got got = GetRange(tier, address, known->header, block.all());
  return got.status == DiskTier::GetStatus::kOk &&
         std::equal(got.bytes.begin(), got.bytes.end(), block.payload().begin(),
                    block.payload().end());
}

inline std::vector<DiskTier::Entry> RecoverAll(DiskTier& tier) {
  std::vector<DiskTier::Entry> entries;
  const absl::Status status = tier.Recover(
      [&](const DiskTier::Entry& entry) {
        entries.push_back(entry);
        return static_cast<uint32_t>(entries.size());
      },
      [] { return false; });
  LARDER_CHECK(status.ok());
  return entries;
}

// Recovers as the daemon does: the first record of a name is the block, and others are erased.
inline std::vector<DiskTier::Entry> RecoverFirsts(DiskTier& tier) {
  std::vector<DiskTier::Entry> entries;
  absl::flat_hash_set<BlockKey> names;
  const absl::Status status = tier.Recover(
      [&](const DiskTier::Entry& entry) {
        if (!names.insert(entry.key).second) return 0u;
        entries.push_back(entry);
        return static_cast<uint32_t>(entries.size());
      },
      [] { return false; });
  LARDER_CHECK(status.ok());
  return entries;
}

}  // namespace larder::testing
