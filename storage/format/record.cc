// Offsets and rules in this file are those of docs/format.md, "Record".
#include "storage/format/record.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/format/payload_cursor.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored in memory order");

constexpr std::string_view kMagic = "LRDR";
constexpr size_t kFixedBytes = 88;  // before the content id (in version 1 before the strings)
constexpr size_t kWriterAt = 12;    // offset of the writer's uid, the last field of the prefix
constexpr size_t kEntryBytes = 32;
constexpr size_t kChecksumBytes = 8;
constexpr size_t kStringsAlign = 8;  // the table begins at a multiple of this

// Offsets of a header's parts.  They follow from the lengths that the constructor takes.
struct Places {
  Places(bool content, size_t layout_bytes, size_t dtype_bytes, size_t segments)
      : table(RoundUp(kFixedBytes + (content ? kDigestBytes : 0) + layout_bytes + dtype_bytes,
                      kStringsAlign)),
        table_end(table + segments * kEntryBytes),
        header_bytes(RoundUp(table_end + kChecksumBytes, kSegmentAlign)) {}
  size_t table;
  size_t table_end;
  size_t header_bytes;
};
static_assert(kFixedBytes + kDigestBytes + kLayoutBytesMax + kDtypeBytesMax +
                  kSegmentsMax * kEntryBytes + 2 * kSegmentAlign <=
              kRecordHeaderBytesMax);

class Writer {
 public:
  explicit Writer(std::string* out) : out_(out) {}
  template <class T>
  void Number(T value) {
    static_assert(std::is_unsigned_v<T>);
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    out_->append(bytes, sizeof bytes);
  }
  void Bytes(const Digest& digest) {
    out_->append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  }
  void Bytes(std::string_view bytes) { out_->append(bytes); }
  void ZerosTo(size_t offset) { out_->append(offset - out_->size(), '\0'); }

 private:
  std::string* out_;
};

// Reads values one after the other.  REQUIRES: the bytes that are read exist (CHECKed).
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  [[nodiscard]] T Number() {
    static_assert(std::is_unsigned_v<T>);
    T value;
    std::memcpy(&value, Take(sizeof value).data(), sizeof value);
    return value;
  }
  [[nodiscard]] Digest ReadDigest() {
    Digest digest;
    std::memcpy(digest.bytes.data(), Take(kDigestBytes).data(), kDigestBytes);
    return digest;
  }
  [[nodiscard]] std::string Text(size_t size) {
    return std::string(reinterpret_cast<const char*>(Take(size).data()), size);
  }
  [[nodiscard]] bool ZerosTo(size_t offset) {
    for (const std::byte b : Take(offset - at_)) {
      if (b != std::byte{0}) return false;
    }
    return true;
  }

 private:
  std::span<const std::byte> Take(size_t size) {
    LARDER_CHECK(size <= bytes_.size() - at_);
    at_ += size;
    return bytes_.subspan(at_ - size, size);
  }
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

template <class... Words>
absl::Status Damage(const Words&... words) {
  return absl::DataLossError(absl::StrCat("record header: ", words...));
}

uint32_t Layers(const SegmentTable& table) {
  uint32_t layers = 0;  // 1,024 x 65,535 at most
  for (const Segment& segment : table.segments) layers += segment.layers;
  return layers;
}

// Checks the rules that every header must obey, whether it is to be encoded or was read.  `layers`
// is the number of layers of the block.
absl::Status Check(const RecordHeader& header, uint32_t layers) {
  if (header.layout.empty() || header.layout.size() > kLayoutBytesMax)
    return Damage("the layout name must have 1 to 128 bytes");
  if (header.dtype.empty() || header.dtype.size() > kDtypeBytesMax)
    return Damage("the dtype must have 1 to 32 bytes");
  if (header.block_tokens == 0 || header.block_tokens > kBlockTokensMax ||
      header.block_tokens % kStepTokens != 0) {
    return Damage("the block has ", header.block_tokens,
                  " tokens; it must have a multiple of 16, at most 4096");
  }
  if (header.first_layer > kFirstLayerMax)
    return Damage("the first layer is above 65535: ", header.first_layer);
  if (!header.table.hashed) return Damage("the segments are not hashed");
  const auto says_nothing = [](const Segment& segment) {
    return segment.codec != Codec::kIdentity && segment.raw_bytes == 0;
  };
  if (header.version() >= 3 && std::ranges::any_of(header.table.segments, says_nothing))
    return Damage("an encoded segment does not give its raw length");
  if (absl::Status status = header.table.Validate(layers); !status.ok())
    return Damage(status.message());
  return absl::OkStatus();
}

void WriteTable(const SegmentTable& table, Writer* out) {
  uint32_t layer = 0;
  SegmentCursor at;
  for (const Segment& segment : table.segments) {
    out->Number(segment.layers);
    out->Number(static_cast<uint8_t>(segment.codec));
    out->Number(uint8_t{0});
    out->Number(layer);
    out->Number(at.Next(segment.bytes));
    out->Number(segment.bytes);
    out->Number(segment.raw_bytes);
    out->Number(segment.xxh3);
    layer += segment.layers;
  }
}

// The first layer and the offset of an entry of the table follow from the entries before it, so any
// other value in these fields means that the table is damaged.
absl::Status ReadTable(size_t segments, uint32_t version, Reader* in, SegmentTable* table) {
  table->hashed = true;
  table->segments.reserve(segments);
  uint32_t layer = 0;
  SegmentCursor at;
  for (size_t i = 0; i < segments; ++i) {
    Segment segment;
    segment.layers = in->Number<uint16_t>();
    segment.codec = static_cast<Codec>(in->Number<uint8_t>());
    const auto zero_a = in->Number<uint8_t>();
    const auto first_layer = in->Number<uint32_t>();
    const auto begin = in->Number<uint64_t>();
    segment.bytes = in->Number<uint32_t>();
    segment.raw_bytes = in->Number<uint32_t>();
    segment.xxh3 = in->Number<uint64_t>();
    const bool says_raw = version >= 3 && segment.codec != Codec::kIdentity;
    if (zero_a != 0 || (segment.raw_bytes != 0) != says_raw)
      return Damage("segment ", i,
                    " has a nonzero reserved byte, or a raw length that does not fit its codec "
                    "and the record's version");
    if (first_layer != layer)
      return Damage("segment ", i, " begins at layer ", first_layer, ", not at ", layer);
    if (const uint64_t offset = at.Next(segment.bytes); begin != offset)
      return Damage("segment ", i, " begins at offset ", begin, ", not at ", offset);
    layer += segment.layers;
    table->segments.push_back(segment);
  }
  return absl::OkStatus();
}

uint32_t VersionOf(std::span<const std::byte> header) {
  return Reader(header.subspan(kMagic.size())).Number<uint32_t>();
}

// Reads a whole header, `bytes`, whose checksum has been verified.  Its fields may be wrong all the
// same, if its writer made a mistake or forged it.
absl::StatusOr<RecordHeader> ReadChecked(std::span<const std::byte> bytes) {
  RecordHeader header;
  const uint32_t version = VersionOf(bytes);
  const bool content = version >= 2;
  Reader in(bytes.subspan(kWriterAt));
  // The field is the uid plus 1, and zero means unknown: 0 - 1 is kUnknownUid.
  header.writer_uid = in.Number<uint32_t>() - 1;
  header.key.variant = in.ReadDigest();
  header.key.digest = in.ReadDigest();
  header.parent = in.ReadDigest();
  header.block_tokens = in.Number<uint32_t>();
  header.first_layer = in.Number<uint32_t>();
  const auto layers = in.Number<uint32_t>();
  const size_t segments = in.Number<uint16_t>();
  const size_t layout_bytes = in.Number<uint8_t>();
  const size_t dtype_bytes = in.Number<uint8_t>();
  const auto payload_bytes = in.Number<uint64_t>();
  const Places places(content, layout_bytes, dtype_bytes, segments);
  if (places.header_bytes != bytes.size()) {
    return Damage("its parts have ", places.header_bytes, " bytes, but it says a length of ",
                  bytes.size());
  }
  if (content) header.content = in.ReadDigest();
  header.layout = in.Text(layout_bytes);
  header.dtype = in.Text(dtype_bytes);
  if (!in.ZerosTo(places.table - kWriterAt)) return Damage("padding after the names is not zero");
  LARDER_RETURN_IF_ERROR(ReadTable(segments, version, &in, &header.table));
  if (header.version() != version)
    return Damage("its contents need version ", header.version(), ", but it says version ",
                  version);
  if (!in.ZerosTo(places.header_bytes - kChecksumBytes - kWriterAt)) {
    return Damage("padding after the table is not zero");
  }
  LARDER_RETURN_IF_ERROR(Check(header, layers));
  if (header.table.PayloadBytes() != ByteCount(payload_bytes)) {
    return Damage("it says a payload of ", payload_bytes, " bytes, but its segments need ",
                  header.table.PayloadBytes().value());
  }
  return header;
}

}  // namespace

uint32_t RecordHeader::version() const {
  const auto says_raw = [](const Segment& segment) { return segment.raw_bytes != 0; };
  if (std::ranges::any_of(table.segments, says_raw)) return 3;
  return content == Digest() ? 1 : 2;
}

std::string EncodeRecordHeader(const RecordHeader& header) {
  const uint32_t layers = Layers(header.table);
  LARDER_CHECK(Check(header, layers).ok());
  // Version 3 always has the field for the content id: zero if the content is unknown.
  const bool content = header.version() >= 2;
  const Places places(content, header.layout.size(), header.dtype.size(),
                      header.table.segments.size());
  std::string bytes;
  bytes.reserve(places.header_bytes);
  Writer out(&bytes);
  out.Bytes(kMagic);
  out.Number(header.version());
  out.Number(static_cast<uint32_t>(places.header_bytes));
  out.Number(header.writer_uid + 1);
  out.Bytes(header.key.variant);
  out.Bytes(header.key.digest);
  out.Bytes(header.parent);
  out.Number(header.block_tokens);
  out.Number(header.first_layer);
  out.Number(layers);
  out.Number(static_cast<uint16_t>(header.table.segments.size()));
  out.Number(static_cast<uint8_t>(header.layout.size()));
  out.Number(static_cast<uint8_t>(header.dtype.size()));
  out.Number(header.table.PayloadBytes().value());
  if (content) out.Bytes(header.content);
  out.Bytes(header.layout);
  out.Bytes(header.dtype);
  out.ZerosTo(places.table);
  WriteTable(header.table, &out);
  out.ZerosTo(places.header_bytes - kChecksumBytes);
  out.Number(HashBytes(std::as_bytes(std::span(bytes))));
  return bytes;
}

absl::StatusOr<ByteCount> RecordHeaderBytes(std::span<const std::byte> prefix) {
  if (prefix.size() < kRecordPrefixBytes)
    return Damage("cut short after ", prefix.size(), " bytes");
  Reader in(prefix);
  if (in.Text(kMagic.size()) != kMagic)
    return Damage("the magic is missing, so this is not a record");
  if (const auto version = in.Number<uint32_t>(); version < 1 || version > kRecordVersionMax) {
    return Damage("version ", version, " is unknown; this program reads versions 1 to ",
                  kRecordVersionMax);
  }
  const auto header_bytes = in.Number<uint32_t>();
  if (header_bytes < Places(false, 1, 1, 1).header_bytes || header_bytes > kRecordHeaderBytesMax ||
      header_bytes % kSegmentAlign != 0) {
    return Damage("no header has a length of ", header_bytes, " bytes");
  }
  return ByteCount(header_bytes);
}

absl::StatusOr<DecodedHeader> DecodeRecordHeader(std::span<const std::byte> bytes) {
  LARDER_ASSIGN_OR_RETURN(ByteCount header_bytes, RecordHeaderBytes(bytes));
  const size_t size = header_bytes.value();
  if (bytes.size() < size) return Damage("cut short after ", bytes.size(), " of ", size, " bytes");
  const auto head = bytes.first(size - kChecksumBytes);
  uint64_t checksum;
  std::memcpy(&checksum, bytes.data() + head.size(), sizeof checksum);
  if (HashBytes(head) != checksum) return Damage("the checksum does not match");
  LARDER_ASSIGN_OR_RETURN(RecordHeader header, ReadChecked(bytes.first(size)));
  return DecodedHeader{std::move(header), header_bytes};
}

absl::StatusOr<DecodedHeader> DecodeRecordHeaderOf(const BlockKey& key,
                                                   std::span<const std::byte> bytes) {
  absl::StatusOr<DecodedHeader> decoded = DecodeRecordHeader(bytes);
  if (decoded.ok() && decoded->header.key != key) {
    return Damage("it is that of block ", decoded->header.key.variant.Hex(), "/",
                  decoded->header.key.digest.Hex(), ", not that of block ", key.variant.Hex(), "/",
                  key.digest.Hex());
  }
  return decoded;
}

}  // namespace larder
