#include "cuda/gather_scatter.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "cuda/paged_layout.h"
#include "cuda/paged_plan.h"
#include "storage/check.h"

namespace larder {
namespace {

uint32_t TileAccesses(const PagedPlan& plan) {
  return static_cast<uint32_t>(plan.tile().bytes() / plan.access_bytes());
}
uint32_t TilePieces(const PagedPlan& plan) {
  return (TileAccesses(plan) + kPieceAccesses - 1) / kPieceAccesses;
}

template <size_t kBytes>
void MovePiece(const PagedMoveArgs& args, uint32_t index, MoveDirection direction) {
  const Piece piece = FindPiece(args, index);
  const uint32_t end = std::min(piece.first_access + kPieceAccesses, args.tile_accesses);
  for (uint32_t access = piece.first_access; access < end; ++access) {
    const AccessOffsets at = FindAccess(args, access, kBytes);
    auto* engine = reinterpret_cast<std::byte*>(piece.engine + at.engine);
    auto* payload = reinterpret_cast<std::byte*>(piece.payload + at.payload);
    if (direction == MoveDirection::kGather)
      std::memcpy(payload, engine, kBytes);
    else
      std::memcpy(engine, payload, kBytes);
  }
}

template <size_t kBytes>
void MovePieces(const PagedMoveArgs& args, MoveDirection direction) {
  for (uint32_t index = 0; index < args.pieces; ++index) MovePiece<kBytes>(args, index, direction);
}

}  // namespace

// Granlund and Montgomery's round-up method: with shift = ceil(log2 d) - 1 the multiplier fits into
// 32 bits, and the division is exact for 31-bit dividends.
FastDivisor MakeFastDivisor(uint32_t divisor) {
  LARDER_CHECK(divisor >= 1 && divisor < (1u << 31));
  if (divisor == 1) return {};
  const auto shift = static_cast<uint32_t>(std::bit_width(divisor - 1) - 1);
  const uint64_t power = uint64_t{1} << (32 + shift);
  return {divisor, static_cast<uint32_t>((power + divisor - 1) / divisor), shift};
}

size_t MoveTableWords(const PagedPlan& plan, LayerRange layers, size_t blocks) {
  const size_t planes = size_t{layers.count} * plan.planes();
  return 2 * planes + blocks * (1 + plan.tiles_per_plane());
}

size_t MoveBlocksMax(const PagedPlan& plan, LayerRange layers, size_t words) {
  const size_t fixed = MoveTableWords(plan, layers, 0);
  if (words <= fixed) return 0;
  const size_t pieces_per_block =
      size_t{TilePieces(plan)} * layers.count * plan.planes() * plan.tiles_per_plane();
  return std::min((words - fixed) / (1 + plan.tiles_per_plane()),
                  size_t{std::numeric_limits<int32_t>::max()} / pieces_per_block);
}

PagedMoveArgs FillMoveTables(const PagedPlan& plan, LayerRange layers,
                             std::span<const PagedBlock> blocks, std::span<uint64_t> tables,
                             uint64_t tables_at) {
  LARDER_CHECK(tables.size() == MoveTableWords(plan, layers, blocks.size()));
  const size_t first = size_t{layers.first} * plan.planes();
  const size_t planes = size_t{layers.count} * plan.planes();
  const TileShape& tile = plan.tile();
  const auto* at = reinterpret_cast<const uint64_t*>(tables_at);
  PagedMoveArgs args{
      .engine_bases = at,
      .payload_offsets = at + planes,
      .payloads = at + 2 * planes,
      .engine_offsets = at + 2 * planes + blocks.size(),
      .engine_outer = tile.engine_outer,
      .engine_inner = tile.engine_inner,
      .payload_outer = tile.payload_outer,
      .payload_inner = tile.payload_inner,
      .payload_tile_stride = plan.payload_tile_stride(),
      .tile_accesses = TileAccesses(plan),
      .tile_pieces = MakeFastDivisor(TilePieces(plan)),
      .planes = MakeFastDivisor(static_cast<uint32_t>(planes)),
      .tiles = MakeFastDivisor(plan.tiles_per_plane()),
      .run_accesses = MakeFastDivisor(tile.run_bytes / plan.access_bytes()),
      .inner = MakeFastDivisor(tile.inner),
  };
  const size_t tiles = blocks.size() * plan.tiles_per_plane() * planes;
  args.pieces = static_cast<uint32_t>(tiles * TilePieces(plan));

  auto out = tables.begin();
  for (size_t plane = 0; plane < planes; ++plane) *out++ = plan.engine_bases()[first + plane];
  for (size_t plane = 0; plane < planes; ++plane)
    *out++ = plan.payload_offsets()[first + plane] - plan.payload_offsets()[first];
  for (const PagedBlock& block : blocks) *out++ = block.payload;
  for (const PagedBlock& block : blocks)
    for (uint32_t t = 0; t < plan.tiles_per_plane(); ++t) *out++ = plan.EngineOffset(block, t);
  return args;
}

void MoveOnHost(const PagedMoveArgs& args, MoveDirection direction, uint32_t access_bytes) {
  switch (access_bytes) {
    case 16:
      return MovePieces<16>(args, direction);
    case 8:
      return MovePieces<8>(args, direction);
    case 4:
      return MovePieces<4>(args, direction);
    case 2:
      return MovePieces<2>(args, direction);
    default:
      return MovePieces<1>(args, direction);
  }
}

const char* KernelName(MoveDirection direction, uint32_t access_bytes) {
  const bool gather = direction == MoveDirection::kGather;
  switch (access_bytes) {
    case 16:
      return gather ? "larder_gather_16" : "larder_scatter_16";
    case 8:
      return gather ? "larder_gather_8" : "larder_scatter_8";
    case 4:
      return gather ? "larder_gather_4" : "larder_scatter_4";
    case 2:
      return gather ? "larder_gather_2" : "larder_scatter_2";
    default:
      return gather ? "larder_gather_1" : "larder_scatter_1";
  }
}

}  // namespace larder
