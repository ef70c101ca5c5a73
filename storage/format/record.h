// A block as stored on disk or sent to a peer: header, segment table, checksum of both, payload
// (docs/format.md).
//
// The daemon alone makes header and table; they never lie in memory that a client can write.  The
// header carries the key, so a record in the wrong place is seen; it has a checksum of its own, so
// a flipped length is seen before it is believed; every segment has its own hash, so a range of
// layers can be read and checked alone.
//
// Decoding treats its input as hostile: any bytes give a value or a Status, never a crash or a huge
// allocation.
// Thread-safety: pure functions.  Little endian.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/format/block_key.h"
#include "storage/format/layout.h"
#include "storage/types.h"

namespace larder {

// A record of version 1 does not say its content; one of version 2 does.  One of version 3 has
// encoded segments and says how long they are once decoded.  Else they are the same.
inline constexpr uint32_t kRecordVersionMax = 3;

struct RecordHeader {
  BlockKey key;
  Digest parent;   // digest of the block before, or the content id
  Digest content;  // content id; Digest{}: nobody said
  uint32_t block_tokens = 0;
  uint32_t first_layer = 0;
  std::string layout;  // name, <= 128 bytes
  std::string dtype;   // <= 32 bytes
  SegmentTable table;  // hashed
  // Of whom it is, on disk alone: what is sent elsewhere does not say it.
  uint32_t writer_uid = BlockWriter::kUnknownUid;
  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
  // The least that can say it.
  [[nodiscard]] uint32_t version() const;
};

// Header and table, zeros, and the checksum as the last 8 bytes: a multiple of 64 B, so that the
// payload behind it is aligned.
// REQUIRES: header.table is valid and hashed.
[[nodiscard]] std::string EncodeRecordHeader(const RecordHeader& header);

struct DecodedHeader {
  RecordHeader header;
  ByteCount header_bytes;  // where the payload begins
};
// DataLoss: not a record, another version, cut short, checksum wrong, or nonsense inside.
[[nodiscard]] absl::StatusOr<DecodedHeader> DecodeRecordHeader(std::span<const std::byte> bytes);

// As above, and DataLoss when the record is not that of `key`.
[[nodiscard]] absl::StatusOr<DecodedHeader> DecodeRecordHeaderOf(const BlockKey& key,
                                                                 std::span<const std::byte> bytes);

// How many bytes to have before DecodeRecordHeader can succeed, from the first 16; DataLoss if not
// a record.
inline constexpr size_t kRecordPrefixBytes = 16;
inline constexpr size_t kRecordHeaderBytesMax = 64 * 1024;
[[nodiscard]] absl::StatusOr<ByteCount> RecordHeaderBytes(std::span<const std::byte> prefix);

}  // namespace larder
