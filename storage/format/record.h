// A block as stored on disk or sent to a peer: header, segment table, checksum of both, payload
// (docs/format.md).
//
// Only the daemon writes the header and the table; they never lie in memory that a client can
// write.  The header contains the key, so a reader notices a record in the wrong place.  The header
// has a checksum, so a reader notices a flipped length before it uses the length.  Every segment
// has a hash, so a reader can read and check a range of layers alone.
//
// Decoding treats its input as hostile: for any bytes it returns a value or a Status, and never
// crashes or makes a huge allocation.
// Thread-safety: pure functions.  Numbers are little endian.
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

// Version 1 of a record has no field for the content id; versions 2 and 3 have one.  Version 3 has
// encoded segments and states their decoded lengths.  Otherwise the versions are the same.
inline constexpr uint32_t kRecordVersionMax = 3;

struct RecordHeader {
  BlockKey key;
  Digest parent;   // digest of the block before this one, or the content id
  Digest content;  // content id; Digest{} if unknown
  uint32_t block_tokens = 0;
  uint32_t first_layer = 0;
  std::string layout;  // name, <= 128 bytes
  std::string dtype;   // <= 32 bytes
  SegmentTable table;  // hashed
  // The user whose process stored the block, kept on disk only: a record that is sent to a peer
  // does not contain it.
  uint32_t writer_uid = BlockWriter::kUnknownUid;
  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
  // The lowest version that can represent this header.
  [[nodiscard]] uint32_t version() const;
};

// Returns the header and the segment table, then zeros, then the checksum in the last 8 bytes.  The
// length of all this is a multiple of 64 B, so that the payload that follows is aligned.
// REQUIRES: header.table is valid and hashed.
[[nodiscard]] std::string EncodeRecordHeader(const RecordHeader& header);

struct DecodedHeader {
  RecordHeader header;
  ByteCount header_bytes;  // where the payload begins
};
// Returns DataLoss if the bytes are not a record, are of an unknown version, are cut short, have a
// wrong checksum, or contain an invalid value.
[[nodiscard]] absl::StatusOr<DecodedHeader> DecodeRecordHeader(std::span<const std::byte> bytes);

// As DecodeRecordHeader; also returns DataLoss if the record is of another block than `key`.
[[nodiscard]] absl::StatusOr<DecodedHeader> DecodeRecordHeaderOf(const BlockKey& key,
                                                                 std::span<const std::byte> bytes);

// Returns, from the first 16 bytes, how many bytes DecodeRecordHeader needs, or DataLoss if they do
// not begin a record.
inline constexpr size_t kRecordPrefixBytes = 16;
inline constexpr size_t kRecordHeaderBytesMax = 64 * 1024;
[[nodiscard]] absl::StatusOr<ByteCount> RecordHeaderBytes(std::span<const std::byte> prefix);

}  // namespace larder
