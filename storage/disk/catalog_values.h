// How keys and values of a catalog's column families `places` and `headers` are encoded as bytes,
// little endian (docs/format.md, "Disk tier").
//
// The decoding functions accept any bytes, damaged ones too, and return a value or nullopt.
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/format/block_key.h"
#include "storage/types.h"

namespace larder {

struct CatalogPlace {
  Extent extent;  // its slab is the number of the shard's data file
  ByteCount payload_bytes;
  Digest parent;
  uint32_t raw_pages = 0;  // pages of the decoded payload; 0 if the payload is not encoded
  [[nodiscard]] uint32_t RawPages() const {
    return raw_pages != 0 ? raw_pages : PagesFor(payload_bytes);
  }
  friend bool operator==(const CatalogPlace&, const CatalogPlace&) = default;
};

struct CatalogEntry {
  BlockKey key;
  CatalogPlace place;
  std::span<const std::byte> header;  // as returned by EncodeRecordHeader
  std::span<const uint32_t> tokens;
};

// Header and token ids of a block, from the catalog.
struct CatalogDescription {
  std::string header;
  std::vector<uint32_t> tokens;
};

// Encodes a key of the families `places` and `headers`, 32 bytes: variant id, then digest.
[[nodiscard]] std::string KeyOf(const BlockKey& key);
// Decodes a key of the families `places` and `headers`.  Returns nullopt if `value` does not have
// 32 bytes.
[[nodiscard]] std::optional<BlockKey> KeyFrom(std::string_view value);
// Encodes a value of the family `places`.
[[nodiscard]] std::string PlaceValue(const CatalogPlace& place);
// Decodes a value of the family `places`.  Returns nullopt if it is malformed.
[[nodiscard]] std::optional<CatalogPlace> PlaceFrom(std::string_view value);
// Encodes a value of the family `headers`: the header, then the token ids.
[[nodiscard]] std::string HeaderValue(const CatalogEntry& entry);
// Splits a value of the family `headers` into header and token ids.  Returns nullopt if `value` is
// malformed, but does not verify the header's checksum.
[[nodiscard]] std::optional<CatalogDescription> DescriptionFrom(std::string_view value);

}  // namespace larder
