// A block as stored on disk or sent to a peer: header, segment table, checksum of both, payload
// (docs/format.md).
//
// Only a daemon writes the header and the table; they never lie in memory that a client can write.
// The header contains the key, so a reader notices a record in the wrong place.  The header has a
// checksum, which a reader verifies before it relies on any length in the header except the length
// of the header itself, which is bounded.  Every segment has a hash, so a reader can read and check
// a range of layers alone.
//
// Decoding treats its input as hostile: for any bytes it returns a value or a Status, and never
// crashes.  It allocates no more than a header of kRecordHeaderBytesMax needs.
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

// The latest version of a record.  Version 1 has no field for the content id; versions 2 and 3 have
// one.  A record of version 3 has at least one encoded segment and states the decoded lengths of
// its encoded segments.  Otherwise the versions are the same.
inline constexpr uint32_t kRecordVersionMax = 3;

struct RecordHeader {
  BlockKey key;
  Digest parent;   // digest of the block before this one, or the content id
  Digest content;  // content id; Digest{} if unknown
  uint32_t block_tokens = 0;
  uint32_t first_layer = 0;
  std::string layout;  // name, 1 to 128 bytes
  std::string dtype;   // 1 to 32 bytes
  SegmentTable table;  // hashed
  // The uid of the process that stored the block, if known.  A record that is sent to a peer does
  // not contain it.
  uint32_t writer_uid = BlockWriter::kUnknownUid;
  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
  // Returns the lowest version of a record that can represent this header.
  [[nodiscard]] uint32_t version() const;
};

// Returns the encoded header: its fields, the segment table, zeros up to the last 8 bytes, and the
// checksum in these 8.  The length is a multiple of 64 B, so that a payload that follows directly
// is aligned.
// REQUIRES: `header` obeys the limits of docs/format.md, and header.table is hashed (CHECKed).
[[nodiscard]] std::string EncodeRecordHeader(const RecordHeader& header);

struct DecodedHeader {
  RecordHeader header;
  ByteCount header_bytes;  // length of the encoded header, checksum included
};
// Decodes the record header at the beginning of `bytes`, and ignores what follows it.  Returns
// DataLoss if the bytes do not begin a record, or if the header is of an unknown version, is cut
// short, has a wrong checksum or contains an invalid value.
[[nodiscard]] absl::StatusOr<DecodedHeader> DecodeRecordHeader(std::span<const std::byte> bytes);

// Decodes the record header at the beginning of `bytes`.  Returns DataLoss if DecodeRecordHeader
// does, or if the record is one of another block than `key`.
[[nodiscard]] absl::StatusOr<DecodedHeader> DecodeRecordHeaderOf(const BlockKey& key,
                                                                 std::span<const std::byte> bytes);

inline constexpr size_t kRecordPrefixBytes = 16;
inline constexpr size_t kRecordHeaderBytesMax = 64 * 1024;
// Returns how many bytes a record header has, its checksum included, as the first 16 bytes
// (kRecordPrefixBytes) of the record state it: at most kRecordHeaderBytesMax.  Returns DataLoss if
// `prefix` has fewer than 16 bytes or does not begin a record of a known version with a possible
// length.
[[nodiscard]] absl::StatusOr<ByteCount> RecordHeaderBytes(std::span<const std::byte> prefix);

}  // namespace larder
