// An NVIDIA GPU, through its driver.
//
// The device works in the GPU's primary context, which CUDA's runtime, and so most engines, use
// too.  If the build leaves CUDA out, cuda_device_absent.cc takes the place of the CUDA sources.
//
// Ownership and thread-safety: those of device.h.
// Limits: a kernel launch moves at most MoveBlocksMax blocks (gather_scatter.h): those whose tables
// fit into 512 KiB and that have at most 2^31 - 1 pieces.  So a larger Gather or Scatter takes
// several launches, and is refused if a single block exceeds these limits.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cuda/device.h"

namespace larder {

// Opens the GPU with this number.  Returns Unavailable if this build has no CUDA, there is no
// usable driver or no such GPU, or the GPU has no unified addressing; other errors are the
// driver's.  Synchronizes.  `wish` is what the device's DeviceInfo reports.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(
    uint32_t ordinal, DeviceWish wish = DeviceWish::kCuda);

}  // namespace larder
