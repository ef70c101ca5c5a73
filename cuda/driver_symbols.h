// The functions of libcuda, found at run time.  Other sources call them through CudaSymbols.
//
// No binary of Larder links against libcuda.  A machine without libcuda, or with one that is too
// old, is a normal state: the error of Load says what is missing, in a sentence for the operator.
//
// Ownership: a value.  libcuda is never unloaded, because its threads run until the process ends.
// Thread-safety: const after Load.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace larder {

// clang-format off

// Load fails if one of these functions is missing.  All are in the drivers of CUDA 11.0 (driver
// 450) and later.
#define LARDER_CUDA_REQUIRED(F)                                                              \
  F(cuInit) F(cuDriverGetVersion) F(cuGetErrorName) F(cuGetErrorString)                      \
  F(cuDeviceGetCount) F(cuDeviceGet) F(cuDeviceGetName) F(cuDeviceGetAttribute)              \
  F(cuDeviceTotalMem_v2) F(cuDevicePrimaryCtxRetain) F(cuDevicePrimaryCtxRelease_v2)         \
  F(cuCtxPushCurrent_v2) F(cuCtxPopCurrent_v2) F(cuCtxGetStreamPriorityRange)                \
  F(cuMemAlloc_v2) F(cuMemFree_v2) F(cuMemGetAddressRange_v2)                                \
  F(cuMemHostAlloc) F(cuMemFreeHost) F(cuMemHostRegister_v2) F(cuMemHostUnregister)          \
  F(cuMemcpyAsync) F(cuLaunchHostFunc) F(cuLaunchKernel)                                     \
  F(cuStreamCreateWithPriority) F(cuStreamDestroy_v2) F(cuStreamSynchronize)                 \
  F(cuStreamWaitEvent) F(cuEventCreate) F(cuEventDestroy_v2) F(cuEventRecord)                \
  F(cuEventQuery) F(cuEventSynchronize)                                                      \
  F(cuModuleLoadData) F(cuModuleUnload) F(cuModuleGetFunction)

// SharePath::kDescriptor needs all of these (CUDA 10.2).
#define LARDER_CUDA_DESCRIPTORS(F)                                                           \
  F(cuMemCreate) F(cuMemRelease) F(cuMemAddressReserve) F(cuMemAddressFree)                  \
  F(cuMemMap) F(cuMemUnmap) F(cuMemSetAccess) F(cuMemGetAllocationGranularity)               \
  F(cuMemExportToShareableHandle) F(cuMemImportFromShareableHandle)

// SharePath::kHandle needs all of these.
#define LARDER_CUDA_HANDLES(F) F(cuIpcGetMemHandle) F(cuIpcOpenMemHandle_v2) F(cuIpcCloseMemHandle)

// clang-format on

// cuMemcpyBatchAsync and its successor cuMemcpyBatchAsync_v2 have different signatures.  Both are
// declared here, so that this file also compiles with a cuda.h that lacks them.
using CudaBatchCopy = CUresult (*)(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                                   void* attributes, size_t* attribute_indices,
                                   size_t attribute_count, CUstream stream);  // CUDA 13.0
using CudaBatchCopy12 = CUresult (*)(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes,
                                     size_t count, void* attributes, size_t* attribute_indices,
                                     size_t attribute_count, size_t* failed_index,
                                     CUstream stream);  // CUDA 12.8

struct CudaSymbols {
#define LARDER_DECLARE(name) decltype(&::name) name = nullptr;
  LARDER_CUDA_REQUIRED(LARDER_DECLARE)
  LARDER_CUDA_DESCRIPTORS(LARDER_DECLARE)
  LARDER_CUDA_HANDLES(LARDER_DECLARE)
#undef LARDER_DECLARE
  CudaBatchCopy batch_copy = nullptr;
  CudaBatchCopy12 batch_copy_12 = nullptr;

  bool has_descriptors = false;
  bool has_handles = false;

  // Returns Unavailable if there is no libcuda, or it is older than CUDA 11.
  [[nodiscard]] static absl::StatusOr<CudaSymbols> Load();

  // Returns the status for the result of the driver call `what`, with the driver's own words.
  [[nodiscard]] absl::Status StatusOf(CUresult result, const char* what) const;
};

}  // namespace larder
