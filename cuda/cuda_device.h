// An NVIDIA GPU, through its driver.
//
// Works in the device's primary context, which CUDA's runtime, and therefore every engine, uses.
// cuda_device_absent.cc takes its place if there was no CUDA toolkit at build time.
//
// Ownership, thread-safety, lifecycle: as device.h says.
// Limits: a launch moves at most 2^31 - 1 pieces (gather_scatter.h), and a larger move is several
// launches; the driver limits the number of imports.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cuda/device.h"

namespace larder {

// Returns Unavailable if CUDA is not built in, or there is no driver or no such device.
// Synchronizes.  `wish` is what its DeviceInfo reports.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(
    uint32_t ordinal, DeviceWish wish = DeviceWish::kCuda);

}  // namespace larder
