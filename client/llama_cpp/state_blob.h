// The bytes of one llama.cpp sequence state: read them, cut them into Larder's segments, join
// segments into a state.
//
// A state (llama_state_seq_get_data; llama.cpp of the version that deploy/build-llama.sh pins) is,
// little endian:
//
//   u32 magic 0xaf143cd8, i32 sequence, u32 streams = 1, u32 cells
//   cells x {i32 position, u32 sequences = 1, i32 sequence}
//   u32 v_transposed = 0, u32 layers
//   layers x {i32 type, u64 row_bytes, cells x row}     keys
//   layers x {i32 type, u64 row_bytes, cells x row}     values
//
// A row is what one token left in one layer, all heads.  A segment is one layer of a block of
// tokens: the key rows of those tokens, then their value rows.  So a cached byte is only ever a
// row: headers are written here, from the shape that this engine itself reported, never from a
// block.
//
// What it does not promise: that the rows make sense (the block's checksum says that they are what
// was stored), nor anything about models with sliding windows, recurrent states or two-dimensional
// positions: Parse refuses theirs.
// Ownership: a StateView borrows the bytes it parsed; a StateJoiner owns its buffer.
// Thread-safety: none needed for StateView (constant); a StateJoiner belongs to one thread.
// Limits: 1,024 layers, rows of up to 1 MiB, 2^24 cells; Parse reads nothing outside the span it
// was given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/types.h"

namespace larder::llama {

inline constexpr uint32_t kStateLayersMax = 1024;
inline constexpr uint32_t kStateCellsMax = 1u << 24;
inline constexpr uint64_t kStateRowBytesMax = 1u << 20;

// One plane of a state: the keys, or the values, of one layer.
struct PlaneShape {
  int32_t type = 0;  // ggml's number of the element type; 1 is f16
  uint64_t row_bytes = 0;

  friend bool operator==(const PlaneShape&, const PlaneShape&) = default;
};

// What a model's states look like, whatever the number of tokens.  keys.size() == values.size().
struct StateShape {
  std::vector<PlaneShape> keys;
  std::vector<PlaneShape> values;

  [[nodiscard]] size_t layers() const { return keys.size(); }
  // Of one layer of `tokens` tokens.
  [[nodiscard]] ByteCount SegmentBytes(size_t layer, uint32_t tokens) const;
  // Of a whole state of `cells` cells.
  [[nodiscard]] ByteCount StateBytes(uint32_t cells) const;

  friend bool operator==(const StateShape&, const StateShape&) = default;
};

// A parsed state whose cells are consecutive positions of one sequence.
class StateView {
 public:
  // InvalidArgument, with what is wrong, unless `state` is exactly one well-formed state.
  [[nodiscard]] static absl::StatusOr<StateView> Parse(std::span<const std::byte> state);

  [[nodiscard]] const StateShape& shape() const { return shape_; }
  [[nodiscard]] TokenRange positions() const { return positions_; }

  // Copies the segment of `layer` for the tokens at positions [tokens.begin, tokens.end).
  // REQUIRES: tokens within positions(), segment.size() == SegmentBytes(layer, its tokens).
  void CopySegment(size_t layer, TokenRange tokens, std::span<std::byte> segment) const;

 private:
  StateView() = default;

  StateShape shape_;
  TokenRange positions_;
  std::vector<const std::byte*> keys_;  // first row of each plane
  std::vector<const std::byte*> values_;
};

// Joins segments into the state of a sequence, or of a part of one, that starts at some position.
class StateJoiner {
 public:
  // Room for these positions.  REQUIRES: 1 <= layers <= kStateLayersMax, positions not empty and
  // below kStateCellsMax.
  StateJoiner(StateShape shape, TokenRange positions);

  // REQUIRES: tokens within the positions, segment.size() == SegmentBytes(layer, its tokens).
  void PlaceSegment(size_t layer, TokenRange tokens, std::span<const std::byte> segment);

  // The state of the first `cells` tokens, every segment of which was placed.  Valid until the
  // joiner dies.
  // Once only: planes move together when it is not all of them.  REQUIRES: 1 <= cells, and room for
  // them.
  [[nodiscard]] std::span<const std::byte> Finish(uint32_t cells);

 private:
  // Of the first row of key plane 0, key plane 1, ..., value plane 0, ... in a state of `cells`
  // cells.
  [[nodiscard]] std::vector<uint64_t> RowOffsets(uint32_t cells) const;

  const StateShape shape_;
  const TokenRange positions_;
  const std::vector<uint64_t> row_offsets_;
  const std::unique_ptr<std::byte[]>
      bytes_;  // not zeroed: every byte is written before Finish returns it
};

}  // namespace larder::llama
