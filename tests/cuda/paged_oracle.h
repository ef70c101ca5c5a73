// What Gather and Scatter must do, in the plainest way: five nested loops over the addresses of
// single bytes.  Also random shapes of every kind of engine.
#pragma once

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/paged_layout.h"

namespace larder {

// Calls visit(engine address, payload offset from the first moved layer's bytes) for each row.
template <class Visit>
void ForEachRow(const PagedLayout& engine, const PayloadLayout& payload, LayerRange layers,
                std::span<const uint32_t> pages, uint32_t first_slot, Visit visit) {
  // Where each layer begins in the payload, found by walking its segments.
  std::vector<uint64_t> layer_at;
  uint64_t at = 0;
  for (const Segment& segment : payload.table.segments) {
    for (uint32_t i = 0; i < segment.layers; ++i)
      layer_at.push_back(at + i * (segment.bytes / segment.layers));
    at += RoundUp(segment.bytes, kSegmentAlign);
  }
  const uint64_t row = engine.row_bytes;
  const uint64_t plane_bytes = row * engine.heads * payload.block_tokens;
  for (uint32_t layer = layers.first; layer < layers.first + layers.count; ++layer)
    for (uint32_t plane = 0; plane < engine.planes; ++plane)
      for (uint32_t token = 0; token < payload.block_tokens; ++token)
        for (uint32_t head = 0; head < engine.heads; ++head) {
          const uint32_t slot = first_slot + token;
          const uint64_t in_engine = engine.bases[layer * engine.planes + plane] +
                                     pages[slot / engine.page_tokens] * engine.page_stride +
                                     slot % engine.page_tokens * engine.token_stride +
                                     head * engine.head_stride;
          const uint64_t row_index = payload.order == RowOrder::kTokenHead
                                         ? uint64_t{token} * engine.heads + head
                                         : uint64_t{head} * payload.block_tokens + token;
          visit(in_engine,
                layer_at[layer] - layer_at[layers.first] + plane * plane_bytes + row_index * row);
        }
}

enum class EngineKind {
  kLayerFirstNhd,   // per layer K and V separately: [2][pages][slots][heads][dim]
  kLayerFirstHnd,   // [2][pages][heads][slots][dim]
  kPagedPlanesNhd,  // per layer [pages][2][slots][heads][dim]
  kFusedHeads,      // per layer [pages][slots][heads][2 * dim]: one plane
  kTokenPlanes,     // per layer [pages][slots][2][heads][dim]
  kCrossLayer,      // one tensor [pages][layers][2][slots][heads][dim]
  kCrossLayerHnd,   // one tensor [pages][layers][2][heads][slots][dim]
  kMla,             // per layer [pages][slots][latent]
};
inline constexpr EngineKind kEngineKinds[] = {
    EngineKind::kLayerFirstNhd,  EngineKind::kLayerFirstHnd,
    EngineKind::kPagedPlanesNhd, EngineKind::kFusedHeads,
    EngineKind::kTokenPlanes,    EngineKind::kCrossLayer,
    EngineKind::kCrossLayerHnd,  EngineKind::kMla};
[[nodiscard]] inline std::string NameOf(EngineKind kind) {
  static constexpr const char* kNames[] = {
      "LayerFirstNhd", "LayerFirstHnd", "PagedPlanesNhd", "FusedHeads",
      "TokenPlanes",   "CrossLayer",    "CrossLayerHnd",  "Mla"};
  return kNames[static_cast<int>(kind)];
}

struct EngineShape {
  uint32_t layers = 1, heads = 1, row_bytes = 16, page_tokens = 16, pages = 1;
};

// Returns how many bytes such a cache takes.  The bases in `layout` are relative to 0.
[[nodiscard]] inline uint64_t LayOut(EngineKind kind, const EngineShape& shape,
                                     PagedLayout* layout) {
  const uint64_t row = shape.row_bytes, heads = shape.heads, slots = shape.page_tokens;
  const uint64_t plane = row * heads * slots;  // of one page
  PagedLayout& l = *layout;
  l = {.layers = shape.layers,
       .planes = 2,
       .heads = shape.heads,
       .row_bytes = shape.row_bytes,
       .page_tokens = shape.page_tokens,
       .pages = shape.pages,
       .page_stride = plane,
       .token_stride = heads * row,
       .head_stride = row,
       .bases = {}};
  uint64_t layer_stride = 2 * plane * shape.pages, plane_stride = plane * shape.pages;
  switch (kind) {
    case EngineKind::kLayerFirstNhd:
      break;
    case EngineKind::kLayerFirstHnd:
      l.token_stride = row;
      l.head_stride = slots * row;
      break;
    case EngineKind::kPagedPlanesNhd:
      l.page_stride = 2 * plane;
      plane_stride = plane;
      break;
    case EngineKind::kFusedHeads:
      l.planes = 1;
      l.row_bytes = 2 * shape.row_bytes;
      l.page_stride = 2 * plane;
      l.token_stride = 2 * heads * row;
      l.head_stride = 2 * row;
      break;
    case EngineKind::kTokenPlanes:
      l.page_stride = 2 * plane;
      l.token_stride = 2 * heads * row;
      plane_stride = heads * row;
      break;
    case EngineKind::kCrossLayer:
    case EngineKind::kCrossLayerHnd:
      l.page_stride = 2 * plane * shape.layers;
      layer_stride = 2 * plane;
      plane_stride = plane;
      if (kind == EngineKind::kCrossLayerHnd) {
        l.token_stride = row;
        l.head_stride = slots * row;
      }
      break;
    case EngineKind::kMla:
      l.planes = l.heads = 1;
      l.page_stride = slots * row;
      l.token_stride = row;
      l.head_stride = 0;
      layer_stride = slots * row * shape.pages;
      break;
  }
  for (uint32_t layer = 0; layer < l.layers; ++layer)
    for (uint32_t p = 0; p < l.planes; ++p)
      l.bases.push_back(layer * layer_stride + p * plane_stride);
  return layer_stride * shape.layers > l.page_stride * shape.pages ? layer_stride * shape.layers
                                                                   : l.page_stride * shape.pages;
}

// A payload whose segments have `layers_each` layers each; the last segment has the remaining
// layers.
[[nodiscard]] inline PayloadLayout PayloadOf(const PagedLayout& engine, uint32_t block_tokens,
                                             RowOrder order, uint32_t layers_each) {
  PayloadLayout payload{.block_tokens = block_tokens, .order = order, .table = {}};
  const uint32_t layer_bytes = engine.planes * engine.heads * engine.row_bytes * block_tokens;
  for (uint32_t layer = 0; layer < engine.layers; layer += layers_each) {
    const auto layers = static_cast<uint16_t>(std::min(layers_each, engine.layers - layer));
    payload.table.segments.push_back({.layers = layers, .bytes = layers * layer_bytes});
  }
  return payload;
}

}  // namespace larder
