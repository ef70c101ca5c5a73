// Device memory that paged_engine's verb `own` shares, and the device of a test.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "cuda/device.h"
#include "storage/check.h"
#include "tests/e2e/test_blocks.h"

namespace larder::e2e {

inline constexpr uint64_t kSharedBytes = 1 << 20;

inline void FillShared(uint32_t seed, std::span<std::byte> bytes) {
  FillLayer(Digest{}, seed, bytes);
}

// The host's; LARDER_TEST_DEVICE=cuda: the GPU.
inline std::unique_ptr<Device> OpenTestDevice() {
  const char* wanted = std::getenv("LARDER_TEST_DEVICE");
  const bool cuda = wanted != nullptr && std::string(wanted) == "cuda";
  auto opened = OpenDevice(cuda ? DeviceWish::kCuda : DeviceWish::kHost);
  LARDER_CHECK(opened.ok());
  return std::move(opened->device);
}

}  // namespace larder::e2e
