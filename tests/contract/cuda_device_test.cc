// The contract on a GPU if libcuda finds one, or on a driver of tests/cuda/fake_libcuda.cc that
// LD_LIBRARY_PATH names.  With LARDER_TEST_CUDA_REQUIRED=1, a missing GPU is a failure and not a
// reason to skip.
#include <cstdlib>

#include "cuda/cuda_device.h"
#include "tests/contract/device_contract.h"

namespace larder {
namespace {

const DeviceMaker kCuda{"cuda", [] {
                          absl::StatusOr<std::unique_ptr<Device>> device = OpenCudaDevice(0);
                          if (std::getenv("LARDER_TEST_CUDA_REQUIRED") != nullptr) {
                            EXPECT_TRUE(device.ok()) << device.status();
                          }
                          return device;
                        }};

INSTANTIATE_TEST_SUITE_P(CudaDevice, DeviceContract, ::testing::Values(kCuda));
INSTANTIATE_TEST_SUITE_P(CudaDevice, PagedMoveContract, ::testing::Values(kCuda));

}  // namespace
}  // namespace larder
