// Gather and Scatter: the copying of KV between an engine's pages and payloads of records.  This
// file has the arithmetic that the GPU's kernel and MoveOnHost, its twin on the CPU, share.
//
// An access is one load and one store of access_bytes bytes.  The work is cut into pieces of at
// most kPieceAccesses accesses of one tile (TileShape); the 32 lanes of a warp move a piece in
// parallel.  The kernel (gather_scatter.cu) and the twin (gather_scatter.cc) make the same
// accesses.
//
// Ownership: values that contain addresses.  Thread-safety: pieces are independent of each other.
// Limits: 2^31 - 1 pieces per launch (MoveBlocksMax).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#if defined(__CUDACC__)
#define LARDER_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define LARDER_HOST_DEVICE inline
#endif

namespace larder {

class PagedPlan;
struct LayerRange;
struct PagedBlock;

inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kLaneAccesses = 4;  // accesses that a lane has under way at once
inline constexpr uint32_t kPieceAccesses = kWarpLanes * kLaneAccesses;

// Divides by a number that is constant during a launch.  It multiplies instead, because GPUs have
// no instruction for integer division.  Exact for dividends below 2^31 and divisors in [1, 2^31).
struct FastDivisor {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  LARDER_HOST_DEVICE uint32_t Divide(uint32_t n) const {
    if (divisor == 1) return n;
    return static_cast<uint32_t>((uint64_t{n} * multiplier) >> 32) >> shift;
  }
};
[[nodiscard]] FastDivisor MakeFastDivisor(uint32_t divisor);

// The arguments of a launch.  The four pointers are to tables in memory that the kernel or
// MoveOnHost can read.
struct PagedMoveArgs {
  const uint64_t* engine_bases = nullptr;     // [planes]
  const uint64_t* payload_offsets = nullptr;  // [planes], from the first moved layer
  const uint64_t* payloads = nullptr;         // [blocks]
  const uint64_t* engine_offsets = nullptr;   // [blocks * tiles]
  uint64_t engine_outer = 0, engine_inner = 0, payload_outer = 0, payload_inner = 0;
  uint64_t payload_tile_stride = 0;
  uint32_t pieces = 0;         // pieces of the launch
  uint32_t tile_accesses = 0;  // outer * inner * run_accesses
  FastDivisor tile_pieces;     // pieces of one tile
  FastDivisor planes;          // planes of the moved layers
  FastDivisor tiles;           // tiles per block and plane
  FastDivisor run_accesses;    // accesses of one run
  FastDivisor inner;
};

// Where a piece lies: its tile, and its first access in the tile.
struct Piece {
  uint64_t engine = 0, payload = 0;  // addresses of the tile's first byte on the two sides
  uint32_t first_access = 0;         // index of the first access inside the tile
};

// Finds the piece with this index in the launch.  Pieces are numbered by block, then tile, then
// plane, then position in the tile, so that the pieces of a tile have adjacent indices.
LARDER_HOST_DEVICE Piece FindPiece(const PagedMoveArgs& args, uint32_t index) {
  const uint32_t tile_index = args.tile_pieces.Divide(index);
  const uint32_t piece_in_tile = index - tile_index * args.tile_pieces.divisor;
  const uint32_t block_tile = args.planes.Divide(tile_index);
  const uint32_t plane = tile_index - block_tile * args.planes.divisor;
  const uint32_t block = args.tiles.Divide(block_tile);
  const uint32_t tile = block_tile - block * args.tiles.divisor;
  return {args.engine_bases[plane] + args.engine_offsets[block_tile],
          args.payloads[block] + args.payload_offsets[plane] + tile * args.payload_tile_stride,
          piece_in_tile * kPieceAccesses};
}

struct AccessOffsets {
  uint64_t engine = 0, payload = 0;
};

// Returns the offsets of access `access` from the first byte of its tile, in page and payload.
LARDER_HOST_DEVICE AccessOffsets FindAccess(const PagedMoveArgs& args, uint32_t access,
                                            uint32_t access_bytes) {
  const uint32_t run = args.run_accesses.Divide(access);
  const uint64_t in_run = uint64_t{access - run * args.run_accesses.divisor} * access_bytes;
  const uint32_t outer = args.inner.Divide(run);
  const uint32_t inner = run - outer * args.inner.divisor;
  return {outer * args.engine_outer + inner * args.engine_inner + in_run,
          outer * args.payload_outer + inner * args.payload_inner + in_run};
}

// ---- tables of a launch

// Returns how many 64-bit words the four tables of PagedMoveArgs take for `blocks` blocks.
[[nodiscard]] size_t MoveTableWords(const PagedPlan& plan, LayerRange layers, size_t blocks);
// Returns the largest number of blocks whose tables fit into `words` 64-bit words and that have at
// most 2^31 - 1 pieces together; 0 if one block is too many.
[[nodiscard]] size_t MoveBlocksMax(const PagedPlan& plan, LayerRange layers, size_t words);
// Fills `tables` and returns the arguments of a launch that reads the tables at address
// `tables_at`.
// REQUIRES: tables.size() is MoveTableWords for these blocks (CHECKed), plan.Check is OK,
// blocks.size() <= MoveBlocksMax.
[[nodiscard]] PagedMoveArgs FillMoveTables(const PagedPlan& plan, LayerRange layers,
                                           std::span<const PagedBlock> blocks,
                                           std::span<uint64_t> tables, uint64_t tables_at);

// ---- the host twin

// kGather moves from pages to payloads, kScatter from payloads to pages.
enum class MoveDirection : uint8_t { kGather = 1, kScatter = 2 };

// Does what the kernel would do, on the calling thread.
// REQUIRES: all addresses are memory of this process.
void MoveOnHost(const PagedMoveArgs& args, MoveDirection direction, uint32_t access_bytes);

// The name of the kernel for this direction and access size, for example "larder_gather_16".
[[nodiscard]] const char* KernelName(MoveDirection direction, uint32_t access_bytes);
// Threads in a block of the grid.  A grid of N blocks keeps at most N multiprocessors busy.
inline constexpr uint32_t kKernelThreads = 1024;

}  // namespace larder
