// What is known of a block besides its bytes: its parent in the digest chain, the content that the
// chain belongs to, its token ids, its segment table, and its writer.
//
// Immutable except for the hashes of the segments: if the writer did not compute them, the daemon
// sets them later, at most once (SetHashes).
// Ownership: by unique_ptr; the index owns the metadata of its blocks.  Each is one allocation.
// Thread-safety: all methods from any thread.
// Limits: those of layout.h for the table, kBlockTokensMax token ids.
// Memory: 64 B, 4 B per token id, and 15 B per segment, or 19 B per segment if any is encoded.
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
  // A custom operator, since the allocation is longer than the object.
  static void operator delete(void* memory) { ::operator delete(memory); }

  // The digest of the previous block of the chain; the content id for the first block.
  [[nodiscard]] const Digest& parent() const { return parent_; }
  // The id of the content that the block's chain belongs to; Digest{} if unknown.
  [[nodiscard]] const Digest& content() const { return content_; }
  [[nodiscard]] std::span<const uint32_t> tokens() const;
  [[nodiscard]] BlockWriter writer() const { return {writer_uid_, writer_engine_}; }

  [[nodiscard]] uint32_t segment_count() const { return segment_count_; }
  // Returns segment i, whose xxh3 is 0 until hashed().  REQUIRES: i < segment_count().
  [[nodiscard]] Segment segment(uint32_t i) const;
  [[nodiscard]] SegmentTable Table() const;
  // Returns a table of the segments in `range` only.  REQUIRES: the block has these segments.
  [[nodiscard]] SegmentTable Table(const SegmentRange& range) const;
  [[nodiscard]] ByteCount payload_bytes() const {
    return payload_bytes_;
  }  // as SegmentTable::PayloadBytes
  [[nodiscard]] ByteCount stored_bytes() const {
    return stored_bytes_;
  }  // as SegmentTable::StoredBytes
  // Returns the size of the payload after decoding, in which an encoded segment of unknown raw
  // length counts with its stored length; payload_bytes() if no segment is encoded.
  [[nodiscard]] ByteCount raw_payload_bytes() const;
  [[nodiscard]] bool encoded() const { return encoded_; }
  [[nodiscard]] ByteCount memory_bytes() const;

  // Whether the hashes are set.  If this returns true, the calling thread sees all of them.
  [[nodiscard]] bool hashed() const {
    return hash_state_.load(std::memory_order_acquire) == kHashed;
  }
  // Sets the hashes of all segments unless they are set already.  If several threads call it at
  // once, one writes them and the other threads wait, so that hashed() is true on every return.
  // REQUIRES: hashes.size() == segment_count().
  void SetHashes(std::span<const uint64_t> hashes) const;

 private:
  enum HashState : uint8_t { kUnhashed, kWriting, kHashed };

  BlockMetadata(const Digest& parent, std::span<const uint32_t> tokens, const SegmentTable& table,
                const Digest& content, const BlockWriter& writer);
  static void* operator new(size_t, void* memory) { return memory; }

  // The arrays follow the object, widest elements first so that each array is aligned: hashes,
  // stored lengths, token ids, raw lengths (if any segment is encoded), layers, codecs.
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
  const uint32_t writer_uid_;  // not a BlockWriter, which would need padding
  const uint16_t writer_engine_;
  const bool encoded_;
  mutable std::atomic<uint8_t> hash_state_{kUnhashed};
};

}  // namespace larder
