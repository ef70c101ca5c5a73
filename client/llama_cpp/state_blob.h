// Reads the bytes of one llama.cpp sequence state, cuts them into Larder's segments, and joins
// segments into a state.
//
// A state (llama_state_seq_get_data, in the version of llama.cpp that deploy/build-llama.sh pins)
// is little endian:
//
//   u32 magic 0xaf143cd8, i32 sequence, u32 streams = 1, u32 cells
//   cells x {i32 position, u32 sequences = 1, i32 sequence}
//   u32 v_transposed = 0, u32 layers
//   layers x {i32 type, u64 row_bytes, cells x row}     keys
//   layers x {i32 type, u64 row_bytes, cells x row}     values
//
// A cell is one token's entry in llama.cpp's KV cache.  A row is the key or the value of one token
// in one layer, all heads.  A segment is one layer of a block of tokens: the key rows of those
// tokens, then their value rows.  So cached bytes are rows and nothing else: this code writes the
// headers from the shape that the engine itself reported, and never takes them from a block.
//
// What it does not promise: that the rows make sense (the hashes of a block only show that the rows
// are what was stored), nor anything about models with sliding windows, recurrent states or
// two-dimensional positions.
// Ownership: a StateView borrows the bytes that it parsed; a StateJoiner owns its buffer.
// Thread-safety: a StateView is constant, so any thread may use it; a StateJoiner belongs to one
// thread.
// Limits: 1,024 layers, rows of up to 1 MiB, 2^24 cells.  Parse reads nothing outside the span that
// it is given.
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

// One plane of a state: the keys or the values of one layer.
struct PlaneShape {
  int32_t type = 0;  // ggml's number for the element type; 1 is f16
  uint64_t row_bytes = 0;

  friend bool operator==(const PlaneShape&, const PlaneShape&) = default;
};

// The form of a model's states for any number of tokens.  keys.size() == values.size().
struct StateShape {
  std::vector<PlaneShape> keys;
  std::vector<PlaneShape> values;

  [[nodiscard]] size_t layers() const { return keys.size(); }
  // Bytes of one layer of `tokens` tokens.
  [[nodiscard]] ByteCount SegmentBytes(size_t layer, uint32_t tokens) const;
  // Bytes of a whole state of `cells` cells.
  [[nodiscard]] ByteCount StateBytes(uint32_t cells) const;

  friend bool operator==(const StateShape&, const StateShape&) = default;
};

// A parsed state whose cells have consecutive positions.
class StateView {
 public:
  // Returns InvalidArgument, with what is wrong, unless `state` is exactly one well-formed state.
  [[nodiscard]] static absl::StatusOr<StateView> Parse(std::span<const std::byte> state);

  [[nodiscard]] const StateShape& shape() const { return shape_; }
  [[nodiscard]] TokenRange positions() const { return positions_; }

  // Copies the segment of `layer` for the tokens at positions [tokens.begin, tokens.end).
  // REQUIRES: `tokens` lies within positions(); segment.size() == SegmentBytes(layer, number of
  // tokens).
  void CopySegment(size_t layer, TokenRange tokens, std::span<std::byte> segment) const;

 private:
  StateView() = default;

  StateShape shape_;
  TokenRange positions_;
  std::vector<const std::byte*> keys_;  // the first row of each plane
  std::vector<const std::byte*> values_;
};

// Joins segments into the state of a sequence, or of a part of one that starts at any position.
class StateJoiner {
 public:
  // Allocates a state of these positions.  REQUIRES: 1 <= layers <= kStateLayersMax; positions are
  // not empty and end at most at kStateCellsMax.
  StateJoiner(StateShape shape, TokenRange positions);

  // REQUIRES: `tokens` lies within the positions; segment.size() == SegmentBytes(layer, number of
  // tokens).
  void PlaceSegment(size_t layer, TokenRange tokens, std::span<const std::byte> segment);

  // Returns the state of the first `cells` tokens, valid as long as the joiner lives.  May be
  // called only once, because it moves the planes together if `cells` is not all of the positions.
  // REQUIRES: 1 <= cells <= number of positions; every segment of these cells was placed.
  [[nodiscard]] std::span<const std::byte> Finish(uint32_t cells);

 private:
  // Offsets of the first rows of key plane 0, key plane 1, ..., value plane 0, ... in a state of
  // `cells` cells.
  [[nodiscard]] std::vector<uint64_t> RowOffsets(uint32_t cells) const;

  const StateShape shape_;
  const TokenRange positions_;
  const std::vector<uint64_t> row_offsets_;
  // Not zeroed: every byte that Finish returns has been written.
  const std::unique_ptr<std::byte[]> bytes_;
};

}  // namespace larder::llama
