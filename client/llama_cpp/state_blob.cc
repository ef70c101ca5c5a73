#include "client/llama_cpp/state_blob.h"

#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "storage/check.h"
#include "storage/status_macros.h"

namespace larder::llama {
namespace {

static_assert(std::endian::native == std::endian::little,
              "states are little endian and copied as they are");

constexpr uint32_t kMagic = 0xaf143cd8;
constexpr uint64_t kHeadBytes = 4 * sizeof(uint32_t);
constexpr uint64_t kCellBytes = 3 * sizeof(uint32_t);
constexpr uint64_t kLayerHeadBytes = 2 * sizeof(uint32_t);
constexpr uint64_t kPlaneHeadBytes = sizeof(int32_t) + sizeof(uint64_t);

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("not a sequence state that can be cut into blocks: ", what));
}

// Reads values from the front of a span.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T>
  [[nodiscard]] bool Read(T* value) {
    if (left_.size() < sizeof(T)) return false;
    std::memcpy(value, left_.data(), sizeof(T));
    left_ = left_.subspan(sizeof(T));
    return true;
  }
  // Skips `count` rows of `bytes_each` bytes, and sets *begin to the first one.  Returns false if
  // fewer bytes are left.  REQUIRES: `count` and `bytes_each` are within the limits of
  // state_blob.h, so that their product does not overflow.
  [[nodiscard]] bool Skip(uint64_t count, uint64_t bytes_each, const std::byte** begin) {
    if (count * bytes_each > left_.size()) return false;
    *begin = left_.data();
    left_ = left_.subspan(count * bytes_each);
    return true;
  }
  [[nodiscard]] bool empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

absl::Status ReadCells(Reader* reader, TokenRange* positions) {
  uint32_t magic = 0, streams = 0, cells = 0;
  int32_t sequence = 0;
  if (!reader->Read(&magic) || !reader->Read(&sequence) || !reader->Read(&streams) ||
      !reader->Read(&cells)) {
    return Malformed("it ends inside its header");
  }
  if (magic != kMagic) return Malformed("its magic number is wrong");
  if (streams != 1) return Malformed(absl::StrCat(streams, " streams instead of 1 (kv_unified)"));
  if (cells == 0 || cells > kStateCellsMax) return Malformed(absl::StrCat(cells, " cells"));
  for (uint32_t i = 0; i < cells; ++i) {
    int32_t position = 0;
    uint32_t sequences = 0;
    if (!reader->Read(&position) || !reader->Read(&sequences) || !reader->Read(&sequence)) {
      return Malformed("it ends inside its cells");
    }
    if (sequences != 1)
      return Malformed(absl::StrCat("cell ", i, " belongs to ", sequences, " sequences"));
    if (position < 0) return Malformed(absl::StrCat("cell ", i, " has a negative position"));
    if (i == 0) positions->begin = static_cast<uint32_t>(position);
    // In 64 bits, because the sum may be above the largest position, an int32_t.
    if (uint64_t{positions->begin} + i != static_cast<uint64_t>(position)) {
      return Malformed(absl::StrCat("cell ", i, " does not continue the positions before it"));
    }
  }
  positions->end = positions->begin + cells;
  return absl::OkStatus();
}

absl::Status ReadPlanes(Reader* reader, uint32_t cells, uint32_t layers,
                        std::vector<PlaneShape>* shapes, std::vector<const std::byte*>* rows) {
  for (uint32_t layer = 0; layer < layers; ++layer) {
    PlaneShape plane;
    const std::byte* begin = nullptr;
    if (!reader->Read(&plane.type) || !reader->Read(&plane.row_bytes)) {
      return Malformed(absl::StrCat("it ends before the rows of layer ", layer));
    }
    if (plane.row_bytes == 0 || plane.row_bytes > kStateRowBytesMax) {
      return Malformed(absl::StrCat("rows of ", plane.row_bytes, " bytes in layer ", layer));
    }
    if (!reader->Skip(cells, plane.row_bytes, &begin)) {
      return Malformed(absl::StrCat("it ends inside the rows of layer ", layer));
    }
    shapes->push_back(plane);
    rows->push_back(begin);
  }
  return absl::OkStatus();
}

// Writes values one after the other.
class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}
  template <class T>
  void Write(T value) {
    std::memcpy(to_, &value, sizeof(T));
    to_ += sizeof(T);
  }

 private:
  std::byte* to_;
};

// The rows of a segment in each of its two planes: the first one, their number, and their sizes.
struct SegmentRows {
  uint64_t first, count, key_bytes, value_bytes;
};

// Returns where the segment of `layer` for `tokens` is in a state of these positions.  REQUIRES:
// `tokens` lies within `positions`; segment_bytes == shape.SegmentBytes(layer, number of tokens).
SegmentRows RowsOf(const StateShape& shape, TokenRange positions, size_t layer, TokenRange tokens,
                   uint64_t segment_bytes) {
  LARDER_CHECK(layer < shape.layers());
  LARDER_CHECK(positions.begin <= tokens.begin && tokens.begin <= tokens.end &&
               tokens.end <= positions.end);
  const SegmentRows rows{.first = tokens.begin - positions.begin,
                         .count = tokens.end - tokens.begin,
                         .key_bytes = shape.keys[layer].row_bytes,
                         .value_bytes = shape.values[layer].row_bytes};
  LARDER_CHECK(segment_bytes == rows.count * (rows.key_bytes + rows.value_bytes));
  return rows;
}

}  // namespace

ByteCount StateShape::SegmentBytes(size_t layer, uint32_t tokens) const {
  return ByteCount((keys[layer].row_bytes + values[layer].row_bytes) * tokens);
}

ByteCount StateShape::StateBytes(uint32_t cells) const {
  ByteCount bytes(kHeadBytes + kCellBytes * cells + kLayerHeadBytes +
                  2 * kPlaneHeadBytes * layers());
  for (size_t layer = 0; layer < layers(); ++layer) bytes += SegmentBytes(layer, cells);
  return bytes;
}

absl::StatusOr<StateView> StateView::Parse(std::span<const std::byte> state) {
  StateView view;
  Reader reader(state);
  LARDER_RETURN_IF_ERROR(ReadCells(&reader, &view.positions_));
  uint32_t transposed = 0, layers = 0;
  if (!reader.Read(&transposed) || !reader.Read(&layers))
    return Malformed("it ends before its layers");
  if (transposed != 0) return Malformed("values are transposed (flash attention is off)");
  if (layers == 0 || layers > kStateLayersMax) return Malformed(absl::StrCat(layers, " layers"));
  const uint32_t cells = view.positions_.end - view.positions_.begin;
  LARDER_RETURN_IF_ERROR(ReadPlanes(&reader, cells, layers, &view.shape_.keys, &view.keys_));
  LARDER_RETURN_IF_ERROR(ReadPlanes(&reader, cells, layers, &view.shape_.values, &view.values_));
  if (!reader.empty()) return Malformed("bytes follow its last row");
  return view;
}

void StateView::CopySegment(size_t layer, TokenRange tokens, std::span<std::byte> segment) const {
  const auto [first, count, key_bytes, value_bytes] =
      RowsOf(shape_, positions_, layer, tokens, segment.size());
  std::memcpy(segment.data(), keys_[layer] + first * key_bytes, count * key_bytes);
  std::memcpy(segment.data() + count * key_bytes, values_[layer] + first * value_bytes,
              count * value_bytes);
}

StateJoiner::StateJoiner(StateShape shape, TokenRange positions)
    : shape_(std::move(shape)),
      positions_(positions),
      row_offsets_(RowOffsets(positions.end - positions.begin)),
      bytes_(std::make_unique_for_overwrite<std::byte[]>(
          shape_.StateBytes(positions.end - positions.begin).value())) {
  LARDER_CHECK(shape_.layers() >= 1 && shape_.layers() <= kStateLayersMax);
  LARDER_CHECK(shape_.keys.size() == shape_.values.size());
  LARDER_CHECK(positions.begin < positions.end && positions.end <= kStateCellsMax);
}

std::vector<uint64_t> StateJoiner::RowOffsets(uint32_t cells) const {
  std::vector<uint64_t> offsets;
  offsets.reserve(2 * shape_.layers());
  uint64_t next = kHeadBytes + kCellBytes * cells + kLayerHeadBytes;
  for (const std::vector<PlaneShape>* planes : {&shape_.keys, &shape_.values}) {
    for (const PlaneShape& plane : *planes) {
      offsets.push_back(next + kPlaneHeadBytes);
      next += kPlaneHeadBytes + plane.row_bytes * cells;
    }
  }
  return offsets;
}

void StateJoiner::PlaceSegment(size_t layer, TokenRange tokens,
                               std::span<const std::byte> segment) {
  const auto [first, count, key_bytes, value_bytes] =
      RowsOf(shape_, positions_, layer, tokens, segment.size());
  std::byte* const keys = bytes_.get() + row_offsets_[layer];
  std::byte* const values = bytes_.get() + row_offsets_[shape_.layers() + layer];
  std::memcpy(keys + first * key_bytes, segment.data(), count * key_bytes);
  std::memcpy(values + first * value_bytes, segment.data() + count * key_bytes,
              count * value_bytes);
}

std::span<const std::byte> StateJoiner::Finish(uint32_t cells) {
  LARDER_CHECK(cells >= 1 && cells <= positions_.end - positions_.begin);
  const std::vector<uint64_t> offsets = RowOffsets(cells);
  const size_t layers = shape_.layers();
  // From front to back: a plane moves only towards the front, where the planes before it have
  // already moved away.
  for (size_t i = 0; i < 2 * layers; ++i) {
    const PlaneShape& plane = i < layers ? shape_.keys[i] : shape_.values[i - layers];
    std::memmove(bytes_.get() + offsets[i], bytes_.get() + row_offsets_[i],
                 plane.row_bytes * cells);
  }
  // Headers last, because rows of a plane that has moved may have been in their place.
  for (size_t i = 0; i < 2 * layers; ++i) {
    const PlaneShape& plane = i < layers ? shape_.keys[i] : shape_.values[i - layers];
    Writer head(bytes_.get() + offsets[i] - kPlaneHeadBytes);
    head.Write(plane.type);
    head.Write(plane.row_bytes);
  }
  Writer front(bytes_.get());
  front.Write(kMagic);
  front.Write(int32_t{0});
  front.Write(uint32_t{1});
  front.Write(cells);
  for (uint32_t i = 0; i < cells; ++i) {
    front.Write(static_cast<int32_t>(positions_.begin + i));
    front.Write(uint32_t{1});
    front.Write(int32_t{0});
  }
  front.Write(uint32_t{0});
  front.Write(static_cast<uint32_t>(layers));
  return {bytes_.get(), shape_.StateBytes(cells).value()};
}

}  // namespace larder::llama
