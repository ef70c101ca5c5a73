// What is known of a block beside its bytes: its parent in the digest chain, the content whose
// chain that is, its token ids, its segment table, who stored it.
//
// Immutable but for one thing: hashes that the writer left to the daemon come later, once
// (SetHashes).
// Ownership: by unique_ptr; the index owns those of its blocks.  One allocation each.
// Thread-safety: all methods from any thread.
// Limits: those of layout.h for the table, kBlockTokensMax token ids.
// Memory: 64 B + 4 B a token id + 15 B a segment, 19 B where any is encoded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "storage/format/layout.h"
#include "storage/types.h"

namespace larder {

class BlockMetadata {
 public:
  // REQUIRES: `table` is valid (SegmentTable::Validate), tokens.size() <= kBlockTokensMax.
  [[nodiscard]] static std::unique_ptr<const BlockMetadata> Make(const Digest& parent,
                                                                 std::span<const uint32_t> tokens,
                                                                 const SegmentTable& table,
                                                                 const Digest& content = {},
                                                                 const BlockWriter& writer = {});
  BlockMetadata(const BlockMetadata&) = delete;
  BlockMetadata& operator=(const BlockMetadata&) = delete;
  // The block's own, since it is longer than its type says.
  static void operator delete(void* memory) { ::operator delete(memory); }

  // Digest of the block before it; the content id for the first.
  [[nodiscard]] const Digest& parent() const { return parent_; }
  // Digest{}: nobody said.
  [[nodiscard]] const Digest& content() const { return content_; }
  [[nodiscard]] std::span<const uint32_t> tokens() const;
  [[nodiscard]] BlockWriter writer() const { return {writer_uid_, writer_engine_}; }

  [[nodiscard]] uint32_t segment_count() const { return segment_count_; }
  // Its xxh3 is 0 until hashed().  REQUIRES: i < segment_count().
  [[nodiscard]] Segment segment(uint32_t i) const;
  [[nodiscard]] SegmentTable Table() const;
  // With the segments of `range` alone.
  [[nodiscard]] SegmentTable Table(const SegmentRange& range) const;
  [[nodiscard]] ByteCount payload_bytes() const {
    return payload_bytes_;
  }  // as SegmentTable::PayloadBytes
  [[nodiscard]] ByteCount stored_bytes() const {
    return stored_bytes_;
  }  // as SegmentTable::StoredBytes
  // Of the payload once it is decoded; payload_bytes() where it is not encoded.
  [[nodiscard]] ByteCount raw_payload_bytes() const;
  [[nodiscard]] bool encoded() const { return encoded_; }
  [[nodiscard]] ByteCount memory_bytes() const;

  // Who sees true sees every hash.
  [[nodiscard]] bool hashed() const {
    return hash_state_.load(std::memory_order_acquire) == kHashed;
  }
  // Hashes of all segments; a no-op when they are there.  Of several at once one writes and the
  // others wait for it, so hashed() is true on return for all.  REQUIRES: hashes.size() ==
  // segment_count().
  void SetHashes(std::span<const uint64_t> hashes) const;

 private:
  enum HashState : uint8_t { kUnhashed, kWriting, kHashed };

  BlockMetadata(const Digest& parent, std::span<const uint32_t> tokens, const SegmentTable& table,
                const Digest& content, const BlockWriter& writer);
  static void* operator new(size_t, void* memory) { return memory; }

  // Behind the object, widest first so that each is aligned: hashes, stored lengths, token ids,
  // raw lengths where any is encoded, layers, codecs.
  [[nodiscard]] static size_t AllocationBytes(size_t segments, size_t tokens, bool encoded);
  [[nodiscard]] uint64_t* hashes() const;
  [[nodiscard]] uint32_t* lengths() const;
  [[nodiscard]] uint32_t* token_ids() const;
  [[nodiscard]] uint32_t* raw_lengths() const;
  [[nodiscard]] uint16_t* layers() const;
  [[nodiscard]] Codec* codecs() const;

  const Digest parent_, content_;
  const ByteCount payload_bytes_;
  const ByteCount stored_bytes_;
  const uint32_t token_count_;
  const uint32_t segment_count_;
  const uint32_t writer_uid_;  // apart from its engine, so that both take no room of their own
  const uint16_t writer_engine_;
  const bool encoded_;
  mutable std::atomic<uint8_t> hash_state_{kUnhashed};
};

}  // namespace larder
