// Two ways to lay the KV of a block down, and the plan for moving bytes between them.
//
// An engine keeps KV in pages of its own: layer by layer or page by page, K and V apart or fused,
// tokens before heads (NHD) or heads before tokens (HND), one latent row for MLA.  All these are
// one form here: an address per layer and plane, and three strides.  A record's payload holds the
// same rows, layer by layer, dense, in one of two orders.
//
// A row is what neither side splits: one token, one head, all its numbers.
// Ownership: values.  Thread-safety: pure functions; a plan is const.
// Limits: what the Validate functions say.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/format/layout.h"
#include "storage/types.h"

namespace larder {

inline constexpr uint32_t kPlanesMax = 2;
inline constexpr uint32_t kPagedTokensMax = 65536;

// An engine's paged cache.  The row of (layer, plane, page, slot, head) is at
//   bases[layer * planes + plane] + page * page_stride + slot * token_stride + head * head_stride.
struct PagedLayout {
  uint32_t layers = 0;
  uint32_t planes = 2;  // K and V; 1: fused into one row, or MLA's latent
  uint32_t heads = 0;   // of this rank; 1 for MLA
  uint32_t row_bytes = 0;
  uint32_t page_tokens = 0;
  uint32_t pages = 0;
  uint64_t page_stride = 0, token_stride = 0, head_stride = 0;  // bytes
  std::vector<uint64_t> bases;                                  // addresses of device memory

  [[nodiscard]] absl::Status Validate() const;
};

// Inside a plane of one layer.
enum class RowOrder : uint8_t {
  kTokenHead = 1,  // "NHD"
  kHeadToken = 2,  // "HND"
};

// A record's payload: layers in order, each its planes in order, each dense rows.
struct PayloadLayout {
  uint32_t block_tokens = 0;
  RowOrder order = RowOrder::kTokenHead;
  SegmentTable table;  // identity segments; a layer lies whole in one

  [[nodiscard]] absl::Status Validate(const PagedLayout& engine) const;
};

struct LayerRange {
  uint32_t first = 0;
  uint32_t count = 0;
};

// One block: where its payload lies, and in which pages of the engine.
struct PagedBlock {
  // Address of the first moved layer's bytes, a multiple of 16.
  uint64_t payload = 0;
  // block_tokens / page_tokens of them, at least 1.
  std::span<const uint32_t> pages;
  // Of its first token in pages[0]; only a block smaller than a page has one other than 0.
  uint32_t first_slot = 0;
};

// What a tile is: the rows that one page has of one block, layer and plane, as `outer` times
// `inner` runs of bytes that are dense on both sides.
struct TileShape {
  uint32_t outer = 1, inner = 1;
  uint32_t run_bytes = 0;
  uint64_t engine_outer = 0, engine_inner = 0;    // strides
  uint64_t payload_outer = 0, payload_inner = 0;  // strides
  [[nodiscard]] uint64_t bytes() const { return uint64_t{outer} * inner * run_bytes; }
  friend bool operator==(const TileShape&, const TileShape&) = default;
};

// What is worked out once per registration.
class PagedPlan {
 public:
  // InvalidArgument: what the Validate functions say, and a block size that neither divides the
  // page size nor is a multiple of it.
  [[nodiscard]] static absl::StatusOr<PagedPlan> Make(const PagedLayout& engine,
                                                      const PayloadLayout& payload);

  // InvalidArgument: layers or pages beyond the engine's, a wrong number of pages, an address that
  // is not aligned.
  [[nodiscard]] absl::Status Check(LayerRange layers, std::span<const PagedBlock> blocks) const;

  [[nodiscard]] const TileShape& tile() const { return tile_; }
  // Pages, or parts of one, that a block lies in.
  [[nodiscard]] uint32_t tiles_per_plane() const { return tiles_per_plane_; }
  [[nodiscard]] uint64_t payload_tile_stride() const { return payload_tile_stride_; }
  // 16, 8, 4, 2 or 1: bytes that every address and stride is a multiple of.
  [[nodiscard]] uint32_t access_bytes() const { return access_bytes_; }
  [[nodiscard]] uint32_t planes() const { return planes_; }
  [[nodiscard]] uint32_t layers() const { return layers_; }
  // One per layer and plane: of the engine, and inside the payload.
  [[nodiscard]] const std::vector<uint64_t>& engine_bases() const { return engine_bases_; }
  [[nodiscard]] const std::vector<uint64_t>& payload_offsets() const { return payload_offsets_; }
  // From an engine's base to the first row that `block` has in its tile `tile`.
  // REQUIRES: Check is OK.
  [[nodiscard]] uint64_t EngineOffset(const PagedBlock& block, uint32_t tile) const;
  // Of the moved layers of one block, without padding.
  [[nodiscard]] ByteCount BytesPerBlock(LayerRange layers) const;
  // Where they begin in the payload, and how much of it they span, padding inside included.
  [[nodiscard]] ByteCount PayloadBegin(LayerRange layers) const;
  [[nodiscard]] ByteCount PayloadSpan(LayerRange layers) const;
  // What both sides have in one piece is long enough to be left to the copy engines.
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
// The same move as copies, as few as there can be: for plans that prefer them.
// REQUIRES: plan.Check is OK.
[[nodiscard]] std::vector<RunCopy> RunsOf(const PagedPlan& plan, LayerRange layers,
                                          std::span<const PagedBlock> blocks);

}  // namespace larder
