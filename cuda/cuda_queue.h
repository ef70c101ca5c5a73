// A stream of a CUDA device as a queue.
//
// Ownership: the queue owns its stream, unless the stream was adopted, and shares ownership of the
// context.
// Thread-safety: as device.h says.
// Limits: a queue has memory for the tables of 4 kernel launches (kTableSlots), so a Gather or
// Scatter that needs a fifth waits for the oldest launch.  The first Gather or Scatter allocates
// this memory, and the first copy that needs a pinned buffer allocates that; such a call
// synchronizes.
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
