#include "cuda/cuda_context.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "cuda/cuda_kernels.h"
#include "storage/status_macros.h"

namespace larder {

absl::StatusOr<std::shared_ptr<CudaContext>> CudaContext::Open(uint32_t ordinal) {
  LARDER_ASSIGN_OR_RETURN(CudaSymbols driver, CudaSymbols::Load());
  std::shared_ptr<CudaContext> cuda(new CudaContext(driver));
  LARDER_RETURN_IF_ERROR(cuda->Start(ordinal));
  return cuda;
}

CudaContext::~CudaContext() {
  if (context_ == nullptr) return;
  if (module_ != nullptr) {
    const Scope scope(*this);
    driver_.cuModuleUnload(module_);
  }
  driver_.cuDevicePrimaryCtxRelease_v2(device_);
}

CudaContext::Scope::Scope(const CudaContext& cuda)
    : cuda_(cuda), pushed_(cuda.driver_.cuCtxPushCurrent_v2(cuda.context_) == CUDA_SUCCESS) {}
CudaContext::Scope::~Scope() {
  if (!pushed_) return;  // the push failed, so a pop would remove the engine's context
  CUcontext popped = nullptr;
  cuda_.driver_.cuCtxPopCurrent_v2(&popped);
}

absl::Status CudaContext::Start(uint32_t ordinal) {
  // Any error of cuInit means that there is no usable device.
  if (const absl::Status ok = StatusOf(driver_.cuInit(0), "cuInit"); !ok.ok())
    return absl::UnavailableError(
        absl::StrCat(ok.message(), "; nvidia-smi says whether the GPU works"));
  int count = 0, version = 0;
  LARDER_RETURN_IF_ERROR(StatusOf(driver_.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (ordinal >= static_cast<uint32_t>(count))
    return absl::UnavailableError(absl::StrCat(
        "GPU ", ordinal, " does not exist: the number of GPUs that the driver shows is ", count,
        "; CUDA_VISIBLE_DEVICES may hide others"));
  LARDER_RETURN_IF_ERROR(
      StatusOf(driver_.cuDeviceGet(&device_, static_cast<int>(ordinal)), "cuDeviceGet"));
  if (Attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) == 0)
    return absl::UnavailableError("this GPU has no unified addressing");
  LARDER_RETURN_IF_ERROR(
      StatusOf(driver_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain"));
  driver_.cuDriverGetVersion(&version);
  const Scope scope(*this);
  ReadInfo(version);
  LoadKernels();
  return absl::OkStatus();
}

void CudaContext::ReadInfo(int version) {
  char name[128] = {};
  size_t memory = 0;
  driver_.cuDeviceGetName(name, sizeof name - 1, device_);
  driver_.cuDeviceTotalMem_v2(&memory, device_);
  info_.kind = DeviceKind::kCuda;
  info_.name = name;
  info_.memory = ByteCount(memory);
  info_.multiprocessors =
      static_cast<uint32_t>(Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  info_.driver = absl::StrCat(version / 1000, ".", version % 1000 / 10);
  shares_descriptors_ =
      driver_.has_descriptors &&
      Attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
  pins_read_only_ = Attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0;
  if (!shares_descriptors_)
    info_.limits.push_back(
        driver_.has_descriptors
            ? "memory cannot be shared by descriptor: the device does not export it"
            : "memory cannot be shared by descriptor: the driver is older than CUDA 10.2");
  if (!driver_.has_handles)
    info_.limits.push_back("memory cannot be shared by handle: the driver has no cuIpc functions");
  if (!pins_read_only_)
    info_.limits.push_back(
        "memory mapped read-only is copied through a pinned buffer: the device cannot register it");
  if (driver_.batch_copy == nullptr && driver_.batch_copy_12 == nullptr)
    info_.limits.push_back("each copy is a call of its own: the driver is older than CUDA 12.8");
}

void CudaContext::LoadKernels() {
  // The driver may load the code in cuModuleLoadData or only in cuModuleGetFunction, so either call
  // may fail if the build has no kernels for this GPU.
  absl::Status loaded =
      StatusOf(driver_.cuModuleLoadData(&module_, larder_cuda_kernels), "cuModuleLoadData");
  for (const MoveDirection direction : {MoveDirection::kGather, MoveDirection::kScatter})
    for (int size = 0; size < kAccessSizes && loaded.ok(); ++size)
      loaded =
          StatusOf(driver_.cuModuleGetFunction(&kernels_[static_cast<int>(direction) - 1][size],
                                               module_, KernelName(direction, 1u << size)),
                   "cuModuleGetFunction");
  if (loaded.ok()) return;
  no_kernels_ = absl::StrCat("no kernels for this GPU (built for sm_80, sm_90 and later): ",
                             loaded.message());
  info_.limits.push_back(no_kernels_);
}

absl::StatusOr<CUfunction> CudaContext::Kernel(MoveDirection direction,
                                               uint32_t access_bytes) const {
  if (!no_kernels_.empty()) return absl::UnavailableError(no_kernels_);
  return kernels_[static_cast<int>(direction) - 1][std::countr_zero(access_bytes)];
}

int CudaContext::Attribute(CUdevice_attribute attribute) const {
  int value = 0;
  return driver_.cuDeviceGetAttribute(&value, attribute, device_) == CUDA_SUCCESS ? value : 0;
}

}  // namespace larder
