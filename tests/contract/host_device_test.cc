#include "cuda/host_device.h"
#include "tests/contract/device_contract.h"

namespace larder {
namespace {

const DeviceMaker kHost{"host",
                        [] { return absl::StatusOr<std::unique_ptr<Device>>(MakeHostDevice()); }};

INSTANTIATE_TEST_SUITE_P(HostDevice, DeviceContract, ::testing::Values(kHost));
INSTANTIATE_TEST_SUITE_P(HostDevice, PagedMoveContract, ::testing::Values(kHost));

}  // namespace
}  // namespace larder
