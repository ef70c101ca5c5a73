// How keys and values of a catalog's column families are encoded as bytes, little endian
// (docs/format.md, "Disk tier").
//
// Decoding expects damaged input: it returns a value or nullopt for any bytes.
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

// Header and token ids as they were committed.
struct CatalogDescription {
  std::string header;
  std::vector<uint32_t> tokens;
};

[[nodiscard]] std::string KeyOf(const BlockKey& key);
[[nodiscard]] std::optional<BlockKey> KeyFrom(std::string_view value);
// Values of the family `places`.
[[nodiscard]] std::string PlaceValue(const CatalogPlace& place);
[[nodiscard]] std::optional<CatalogPlace> PlaceFrom(std::string_view value);
// Values of the family `headers`.
[[nodiscard]] std::string HeaderValue(const CatalogEntry& entry);
[[nodiscard]] std::optional<CatalogDescription> DescriptionFrom(std::string_view value);

}  // namespace larder
