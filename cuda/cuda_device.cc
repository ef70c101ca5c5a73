#include "cuda/cuda_device.h"

#include <utility>

#include "cuda/cuda_context.h"
#include "cuda/cuda_memory.h"
#include "cuda/cuda_queue.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

class CudaDevice : public Device {
 public:
  CudaDevice(std::shared_ptr<CudaContext> cuda, DeviceWish wish)
      : cuda_(std::move(cuda)), info_(cuda_->info()) {
    info_.wish = wish;
  }

  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] DeviceStats stats() const override {
    const CudaCounters& counters = cuda_->counters();
    DeviceStats stats;
    stats.copies = counters.copies;
    stats.copy_calls = counters.copy_calls;
    stats.bytes_direct = ByteCount(counters.direct);
    stats.bytes_staged = ByteCount(counters.staged);
    stats.bytes_within = ByteCount(counters.within);
    stats.bytes_moved = ByteCount(counters.moved);
    stats.launches = counters.launches;
    stats.imports[0] = counters.imports_descriptor;
    stats.imports[1] = counters.imports_handle;
    cuda_->pins().Tell(&stats);
    return stats;
  }

  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(ByteCount bytes,
                                                                       SharePath share) override {
    return AllocateCudaMemory(cuda_, bytes, share);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(
      ByteCount bytes) override {
    return AllocateCudaPinned(cuda_, bytes);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<PinnedMemory>> Pin(
      std::span<const std::byte> memory, const PinOptions& options) override {
    return PinForCuda(cuda_, memory, options);
  }
  [[nodiscard]] absl::StatusOr<DeviceExport> Export(const DeviceMemory& memory) override {
    return ExportCudaMemory(*cuda_, memory);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceMemory>> Import(
      const DeviceExport& exported) override {
    return ImportCudaMemory(cuda_, exported);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue(bool low_priority) override {
    return MakeCudaQueue(cuda_, low_priority);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceQueue>> AdoptQueue(
      uint64_t native_handle) override {
    return AdoptCudaQueue(cuda_, reinterpret_cast<CUstream>(native_handle));
  }

 private:
  const std::shared_ptr<CudaContext> cuda_;
  DeviceInfo info_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(uint32_t ordinal, DeviceWish wish) {
  LARDER_ASSIGN_OR_RETURN(std::shared_ptr<CudaContext> cuda, CudaContext::Open(ordinal));
  return std::make_unique<CudaDevice>(std::move(cuda), wish);
}

}  // namespace larder
