// The plan for moving the KV of blocks between an engine's paged cache and payloads of records.
//
// Ownership: values.  Thread-safety: a plan is const.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cuda/paged_layout.h"
#include "storage/types.h"

namespace larder {

// The shape of a tile.  A tile is what one page holds of one block, layer and plane: `outer` times
// `inner` runs of bytes, each contiguous in the engine's page and in the payload.
struct TileShape {
  uint32_t outer = 1, inner = 1;
  uint32_t run_bytes = 0;
  uint64_t engine_outer = 0, engine_inner = 0;    // strides in bytes
  uint64_t payload_outer = 0, payload_inner = 0;  // strides in bytes
  [[nodiscard]] uint64_t bytes() const { return uint64_t{outer} * inner * run_bytes; }
  friend bool operator==(const TileShape&, const TileShape&) = default;
};

// What can be computed in advance for moves between an engine's paged cache and payloads of one
// layout.
class PagedPlan {
 public:
  // Returns InvalidArgument if a Validate function does.  PayloadLayout::Validate also refuses a
  // block size that neither divides the engine's page size nor is a multiple of it.
  [[nodiscard]] static absl::StatusOr<PagedPlan> Make(const PagedLayout& engine,
                                                      const PayloadLayout& payload);

  // Returns InvalidArgument if the layers or the blocks do not fit the two layouts, or if the
  // address of a payload is no multiple of 16.
  [[nodiscard]] absl::Status Check(LayerRange layers, std::span<const PagedBlock> blocks) const;

  [[nodiscard]] const TileShape& tile() const { return tile_; }
  // The number of tiles of a block in one plane: the pages that the block lies in, or 1 if it is
  // smaller than a page.
  [[nodiscard]] uint32_t tiles_per_plane() const { return tiles_per_plane_; }
  [[nodiscard]] uint64_t payload_tile_stride() const { return payload_tile_stride_; }
  // 16, 8, 4, 2 or 1: the addresses, strides and run lengths that a move uses are multiples of it.
  [[nodiscard]] uint32_t access_bytes() const { return access_bytes_; }
  [[nodiscard]] uint32_t planes() const { return planes_; }
  [[nodiscard]] uint32_t layers() const { return layers_; }
  // One element per layer and plane: engine_bases() are addresses in the engine's cache,
  // payload_offsets() are offsets in the payload.
  [[nodiscard]] const std::vector<uint64_t>& engine_bases() const { return engine_bases_; }
  [[nodiscard]] const std::vector<uint64_t>& payload_offsets() const { return payload_offsets_; }
  // The offset from an element of engine_bases() to the first row of tile `tile` of the block.
  // REQUIRES: Check is OK.
  [[nodiscard]] uint64_t EngineOffset(const PagedBlock& block, uint32_t tile) const;
  // The bytes of the moved layers of one block, without padding.
  [[nodiscard]] ByteCount BytesPerBlock(LayerRange layers) const;
  // PayloadBegin returns where these layers begin in a whole block's payload.  PayloadSpan returns
  // how many bytes they span there, including the padding between them.
  [[nodiscard]] ByteCount PayloadBegin(LayerRange layers) const;
  [[nodiscard]] ByteCount PayloadSpan(LayerRange layers) const;
  // Returns true if the copies of RunsOf should be made instead of a Gather or Scatter.
  [[nodiscard]] bool PrefersCopies() const { return prefers_copies_; }

 private:
  PagedPlan() = default;
  void ShapeTile(const PagedLayout& engine, const PayloadLayout& payload);
  void FindAccess(const PagedLayout& engine);

  TileShape tile_;
  uint32_t layers_ = 0, planes_ = 0, pages_ = 0, page_tokens_ = 0, tile_tokens_ = 0;
  uint32_t tiles_per_plane_ = 0, access_bytes_ = 1;
  bool prefers_copies_ = false;
  uint64_t page_stride_ = 0, token_stride_ = 0, payload_tile_stride_ = 0, layer_bytes_ = 0;
  std::vector<uint64_t> engine_bases_, payload_offsets_;
};

struct RunCopy {
  uint64_t engine = 0, payload = 0, bytes = 0;
};
// Returns the move of these layers and blocks as a list of copies, for plans with PrefersCopies()
// or otherwise long runs.  No copy spans two blocks.
// REQUIRES: plan.Check is OK.
[[nodiscard]] std::vector<RunCopy> RunsOf(const PagedPlan& plan, LayerRange layers,
                                          std::span<const PagedBlock> blocks);

}  // namespace larder
