#include "cuda/paged_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/format/payload_cursor.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr uint32_t kAccessBytesMax = 16;
// If the copies of RunsOf are smaller than this on average, in bytes, Gather and Scatter are
// preferred, since each copy has a fixed cost (bench/device.cc, device_to_SIZE).
constexpr uint64_t kCopyBytesMin = 256 << 10;

absl::Status Wrong(absl::string_view what, uint64_t got) {
  return absl::InvalidArgumentError(absl::StrCat("paged layout: ", what, ", not ", got));
}

// The greatest power of two, at most kAccessBytesMax, that divides every value passed to See.
class Alignment {
 public:
  void See(uint64_t value) { bits_ |= value; }
  [[nodiscard]] uint32_t bytes() const { return 1u << std::countr_zero(bits_); }

 private:
  uint64_t bits_ = kAccessBytesMax;
};

}  // namespace

absl::StatusOr<PagedPlan> PagedPlan::Make(const PagedLayout& engine, const PayloadLayout& payload) {
  LARDER_RETURN_IF_ERROR(engine.Validate());
  LARDER_RETURN_IF_ERROR(payload.Validate(engine));
  PagedPlan plan;
  plan.layers_ = engine.layers;
  plan.planes_ = engine.planes;
  plan.pages_ = engine.pages;
  plan.page_tokens_ = engine.page_tokens;
  plan.page_stride_ = engine.page_stride;
  plan.token_stride_ = engine.token_stride;
  plan.engine_bases_ = engine.bases;
  const uint64_t plane_bytes = uint64_t{engine.heads} * engine.row_bytes * payload.block_tokens;
  plan.layer_bytes_ = plane_bytes * engine.planes;
  SegmentCursor at;
  for (const Segment& segment : payload.table.segments) {
    const uint64_t begin = at.Next(segment.bytes);
    for (uint32_t plane = 0; plane < segment.layers * engine.planes; ++plane)
      plan.payload_offsets_.push_back(begin + plane * plane_bytes);
  }
  plan.ShapeTile(engine, payload);
  plan.FindAccess(engine);

  // The copies are counted for a block whose pages are not adjacent, which needs the most.
  std::vector<uint32_t> pages(plan.tiles_per_plane_);
  for (uint32_t i = 0; i < pages.size(); ++i) pages[i] = 2 * i;
  const PagedBlock block{.payload = 0, .pages = pages, .first_slot = 0};
  const size_t copies = RunsOf(plan, {0, plan.layers_}, std::span(&block, 1)).size();
  plan.prefers_copies_ = plan.layer_bytes_ * plan.layers_ / copies >= kCopyBytesMin;
  return plan;
}

// Shapes the tile, and joins rows that follow each other in both layouts into one run.
void PagedPlan::ShapeTile(const PagedLayout& engine, const PayloadLayout& payload) {
  tile_tokens_ = std::min(payload.block_tokens, engine.page_tokens);
  tiles_per_plane_ = payload.block_tokens / tile_tokens_;
  const uint64_t row = engine.row_bytes;
  if (payload.order == RowOrder::kTokenHead) {
    tile_ = {.outer = tile_tokens_,
             .inner = engine.heads,
             .run_bytes = engine.row_bytes,
             .engine_outer = engine.token_stride,
             .engine_inner = engine.head_stride,
             .payload_outer = engine.heads * row,
             .payload_inner = row};
    payload_tile_stride_ = tile_tokens_ * engine.heads * row;
  } else {
    tile_ = {.outer = engine.heads,
             .inner = tile_tokens_,
             .run_bytes = engine.row_bytes,
             .engine_outer = engine.head_stride,
             .engine_inner = engine.token_stride,
             .payload_outer = payload.block_tokens * row,
             .payload_inner = row};
    payload_tile_stride_ = tile_tokens_ * row;
  }
  for (int dimension = 0; dimension < 2; ++dimension) {
    const bool dense = tile_.inner == 1 || (tile_.engine_inner == tile_.run_bytes &&
                                            tile_.payload_inner == tile_.run_bytes);
    if (!dense) break;
    tile_.run_bytes *= tile_.inner;
    tile_.inner = std::exchange(tile_.outer, 1);
    tile_.engine_inner = tile_.engine_outer;
    tile_.payload_inner = tile_.payload_outer;
    tile_.engine_outer = tile_.payload_outer = 0;
  }
  if (tile_.inner == 1) tile_.engine_inner = tile_.payload_inner = 0;
}

void PagedPlan::FindAccess(const PagedLayout& engine) {
  Alignment alignment;
  alignment.See(tile_.run_bytes);
  alignment.See(tile_.engine_outer | tile_.engine_inner);
  alignment.See(tile_.payload_outer | tile_.payload_inner);
  if (tiles_per_plane_ > 1) alignment.See(payload_tile_stride_);
  if (engine.pages > 1) alignment.See(page_stride_);
  if (tile_tokens_ < page_tokens_) alignment.See(tile_tokens_ * token_stride_);
  for (const uint64_t base : engine_bases_) alignment.See(base);
  for (const uint64_t offset : payload_offsets_) alignment.See(offset);
  access_bytes_ = alignment.bytes();
}

absl::Status PagedPlan::Check(LayerRange layers, std::span<const PagedBlock> blocks) const {
  if (layers.count == 0 || layers.first >= layers_ || layers.count > layers_ - layers.first)
    return absl::InvalidArgumentError(absl::StrCat("layers [", layers.first, ", +", layers.count,
                                                   ") are not within the cache's ", layers_));
  for (const PagedBlock& block : blocks) {
    if (block.payload % kAccessBytesMax != 0)
      return Wrong("the address of a payload is a multiple of 16", block.payload);
    if (block.pages.size() != tiles_per_plane_)
      return Wrong(absl::StrCat("a block lies in ", tiles_per_plane_, " pages"),
                   block.pages.size());
    if (block.first_slot % tile_tokens_ != 0 || block.first_slot >= page_tokens_)
      return Wrong(absl::StrCat("the first slot of a block is a multiple of its tokens and below ",
                                page_tokens_),
                   block.first_slot);
    for (const uint32_t page : block.pages)
      if (page >= pages_)
        return Wrong(absl::StrCat("a page number is below the cache's ", pages_, " pages"), page);
  }
  return absl::OkStatus();
}

uint64_t PagedPlan::EngineOffset(const PagedBlock& block, uint32_t tile) const {
  return block.pages[tile] * page_stride_ + block.first_slot * token_stride_;
}

ByteCount PagedPlan::BytesPerBlock(LayerRange layers) const {
  return ByteCount(layer_bytes_ * layers.count);
}

ByteCount PagedPlan::PayloadBegin(LayerRange layers) const {
  return ByteCount(payload_offsets_[size_t{layers.first} * planes_]);
}

ByteCount PagedPlan::PayloadSpan(LayerRange layers) const {
  const uint32_t last = layers.first + layers.count - 1;
  return ByteCount(payload_offsets_[size_t{last} * planes_] + layer_bytes_) - PayloadBegin(layers);
}

std::vector<RunCopy> RunsOf(const PagedPlan& plan, LayerRange layers,
                            std::span<const PagedBlock> blocks) {
  std::vector<RunCopy> runs;
  // Runs of two blocks are not joined: their addresses may be adjacent but belong to two mappings,
  // and a copy must not span two mappings.
  size_t of_block = 0;
  const auto add = [&runs, &of_block](uint64_t engine, uint64_t payload, uint64_t bytes) {
    if (runs.size() > of_block && runs.back().engine + runs.back().bytes == engine &&
        runs.back().payload + runs.back().bytes == payload)
      runs.back().bytes += bytes;
    else
      runs.push_back({engine, payload, bytes});
  };
  const TileShape& tile = plan.tile();
  const size_t first = size_t{layers.first} * plan.planes();
  const size_t planes = size_t{layers.count} * plan.planes();
  for (const PagedBlock& block : blocks) {
    of_block = runs.size();
    for (uint32_t t = 0; t < plan.tiles_per_plane(); ++t) {
      const uint64_t engine_offset = plan.EngineOffset(block, t);
      for (size_t plane = first; plane < first + planes; ++plane) {
        const uint64_t engine = plan.engine_bases()[plane] + engine_offset;
        const uint64_t payload = block.payload + plan.payload_offsets()[plane] -
                                 plan.payload_offsets()[first] + t * plan.payload_tile_stride();
        for (uint64_t o = 0; o < tile.outer; ++o)
          for (uint64_t i = 0; i < tile.inner; ++i)
            add(engine + o * tile.engine_outer + i * tile.engine_inner,
                payload + o * tile.payload_outer + i * tile.payload_inner, tile.run_bytes);
      }
    }
  }
  return runs;
}

}  // namespace larder
