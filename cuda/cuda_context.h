// What all parts of one CUDA device share: the driver, the context, the kernels, the registered
// memory, and counters.
//
// Ownership: shared by the device and every object made from it.
// Thread-safety: const after Open, except `pins` and `counters`, which any thread may use.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cuda/device.h"
#include "cuda/driver_symbols.h"
#include "cuda/gather_scatter.h"
#include "cuda/pin_registry.h"

namespace larder {

struct CudaCounters {
  std::atomic<uint64_t> copies{0}, copy_calls{0}, direct{0}, staged{0}, within{0}, moved{0},
      launches{0}, imports_descriptor{0}, imports_handle{0};
};

class CudaContext {
 public:
  // Returns Unavailable if there is no usable driver or no such device, or the device has no
  // unified addressing; other errors are the driver's.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<CudaContext>> Open(uint32_t ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  // Makes the GPU's primary context current in the calling thread while the Scope lives; afterwards
  // the former one, such as the engine's, is current.  Does nothing if the driver refuses.
  class Scope {
   public:
    explicit Scope(const CudaContext& cuda);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const CudaContext& cuda_;
    const bool pushed_;
  };

  [[nodiscard]] const CudaSymbols& driver() const { return driver_; }
  [[nodiscard]] CUdevice device() const { return device_; }
  [[nodiscard]] const DeviceInfo& info() const { return info_; }
  [[nodiscard]] bool shares_descriptors() const { return shares_descriptors_; }
  [[nodiscard]] bool pins_read_only() const { return pins_read_only_; }
  // Returns Unavailable if the kernels of this build could not be loaded for this device.
  // REQUIRES: access_bytes is 1, 2, 4, 8 or 16.
  [[nodiscard]] absl::StatusOr<CUfunction> Kernel(MoveDirection direction,
                                                  uint32_t access_bytes) const;
  [[nodiscard]] absl::Status StatusOf(CUresult result, const char* what) const {
    return driver_.StatusOf(result, what);
  }
  [[nodiscard]] PinRegistry& pins() { return pins_; }
  [[nodiscard]] CudaCounters& counters() { return counters_; }

 private:
  explicit CudaContext(CudaSymbols driver) : driver_(driver) {}
  [[nodiscard]] absl::Status Start(uint32_t ordinal);
  void ReadInfo(int driver_version);
  void LoadKernels();
  [[nodiscard]] int Attribute(CUdevice_attribute attribute) const;

  static constexpr int kAccessSizes = 5;  // 1, 2, 4, 8 and 16 bytes
  const CudaSymbols driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction kernels_[2][kAccessSizes] = {};
  std::string no_kernels_;  // why the kernels could not be loaded; empty if they were
  bool shares_descriptors_ = false, pins_read_only_ = false;
  DeviceInfo info_;
  PinRegistry pins_;
  CudaCounters counters_;
};

}  // namespace larder
