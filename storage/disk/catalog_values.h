// What a catalog's families hold, as bytes (docs/format.md, "Disk tier").
//
// Decoding treats its input as damaged: any bytes give a value or nullopt.
// Thread-safety: pure functions.  Little endian.
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
  Extent extent;  // slab: the shard's data file
  ByteCount payload_bytes;
  Digest parent;
  uint32_t raw_pages = 0;  // of the payload once it is decoded; 0: it is not encoded
  [[nodiscard]] uint32_t RawPages() const {
    return raw_pages != 0 ? raw_pages : PagesFor(payload_bytes);
  }
  friend bool operator==(const CatalogPlace&, const CatalogPlace&) = default;
};

struct CatalogEntry {
  BlockKey key;
  CatalogPlace place;
  std::span<const std::byte> header;  // as EncodeRecordHeader made it
  std::span<const uint32_t> tokens;
};

// Header and tokens as they were committed.
struct CatalogDescription {
  std::string header;
  std::vector<uint32_t> tokens;
};

[[nodiscard]] std::string KeyOf(const BlockKey& key);
[[nodiscard]] std::optional<BlockKey> KeyFrom(std::string_view value);
// Of `places`.
[[nodiscard]] std::string PlaceValue(const CatalogPlace& place);
[[nodiscard]] std::optional<CatalogPlace> PlaceFrom(std::string_view value);
// Of `headers`.
[[nodiscard]] std::string HeaderValue(const CatalogEntry& entry);
[[nodiscard]] std::optional<CatalogDescription> DescriptionFrom(std::string_view value);

}  // namespace larder
