#include "storage/disk/catalog_values.h"

#include <array>
#include <bit>
#include <cstring>

#include "storage/format/record.h"
#include "storage/index/index_entry.h"

namespace larder {
namespace {

static_assert(std::endian::native == std::endian::little,
              "numbers are copied to disk as they lie in memory");

constexpr size_t kKeyBytes = 2 * kDigestBytes;
constexpr size_t kPlaceBytes = 40;  // file, page, pages, raw pages, payload bytes, parent

}  // namespace

std::string KeyOf(const BlockKey& key) {
  std::string out(kKeyBytes, '\0');
  std::memcpy(out.data(), key.variant.bytes.data(), kDigestBytes);
  std::memcpy(out.data() + kDigestBytes, key.digest.bytes.data(), kDigestBytes);
  return out;
}

std::optional<BlockKey> KeyFrom(std::string_view value) {
  if (value.size() != kKeyBytes) return std::nullopt;
  BlockKey key;
  std::memcpy(key.variant.bytes.data(), value.data(), kDigestBytes);
  std::memcpy(key.digest.bytes.data(), value.data() + kDigestBytes, kDigestBytes);
  return key;
}

std::string PlaceValue(const CatalogPlace& place) {
  const std::array<uint32_t, 4> numbers = {static_cast<uint32_t>(place.extent.slab),
                                           place.extent.page, place.extent.pages, place.raw_pages};
  const uint64_t payload = place.payload_bytes.value();
  std::string out(kPlaceBytes, '\0');
  std::memcpy(out.data(), numbers.data(), sizeof numbers);
  std::memcpy(out.data() + sizeof numbers, &payload, sizeof payload);
  std::memcpy(out.data() + sizeof numbers + sizeof payload, place.parent.bytes.data(),
              kDigestBytes);
  return out;
}

std::optional<CatalogPlace> PlaceFrom(std::string_view value) {
  if (value.size() != kPlaceBytes) return std::nullopt;
  std::array<uint32_t, 4> numbers{};
  uint64_t payload = 0;
  CatalogPlace place;
  std::memcpy(numbers.data(), value.data(), sizeof numbers);
  std::memcpy(&payload, value.data() + sizeof numbers, sizeof payload);
  std::memcpy(place.parent.bytes.data(), value.data() + sizeof numbers + sizeof payload,
              kDigestBytes);
  if (numbers[0] > UINT16_MAX || numbers[2] == 0 || numbers[3] >= PackedExtent::kPageLimit)
    return std::nullopt;
  place.extent = {.slab = static_cast<SlabId>(numbers[0]), .page = numbers[1], .pages = numbers[2]};
  place.payload_bytes = ByteCount(payload);
  place.raw_pages = numbers[3];
  if (payload > place.extent.bytes().value()) return std::nullopt;
  return place;
}

std::string HeaderValue(const CatalogEntry& entry) {
  std::string out(reinterpret_cast<const char*>(entry.header.data()), entry.header.size());
  out.append(reinterpret_cast<const char*>(entry.tokens.data()), entry.tokens.size_bytes());
  return out;
}

std::optional<CatalogDescription> DescriptionFrom(std::string_view value) {
  const std::span bytes(reinterpret_cast<const std::byte*>(value.data()), value.size());
  const absl::StatusOr<ByteCount> header = RecordHeaderBytes(bytes);
  if (!header.ok() || header->value() > value.size()) return std::nullopt;
  const size_t rest = value.size() - header->value();
  if (rest % sizeof(uint32_t) != 0 || rest / sizeof(uint32_t) > kBlockTokensMax)
    return std::nullopt;
  CatalogDescription out{.header = std::string(value.data(), header->value()),
                         .tokens = std::vector<uint32_t>(rest / sizeof(uint32_t))};
  std::memcpy(out.tokens.data(), value.data() + header->value(), rest);
  return out;
}

}  // namespace larder
