// The device memory that paged_engine's verb `own` shares, and the device that a test uses.
#pragma once

#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "cuda/device.h"
#include "tests/e2e/support/test_blocks.h"

namespace larder::e2e {

inline constexpr uint64_t kSharedBytes = 1 << 20;

inline void FillShared(uint32_t seed, std::span<std::byte> bytes) {
  FillLayer(Digest{}, seed, bytes);
}

// Opens the host device, or with LARDER_TEST_DEVICE=cuda the GPU, or with LARDER_TEST_DEVICE=auto
// the GPU if there is one.
inline absl::StatusOr<std::unique_ptr<Device>> OpenTestDevice() {
  const char* const wanted = std::getenv("LARDER_TEST_DEVICE");
  const std::string wish = wanted == nullptr ? "host" : wanted;
  auto opened = OpenDevice(wish == "cuda"   ? DeviceWish::kCuda
                           : wish == "auto" ? DeviceWish::kAuto
                                            : DeviceWish::kHost);
  if (!opened.ok()) return opened.status();
  return std::move(opened->device);
}

}  // namespace larder::e2e
