// If the build leaves CUDA out, this file is built instead of cuda_device.cc and the other CUDA
// sources.
#include "cuda/cuda_device.h"

namespace larder {

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(uint32_t /*ordinal*/, DeviceWish /*wish*/) {
  return absl::UnavailableError(
      "this build has no CUDA: install the toolkit (nvcc on PATH) and build again");
}

}  // namespace larder
