#include "cuda/device.h"

#include <unistd.h>

#include "cuda/cuda_device.h"
#include "cuda/host_device.h"

namespace larder {

const char* ToString(DeviceKind kind) { return kind == DeviceKind::kCuda ? "cuda" : "host"; }

const char* ToString(DeviceWish wish) {
  switch (wish) {
    case DeviceWish::kHost:
      return "host";
    case DeviceWish::kCuda:
      return "cuda";
    case DeviceWish::kAuto:
      return "auto";
  }
  return "unknown";
}

const char* ToString(SharePath path) {
  switch (path) {
    case SharePath::kNone:
      return "none";
    case SharePath::kDescriptor:
      return "descriptor";
    case SharePath::kHandle:
      return "handle";
  }
  return "unknown";
}

const char* ToString(PinPath path) {
  switch (path) {
    case PinPath::kPending:
      return "pending";
    case PinPath::kRegistered:
      return "registered";
    case PinPath::kReadOnly:
      return "registered read-only";
    case PinPath::kStaged:
      return "staged";
  }
  return "unknown";
}

DeviceExport& DeviceExport::operator=(DeviceExport&& other) noexcept {
  if (this == &other) return *this;
  if (descriptor >= 0) close(descriptor);
  path = other.path;
  bytes = other.bytes;
  descriptor = std::exchange(other.descriptor, -1);
  handle = other.handle;
  return *this;
}

DeviceExport::~DeviceExport() {
  if (descriptor >= 0) close(descriptor);
}

absl::StatusOr<OpenedDevice> OpenDevice(DeviceWish wish, uint32_t ordinal) {
  if (wish == DeviceWish::kHost) return OpenedDevice{MakeHostDevice(), ""};
  absl::StatusOr<std::unique_ptr<Device>> cuda = OpenCudaDevice(ordinal, wish);
  if (cuda.ok()) return OpenedDevice{*std::move(cuda), ""};
  if (wish == DeviceWish::kCuda) return cuda.status();
  const std::string reason(cuda.status().message());
  return OpenedDevice{MakeHostDevice(wish, reason), reason};
}

}  // namespace larder
