#include "cuda/cuda_memory.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

// ---- plain memory, which legacy handles can share

class PlainMemory : public DeviceMemory {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Make(std::shared_ptr<CudaContext> cuda,
                                                            ByteCount bytes, SharePath share) {
    const CudaContext::Scope scope(*cuda);
    CUdeviceptr at = 0;
    LARDER_RETURN_IF_ERROR(
        cuda->StatusOf(cuda->driver().cuMemAlloc_v2(&at, bytes.value()), "cuMemAlloc"));
    return std::make_unique<PlainMemory>(std::move(cuda), at, bytes, share);
  }
  PlainMemory(std::shared_ptr<CudaContext> cuda, CUdeviceptr at, ByteCount bytes, SharePath share)
      : cuda_(std::move(cuda)), at_(at), bytes_(bytes), share_(share) {}
  ~PlainMemory() override {
    const CudaContext::Scope scope(*cuda_);
    cuda_->driver().cuMemFree_v2(at_);
  }
  [[nodiscard]] uint64_t address() const override { return at_; }
  [[nodiscard]] ByteCount bytes() const override { return bytes_; }
  [[nodiscard]] SharePath share() const override { return share_; }

 private:
  const std::shared_ptr<CudaContext> cuda_;
  const CUdeviceptr at_;
  const ByteCount bytes_;
  const SharePath share_;
};

class HandleMemory : public DeviceMemory {
 public:
  HandleMemory(std::shared_ptr<CudaContext> cuda, CUdeviceptr at, ByteCount bytes)
      : cuda_(std::move(cuda)), at_(at), bytes_(bytes) {}
  ~HandleMemory() override {
    const CudaContext::Scope scope(*cuda_);
    cuda_->driver().cuIpcCloseMemHandle(at_);
  }
  [[nodiscard]] uint64_t address() const override { return at_; }
  [[nodiscard]] ByteCount bytes() const override { return bytes_; }
  // The memory belongs to the exporting process, so this process cannot share it again.
  [[nodiscard]] SharePath share() const override { return SharePath::kNone; }

 private:
  const std::shared_ptr<CudaContext> cuda_;
  const CUdeviceptr at_;
  const ByteCount bytes_;
};

// ---- memory that descriptors can share: an allocation, mapped at a range of addresses

class MappedMemory : public DeviceMemory {
 public:
  // Takes ownership of `allocation`.
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Map(std::shared_ptr<CudaContext> cuda,
                                                           CUmemGenericAllocationHandle allocation,
                                                           ByteCount bytes, size_t mapped_bytes) {
    std::unique_ptr<MappedMemory> memory(
        new MappedMemory(std::move(cuda), allocation, bytes, mapped_bytes));
    LARDER_RETURN_IF_ERROR(memory->MapAll());
    return memory;
  }
  ~MappedMemory() override {
    const CudaContext::Scope scope(*cuda_);
    const CudaSymbols& driver = cuda_->driver();
    if (mapped_) driver.cuMemUnmap(at_, mapped_bytes_);
    if (at_ != 0) driver.cuMemAddressFree(at_, mapped_bytes_);
    driver.cuMemRelease(allocation_);
  }
  [[nodiscard]] uint64_t address() const override { return at_; }
  [[nodiscard]] ByteCount bytes() const override { return bytes_; }
  [[nodiscard]] SharePath share() const override { return SharePath::kDescriptor; }
  [[nodiscard]] CUmemGenericAllocationHandle allocation() const { return allocation_; }

 private:
  MappedMemory(std::shared_ptr<CudaContext> cuda, CUmemGenericAllocationHandle allocation,
               ByteCount bytes, size_t mapped_bytes)
      : cuda_(std::move(cuda)),
        allocation_(allocation),
        bytes_(bytes),
        mapped_bytes_(mapped_bytes) {}

  absl::Status MapAll() {
    const CudaSymbols& driver = cuda_->driver();
    LARDER_RETURN_IF_ERROR(cuda_->StatusOf(driver.cuMemAddressReserve(&at_, mapped_bytes_, 0, 0, 0),
                                           "cuMemAddressReserve"));
    LARDER_RETURN_IF_ERROR(
        cuda_->StatusOf(driver.cuMemMap(at_, mapped_bytes_, 0, allocation_, 0), "cuMemMap"));
    mapped_ = true;
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = cuda_->device();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return cuda_->StatusOf(driver.cuMemSetAccess(at_, mapped_bytes_, &access, 1), "cuMemSetAccess");
  }

  const std::shared_ptr<CudaContext> cuda_;
  const CUmemGenericAllocationHandle allocation_;
  const ByteCount bytes_;
  const size_t mapped_bytes_;
  CUdeviceptr at_ = 0;
  bool mapped_ = false;
};

CUmemAllocationProp SharedAllocation(const CudaContext& cuda) {
  CUmemAllocationProp wanted = {};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = cuda.device();
  return wanted;
}

absl::StatusOr<size_t> MappedBytes(const CudaContext& cuda, ByteCount bytes) {
  const CUmemAllocationProp wanted = SharedAllocation(cuda);
  size_t granularity = 0;
  LARDER_RETURN_IF_ERROR(cuda.StatusOf(cuda.driver().cuMemGetAllocationGranularity(
                                           &granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                                       "cuMemGetAllocationGranularity"));
  if (granularity == 0)
    return absl::InternalError("the driver reports an allocation granularity of 0");
  return RoundUp(bytes.value(), granularity);
}

absl::Status NoDescriptors(const CudaContext& cuda) {
  return absl::UnavailableError(
      absl::StrCat(cuda.info().name, " cannot share memory by descriptor"));
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateMapped(std::shared_ptr<CudaContext> cuda,
                                                             ByteCount bytes) {
  if (!cuda->shares_descriptors()) return NoDescriptors(*cuda);
  const CudaContext::Scope scope(*cuda);
  LARDER_ASSIGN_OR_RETURN(const size_t mapped_bytes, MappedBytes(*cuda, bytes));
  const CUmemAllocationProp wanted = SharedAllocation(*cuda);
  CUmemGenericAllocationHandle allocation = 0;
  LARDER_RETURN_IF_ERROR(cuda->StatusOf(
      cuda->driver().cuMemCreate(&allocation, mapped_bytes, &wanted, 0), "cuMemCreate"));
  return MappedMemory::Map(std::move(cuda), allocation, bytes, mapped_bytes);
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> ImportDescriptor(std::shared_ptr<CudaContext> cuda,
                                                               const DeviceExport& exported) {
  if (!cuda->shares_descriptors()) return NoDescriptors(*cuda);
  const CudaContext::Scope scope(*cuda);
  LARDER_ASSIGN_OR_RETURN(const size_t mapped_bytes, MappedBytes(*cuda, exported.bytes));
  CUmemGenericAllocationHandle allocation = 0;
  void* descriptor = reinterpret_cast<void*>(static_cast<intptr_t>(exported.descriptor));
  LARDER_RETURN_IF_ERROR(
      cuda->StatusOf(cuda->driver().cuMemImportFromShareableHandle(
                         &allocation, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                     "cuMemImportFromShareableHandle"));
  // cuMemMap refuses more than the size of the allocation, so Map fails if exported.bytes is too
  // large.
  auto memory = MappedMemory::Map(cuda, allocation, exported.bytes, mapped_bytes);
  if (memory.ok()) ++cuda->counters().imports_descriptor;
  return memory;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> ImportHandle(std::shared_ptr<CudaContext> cuda,
                                                           const DeviceExport& exported) {
  if (!cuda->driver().has_handles)
    return absl::UnavailableError(
        "memory cannot be shared by handle: the driver has no cuIpc functions");
  const CudaContext::Scope scope(*cuda);
  CUipcMemHandle handle = {};
  static_assert(sizeof handle == DeviceExport::kHandleBytes);
  std::memcpy(&handle, exported.handle.data(), sizeof handle);
  CUdeviceptr at = 0;
  LARDER_RETURN_IF_ERROR(cuda->StatusOf(
      cuda->driver().cuIpcOpenMemHandle_v2(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
      "cuIpcOpenMemHandle"));
  auto memory = std::make_unique<HandleMemory>(cuda, at, exported.bytes);
  CUdeviceptr base = 0;
  size_t size = 0;
  LARDER_RETURN_IF_ERROR(cuda->StatusOf(cuda->driver().cuMemGetAddressRange_v2(&base, &size, at),
                                        "cuMemGetAddressRange"));
  if (size - (at - base) < exported.bytes.value())
    return absl::InvalidArgumentError("the exported memory is smaller than its export says");
  ++cuda->counters().imports_handle;
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateCudaMemory(std::shared_ptr<CudaContext> cuda,
                                                                 ByteCount bytes, SharePath share) {
  if (bytes.value() == 0) return absl::InvalidArgumentError("the size of the memory is 0 bytes");
  if (share == SharePath::kDescriptor) return AllocateMapped(std::move(cuda), bytes);
  if (share == SharePath::kHandle && !cuda->driver().has_handles)
    return absl::UnavailableError(
        "memory cannot be shared by handle: the driver has no cuIpc functions");
  return PlainMemory::Make(std::move(cuda), bytes, share);
}

absl::StatusOr<DeviceExport> ExportCudaMemory(const CudaContext& cuda, const DeviceMemory& memory) {
  const CudaContext::Scope scope(cuda);
  DeviceExport exported(memory.share(), memory.bytes());
  if (memory.share() == SharePath::kDescriptor) {
    const auto allocation = static_cast<const MappedMemory&>(memory).allocation();
    LARDER_RETURN_IF_ERROR(cuda.StatusOf(
        cuda.driver().cuMemExportToShareableHandle(&exported.descriptor, allocation,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle"));
    return exported;
  }
  if (memory.share() == SharePath::kHandle) {
    CUipcMemHandle handle = {};
    LARDER_RETURN_IF_ERROR(cuda.StatusOf(cuda.driver().cuIpcGetMemHandle(&handle, memory.address()),
                                         "cuIpcGetMemHandle"));
    std::memcpy(exported.handle.data(), &handle, sizeof handle);
    return exported;
  }
  return absl::FailedPreconditionError("this memory was not allocated to be shared");
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> ImportCudaMemory(std::shared_ptr<CudaContext> cuda,
                                                               const DeviceExport& exported) {
  if (exported.bytes.value() == 0)
    return absl::InvalidArgumentError("the size of the memory is 0 bytes");
  switch (exported.path) {
    case SharePath::kDescriptor:
      return ImportDescriptor(std::move(cuda), exported);
    case SharePath::kHandle:
      return ImportHandle(std::move(cuda), exported);
    case SharePath::kNone:
      break;
  }
  return absl::InvalidArgumentError("the export has no share path");
}

}  // namespace larder
