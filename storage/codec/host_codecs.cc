#include "storage/codec/host_codecs.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/check.h"
#include "storage/format/layout.h"
#include "storage/status_macros.h"
#include "storage/text.h"

namespace larder {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored in memory order");

// zstd's fastest regular level.  Higher levels gain little more (bench/codecs.cc).
constexpr int kZstdLevel = 1;
constexpr uint8_t kPlanesVersion = 1;
constexpr size_t kPlanesMax = 4, kPiecesMax = 2;
// Planes of fewer bytes are not divided into pieces, because zstd stores tables for each piece.
constexpr size_t kPiecesFrom = 4096;

// The header of an encoded segment.  The lengths of the pieces of all planes follow, then the
// pieces, then the raw bytes behind the last whole number, if any.
struct PlanesHeader {
  uint8_t version = kPlanesVersion;
  uint8_t planes = 0;
  uint8_t pieces = 0;  // of each plane
  uint8_t zero = 0;
  uint32_t raw_bytes = 0;
  uint64_t raw_xxh3 = 0;
};
static_assert(sizeof(PlanesHeader) == 16);

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(absl::StrCat("encoded segment: ", AbslView(what)));
}

class Identity final : public BlockCodec {
 public:
  [[nodiscard]] Codec id() const override { return Codec::kIdentity; }
  [[nodiscard]] bool lossless() const override { return true; }
  [[nodiscard]] std::optional<size_t> Encode(std::span<const std::byte>, size_t,
                                             std::span<std::byte>) override {
    return std::nullopt;
  }
  [[nodiscard]] absl::StatusOr<size_t> DecodedBytes(
      std::span<const std::byte> encoded) const override {
    if (encoded.empty()) return Damaged("it is empty");
    return encoded.size();
  }
  [[nodiscard]] absl::Status Decode(std::span<const std::byte> encoded,
                                    std::span<std::byte> to) override {
    LARDER_CHECK(encoded.size() == to.size());
    std::memcpy(to.data(), encoded.data(), to.size());
    return absl::OkStatus();
  }
};

class Planes final : public BlockCodec {
 public:
  [[nodiscard]] Codec id() const override { return Codec::kLossless; }
  [[nodiscard]] bool lossless() const override { return true; }
  [[nodiscard]] std::optional<size_t> Encode(std::span<const std::byte> raw, size_t element_bytes,
                                             std::span<std::byte> to) override;
  [[nodiscard]] absl::StatusOr<size_t> DecodedBytes(
      std::span<const std::byte> encoded) const override;
  [[nodiscard]] absl::Status Decode(std::span<const std::byte> encoded,
                                    std::span<std::byte> to) override;

 private:
  using Lengths = std::array<uint32_t, kPlanesMax * kPiecesMax>;
  struct FreeContext {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  // Returns `bytes` bytes of scratch memory, with undefined contents.  Invalidates the result of
  // the previous call.
  [[nodiscard]] std::span<std::byte> Scratch(size_t bytes) {
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    return std::span(scratch_).first(bytes);
  }
  [[nodiscard]] size_t EncodeStream(std::span<const std::byte> from, std::span<std::byte> to);
  [[nodiscard]] static absl::StatusOr<PlanesHeader> HeaderOf(std::span<const std::byte> encoded);
  // Sets *planes to the raw bytes of each plane, which lie in the scratch memory or, if the plane
  // is stored as it is, in `encoded`.  Sets *rest to the raw bytes behind the last whole number.
  // Returns DataLoss if the segment is malformed.
  [[nodiscard]] absl::Status DecodePlanes(std::span<const std::byte> encoded,
                                          const PlanesHeader& header,
                                          std::array<const std::byte*, kPlanesMax>* planes,
                                          std::span<const std::byte>* rest);

  const std::unique_ptr<ZSTD_CCtx, FreeContext> compress_{ZSTD_createCCtx()};
  const std::unique_ptr<ZSTD_DCtx, FreeContext> decompress_{ZSTD_createDCtx()};
  std::vector<std::byte> scratch_;
};

// This many numbers at a time are copied through an array of the numbers' type, so that the
// compiler can vectorize the loops.
constexpr size_t kBatch = 256;

template <class Element>
void SplitElements(std::span<const std::byte> raw, std::span<std::byte> planes) {
  const size_t count = raw.size() / sizeof(Element);
  Element batch[kBatch];
  for (size_t at = 0; at < count; at += kBatch) {
    const size_t n = std::min(kBatch, count - at);
    std::memcpy(batch, raw.data() + at * sizeof(Element), n * sizeof(Element));
    for (size_t plane = 0; plane < sizeof(Element); ++plane) {
      std::byte* const to = planes.data() + plane * count + at;
      for (size_t i = 0; i < n; ++i) to[i] = static_cast<std::byte>(batch[i] >> (8 * plane));
    }
  }
}

template <class Element>
void JoinElements(const std::array<const std::byte*, kPlanesMax>& planes,
                  std::span<std::byte> raw) {
  const size_t count = raw.size() / sizeof(Element);
  Element batch[kBatch];
  for (size_t at = 0; at < count; at += kBatch) {
    const size_t n = std::min(kBatch, count - at);
    for (size_t i = 0; i < n; ++i) {
      Element element = 0;
      for (size_t plane = 0; plane < sizeof(Element); ++plane)
        element = static_cast<Element>(element | static_cast<Element>(planes[plane][at + i])
                                                     << (8 * plane));
      batch[i] = element;
    }
    std::memcpy(raw.data() + at * sizeof(Element), batch, n * sizeof(Element));
  }
}

void Split(std::span<const std::byte> raw, size_t element_bytes, std::span<std::byte> planes) {
  if (element_bytes == 1) std::memcpy(planes.data(), raw.data(), raw.size());
  if (element_bytes == 2) SplitElements<uint16_t>(raw, planes);
  if (element_bytes == 4) SplitElements<uint32_t>(raw, planes);
}

void Join(const std::array<const std::byte*, kPlanesMax>& planes, size_t element_bytes,
          std::span<std::byte> raw) {
  if (element_bytes == 1) std::memcpy(raw.data(), planes[0], raw.size());
  if (element_bytes == 2) JoinElements<uint16_t>(planes, raw);
  if (element_bytes == 4) JoinElements<uint32_t>(planes, raw);
}

// Returns into how many pieces a plane is divided.  Many engines lay all of K before all of V in a
// segment, and the bytes of these two halves have different frequencies.
size_t PiecesOf(size_t plane_bytes) { return plane_bytes < kPiecesFrom ? 1 : kPiecesMax; }

// Returns {begin, bytes} of piece `i` of a plane.
std::pair<size_t, size_t> PieceOf(size_t plane_bytes, size_t pieces, size_t i) {
  const size_t begin = plane_bytes * i / pieces;
  return {begin, plane_bytes * (i + 1) / pieces - begin};
}

std::optional<size_t> Planes::Encode(std::span<const std::byte> raw, size_t element_bytes,
                                     std::span<std::byte> to) {
  LARDER_CHECK(element_bytes == 1 || element_bytes == 2 || element_bytes == 4);
  LARDER_CHECK(!raw.empty() && raw.size() <= kSegmentBytesMax && to.size() >= raw.size());
  const size_t plane_bytes = raw.size() / element_bytes, pieces = PiecesOf(plane_bytes);
  const size_t whole = plane_bytes * element_bytes;
  const std::span<const std::byte> rest = raw.subspan(whole);
  const size_t streams = element_bytes * pieces;
  size_t at = sizeof(PlanesHeader) + streams * sizeof(uint32_t);
  // The encoded segment, with `rest` at its end, must be at least one byte shorter than the raw
  // one.
  if (at + rest.size() >= raw.size()) return std::nullopt;
  const size_t end = raw.size() - rest.size() - 1;
  const std::span<std::byte> planes = Scratch(whole);
  Split(raw.first(whole), element_bytes, planes);
  Lengths lengths{};
  for (size_t stream = 0; stream < streams; ++stream) {
    const auto [begin, bytes] = PieceOf(plane_bytes, pieces, stream % pieces);
    const auto from = planes.subspan(stream / pieces * plane_bytes + begin, bytes);
    const size_t length = EncodeStream(from, to.subspan(at, end - at));
    if (length == 0) return std::nullopt;
    lengths[stream] = static_cast<uint32_t>(length);
    at += length;
  }
  if (!rest.empty()) std::memcpy(to.data() + at, rest.data(), rest.size());
  const PlanesHeader header{.planes = static_cast<uint8_t>(element_bytes),
                            .pieces = static_cast<uint8_t>(pieces),
                            .raw_bytes = static_cast<uint32_t>(raw.size()),
                            .raw_xxh3 = HashBytes(raw)};
  std::memcpy(to.data(), &header, sizeof header);
  std::memcpy(to.data() + sizeof header, lengths.data(), streams * sizeof(uint32_t));
  return at + rest.size();
}

// Encodes one piece into `to` with zstd, or copies it as it is if zstd does not make it shorter.
// Returns the length written, or 0 if the result does not fit in `to`.
size_t Planes::EncodeStream(std::span<const std::byte> from, std::span<std::byte> to) {
  const size_t room = std::min(from.size() - 1, to.size());
  const size_t length =
      ZSTD_compressCCtx(compress_.get(), to.data(), room, from.data(), from.size(), kZstdLevel);
  if (!ZSTD_isError(length)) return length;
  if (to.size() < from.size()) return 0;
  std::memcpy(to.data(), from.data(), from.size());
  return from.size();
}

absl::StatusOr<PlanesHeader> Planes::HeaderOf(std::span<const std::byte> encoded) {
  PlanesHeader header;
  if (encoded.size() < sizeof header) return Damaged("it is cut short");
  std::memcpy(&header, encoded.data(), sizeof header);
  if (header.version != kPlanesVersion) return Damaged("its version is unknown");
  if (header.raw_bytes == 0 || header.raw_bytes > kSegmentBytesMax)
    return Damaged("its raw length is 0 or above 1 GiB - 1");
  if ((header.planes != 1 && header.planes != 2 && header.planes != 4) || header.zero != 0)
    return Damaged("it must have 1, 2 or 4 planes and a reserved byte of zero");
  if (header.pieces == 0 || header.pieces > kPiecesMax ||
      header.raw_bytes / header.planes < header.pieces)
    return Damaged("its planes cannot have that many pieces");
  return header;
}

absl::StatusOr<size_t> Planes::DecodedBytes(std::span<const std::byte> encoded) const {
  LARDER_ASSIGN_OR_RETURN(const PlanesHeader header, HeaderOf(encoded));
  return header.raw_bytes;
}

absl::Status Planes::DecodePlanes(std::span<const std::byte> encoded, const PlanesHeader& header,
                                  std::array<const std::byte*, kPlanesMax>* planes,
                                  std::span<const std::byte>* rest) {
  const size_t plane_bytes = header.raw_bytes / header.planes;
  const size_t streams = size_t{header.planes} * header.pieces;
  Lengths lengths{};
  size_t at = sizeof header + streams * sizeof(uint32_t);
  if (encoded.size() < at) return Damaged("it is cut short");
  std::memcpy(lengths.data(), encoded.data() + sizeof header, streams * sizeof(uint32_t));
  const std::span<std::byte> scratch = Scratch(plane_bytes * header.planes);
  bool kept = false;  // whether all pieces of the current plane are stored as they are
  for (size_t stream = 0; stream < streams; ++stream) {
    const auto [begin, bytes] = PieceOf(plane_bytes, header.pieces, stream % header.pieces);
    const size_t plane = stream / header.pieces, length = lengths[stream];
    if (length > encoded.size() - at || length > bytes)
      return Damaged("a piece is cut short or too long");
    const std::span<const std::byte> from = encoded.subspan(at, length);
    if (begin == 0) {
      // If all pieces of a plane are stored as they are, the plane is read in place, without a
      // copy.
      const uint32_t last = lengths[stream + header.pieces - 1];
      kept = uint64_t{length} + (header.pieces == 1 ? 0 : last) == plane_bytes;
      (*planes)[plane] = kept ? from.data() : scratch.data() + plane * plane_bytes;
    }
    at += length;
    if (kept) continue;
    const std::span<std::byte> to = scratch.subspan(plane * plane_bytes + begin, bytes);
    if (length == bytes) {
      std::memcpy(to.data(), from.data(), bytes);
      continue;
    }
    const size_t got =
        ZSTD_decompressDCtx(decompress_.get(), to.data(), to.size(), from.data(), from.size());
    if (ZSTD_isError(got) || got != bytes) return Damaged("zstd cannot decode a plane");
  }
  *rest = encoded.subspan(at);
  if (rest->size() != header.raw_bytes % header.planes)
    return Damaged("its length does not match its header");
  return absl::OkStatus();
}

absl::Status Planes::Decode(std::span<const std::byte> encoded, std::span<std::byte> to) {
  LARDER_ASSIGN_OR_RETURN(const PlanesHeader header, HeaderOf(encoded));
  LARDER_CHECK(to.size() == header.raw_bytes);
  std::array<const std::byte*, kPlanesMax> planes{};
  std::span<const std::byte> rest;
  LARDER_RETURN_IF_ERROR(DecodePlanes(encoded, header, &planes, &rest));
  const size_t whole = to.size() - rest.size();
  Join(planes, header.planes, to.first(whole));
  if (!rest.empty()) std::memcpy(to.data() + whole, rest.data(), rest.size());
  return HashBytes(to) == header.raw_xxh3 ? absl::OkStatus()
                                          : Damaged("the decoded bytes do not match their hash");
}

constexpr Codec kHostCodecs[] = {Codec::kIdentity, Codec::kLossless};

}  // namespace

size_t ElementBytes(std::string_view dtype) {
  if (dtype == "f16" || dtype == "bf16") return 2;
  return dtype == "f32" ? 4 : 1;
}

std::unique_ptr<BlockCodec> MakeHostCodec(Codec codec) {
  switch (codec) {
    case Codec::kIdentity:
      return std::make_unique<Identity>();
    case Codec::kLossless:
      return std::make_unique<Planes>();
    case Codec::kQuantized:
    case Codec::kJoint:
      return nullptr;
  }
  return nullptr;
}

std::span<const Codec> HostCodecs() { return kHostCodecs; }

}  // namespace larder
