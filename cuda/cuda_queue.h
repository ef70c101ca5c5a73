// A stream of a CUDA device as a queue.
//
// Ownership: the stream, unless it is adopted; the context.  Thread-safety: as device.h says.
// Limits: kTableSlots launches have their tables under way at once; the next waits for the oldest.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cuda/cuda_context.h"
#include "cuda/device.h"

namespace larder {

[[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeCudaQueue(
    std::shared_ptr<CudaContext> cuda, bool low_priority);
[[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceQueue>> AdoptCudaQueue(
    std::shared_ptr<CudaContext> cuda, CUstream stream);

}  // namespace larder
