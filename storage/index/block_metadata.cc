#include "storage/index/block_metadata.h"

#include <algorithm>
#include <new>

#include "storage/check.h"
#include "storage/format/block_key.h"

namespace larder {

std::unique_ptr<const BlockMetadata> BlockMetadata::Make(const Digest& parent,
                                                         std::span<const uint32_t> tokens,
                                                         const SegmentTable& table,
                                                         const Digest& content,
                                                         const BlockWriter& writer) {
  LARDER_CHECK(tokens.size() <= kBlockTokensMax);
  LARDER_CHECK(table.segments.size() <= kSegmentsMax);
  void* memory =
      ::operator new(AllocationBytes(table.segments.size(), tokens.size(), table.encoded()));
  return std::unique_ptr<const BlockMetadata>(
      new (memory) BlockMetadata(parent, tokens, table, content, writer));
}

BlockMetadata::BlockMetadata(const Digest& parent, std::span<const uint32_t> tokens,
                             const SegmentTable& table, const Digest& content,
                             const BlockWriter& writer)
    : parent_(parent),
      content_(content),
      payload_bytes_(table.PayloadBytes()),
      stored_bytes_(table.StoredBytes()),
      token_count_(static_cast<uint32_t>(tokens.size())),
      segment_count_(static_cast<uint32_t>(table.segments.size())),
      writer_uid_(writer.uid),
      writer_engine_(writer.engine),
      encoded_(table.encoded()),
      hash_state_(table.hashed ? kHashed : kUnhashed) {
  std::copy(tokens.begin(), tokens.end(), token_ids());
  for (size_t i = 0; i < table.segments.size(); ++i) {
    const Segment& segment = table.segments[i];
    hashes()[i] = table.hashed ? segment.xxh3 : 0;
    lengths()[i] = segment.bytes;
    layers()[i] = segment.layers;
    codecs()[i] = segment.codec;
    if (encoded_) raw_lengths()[i] = segment.raw_bytes;
  }
}

size_t BlockMetadata::AllocationBytes(size_t segments, size_t tokens, bool encoded) {
  constexpr size_t kSegmentBytes =
      sizeof(uint64_t) + sizeof(uint32_t) + sizeof(uint16_t) + sizeof(Codec);
  static_assert(sizeof(BlockMetadata) == 64, "block_metadata.h says so");
  return sizeof(BlockMetadata) + segments * (kSegmentBytes + (encoded ? sizeof(uint32_t) : 0)) +
         tokens * sizeof(uint32_t);
}

uint64_t* BlockMetadata::hashes() const {
  // The const_cast is valid: the object was not created const, and the arrays behind it cannot be
  // declared mutable.
  return reinterpret_cast<uint64_t*>(const_cast<BlockMetadata*>(this) + 1);
}
uint32_t* BlockMetadata::lengths() const {
  return reinterpret_cast<uint32_t*>(hashes() + segment_count_);
}
uint32_t* BlockMetadata::token_ids() const { return lengths() + segment_count_; }
uint32_t* BlockMetadata::raw_lengths() const { return token_ids() + token_count_; }
uint16_t* BlockMetadata::layers() const {
  return reinterpret_cast<uint16_t*>(raw_lengths() + (encoded_ ? segment_count_ : 0));
}
Codec* BlockMetadata::codecs() const { return reinterpret_cast<Codec*>(layers() + segment_count_); }

std::span<const uint32_t> BlockMetadata::tokens() const { return {token_ids(), token_count_}; }

Segment BlockMetadata::segment(uint32_t i) const {
  LARDER_CHECK(i < segment_count_);
  return Segment{.layers = layers()[i],
                 .codec = codecs()[i],
                 .bytes = lengths()[i],
                 .xxh3 = hashed() ? hashes()[i] : 0,
                 .raw_bytes = encoded_ ? raw_lengths()[i] : 0};
}

SegmentTable BlockMetadata::Table() const { return Table({0, segment_count_, 0, 0}); }

SegmentTable BlockMetadata::Table(const SegmentRange& range) const {
  SegmentTable table;
  // Read once: hashes that are set meanwhile must not produce a half-hashed table.
  table.hashed = hashed();
  table.segments.reserve(range.count);
  for (uint32_t i = range.first; i < range.first + range.count; ++i) {
    table.segments.push_back(Segment{.layers = layers()[i],
                                     .codec = codecs()[i],
                                     .bytes = lengths()[i],
                                     .xxh3 = table.hashed ? hashes()[i] : 0,
                                     .raw_bytes = encoded_ ? raw_lengths()[i] : 0});
  }
  return table;
}

ByteCount BlockMetadata::raw_payload_bytes() const {
  return encoded_ ? Table().Decoded().PayloadBytes() : payload_bytes_;
}

ByteCount BlockMetadata::memory_bytes() const {
  return ByteCount(AllocationBytes(segment_count_, token_count_, encoded_));
}

void BlockMetadata::SetHashes(std::span<const uint64_t> values) const {
  LARDER_CHECK(values.size() == segment_count_);
  uint8_t seen = kUnhashed;
  if (hash_state_.compare_exchange_strong(seen, kWriting, std::memory_order_acquire)) {
    std::copy(values.begin(), values.end(), hashes());
    hash_state_.store(kHashed, std::memory_order_release);
    hash_state_.notify_all();
    return;
  }
  hash_state_.wait(kWriting, std::memory_order_acquire);
}

}  // namespace larder
