// Memory of a CUDA device, and memory of the process that the device may access.
//
// Ownership: each object frees, unmaps or unregisters what it made when it is destroyed, and shares
// ownership of the context.  Thread-safety: as device.h says.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "cuda/cuda_context.h"
#include "cuda/device.h"

namespace larder {

[[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateCudaMemory(
    std::shared_ptr<CudaContext> cuda, ByteCount bytes, SharePath share);
[[nodiscard]] absl::StatusOr<DeviceExport> ExportCudaMemory(const CudaContext& cuda,
                                                            const DeviceMemory& memory);
[[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceMemory>> ImportCudaMemory(
    std::shared_ptr<CudaContext> cuda, const DeviceExport& exported);

[[nodiscard]] absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocateCudaPinned(
    std::shared_ptr<CudaContext> cuda, ByteCount bytes);
[[nodiscard]] absl::StatusOr<std::unique_ptr<PinnedMemory>> PinForCuda(
    std::shared_ptr<CudaContext> cuda, std::span<const std::byte> memory,
    const PinOptions& options);

}  // namespace larder
