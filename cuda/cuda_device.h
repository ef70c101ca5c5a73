// An NVIDIA GPU, through its driver.
//
// The device works in the GPU's primary context, which CUDA's runtime, and therefore every engine,
// uses.  cuda_device_absent.cc is built instead of cuda_device.cc if there was no CUDA toolkit at
// build time.
//
// Ownership, thread-safety, lifecycle: as device.h says.
// Limits: a kernel launch moves at most 2^31 - 1 pieces (gather_scatter.h), so a larger move takes
// several launches; the driver limits the number of imports.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cuda/device.h"

namespace larder {

// Opens the GPU with this number.  Returns Unavailable if this build has no CUDA, or there is no
// driver or no such GPU.  Synchronizes.  `wish` is what the device's DeviceInfo reports.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(
    uint32_t ordinal, DeviceWish wish = DeviceWish::kCuda);

}  // namespace larder
