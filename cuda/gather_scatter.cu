// The kernels of gather_scatter.h.  Compiled to a fat binary that is part of the library
// (cuda_kernels.h); CUDA's runtime library is not linked.
//
// With N warps in the grid, each warp moves every Nth piece, so the size of the grid limits how
// many multiprocessors are busy.  A lane reads the values of all its accesses of a piece before it
// writes the first of them.  Reads and writes have a streaming hint for the caches, because no byte
// of the KV is accessed twice.
#include "cuda/gather_scatter.h"

namespace larder {
namespace {

template <uint32_t kBytes>
struct AccessOf;
template <>
struct AccessOf<16> {
  using Type = uint4;
};
template <>
struct AccessOf<8> {
  using Type = uint2;
};
template <>
struct AccessOf<4> {
  using Type = uint32_t;
};
template <>
struct AccessOf<2> {
  using Type = unsigned short;
};
template <>
struct AccessOf<1> {
  using Type = unsigned char;
};

template <uint32_t kBytes, MoveDirection kDirection>
__device__ __forceinline__ void MovePieces(const PagedMoveArgs& args) {
  using Access = typename AccessOf<kBytes>::Type;
  const uint32_t lane = threadIdx.x % kWarpLanes;
  const uint32_t warps = gridDim.x * (kKernelThreads / kWarpLanes);
  const uint32_t warp = blockIdx.x * (kKernelThreads / kWarpLanes) + threadIdx.x / kWarpLanes;
  for (uint32_t index = warp; index < args.pieces; index += warps) {
    const Piece piece = FindPiece(args, index);
    Access values[kLaneAccesses];
    uint64_t to[kLaneAccesses];
#pragma unroll
    for (uint32_t i = 0; i < kLaneAccesses; ++i) {
      const uint32_t access = piece.first_access + i * kWarpLanes + lane;
      to[i] = 0;
      if (access >= args.tile_accesses) continue;
      const AccessOffsets at = FindAccess(args, access, kBytes);
      const uint64_t engine = piece.engine + at.engine, payload = piece.payload + at.payload;
      const bool gather = kDirection == MoveDirection::kGather;
      to[i] = gather ? payload : engine;
      values[i] = __ldcs(reinterpret_cast<const Access*>(gather ? engine : payload));
    }
#pragma unroll
    for (uint32_t i = 0; i < kLaneAccesses; ++i)
      if (to[i] != 0) __stcs(reinterpret_cast<Access*>(to[i]), values[i]);
  }
}

}  // namespace

#define LARDER_MOVE_KERNELS(bytes)                                                              \
  extern "C" __global__ void __launch_bounds__(kKernelThreads) \
      larder_gather_##bytes(const __grid_constant__ PagedMoveArgs args) {                       \
    MovePieces<bytes, MoveDirection::kGather>(args);                                            \
  }                                                                                             \
  extern "C" __global__ void __launch_bounds__(kKernelThreads) \
      larder_scatter_##bytes(const __grid_constant__ PagedMoveArgs args) {                      \
    MovePieces<bytes, MoveDirection::kScatter>(args);                                           \
  }

LARDER_MOVE_KERNELS(16)
LARDER_MOVE_KERNELS(8)
LARDER_MOVE_KERNELS(4)
LARDER_MOVE_KERNELS(2)
LARDER_MOVE_KERNELS(1)

}  // namespace larder
