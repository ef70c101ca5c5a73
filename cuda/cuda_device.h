// A GPU of NVIDIA's, through its driver.
//
// Works in the device's primary context, which is the one that CUDA's runtime, and so every engine,
// uses.  cuda_device_absent.cc stands in for it where there was no CUDA toolkit at build time.
//
// Ownership, thread-safety, lifecycle: as device.h says.
// Limits: the first 2^31 - 1 accesses of a launch; imports as the driver has room.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cuda/device.h"

namespace larder {

// Unavailable: not built in, no driver, no such device.  Synchronizes.  `wish`: for its DeviceInfo.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(
    uint32_t ordinal, DeviceWish wish = DeviceWish::kCuda);

}  // namespace larder
