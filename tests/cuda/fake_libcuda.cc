// A libcuda.so.1 without a GPU: device memory is memory of the process, streams do their work at
// once, and a kernel is its host twin.  With it cuda_device passes the contract suite on any
// machine.  It refuses what the real driver refuses: copies from memory that is not registered as
// one piece, registering read-only memory, sizes beyond an allocation.
//
// It is compiled four times:
//   default            as CUDA 13's driver
//   FAKE_CUDA_12       with the older batch call
//   FAKE_CUDA_11       without descriptors, handles and batches
//   FAKE_CUDA_BROKEN   without a function that is needed
// LARDER_TEST_CUDA_READ_ONLY=1 lets it register read-only memory.  LARDER_TEST_CUDA_NO_DEVICE=1
// makes cuInit find no device. A program that exits without freeing everything exits with kLeaked.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "cuda/gather_scatter.h"
#include "storage/types.h"

namespace {

constexpr int kLeaked = 99;
constexpr size_t kGranularity = 2 << 20;
constexpr size_t kTotalMemory = size_t{8} << 30;
constexpr int kVersion =
#if defined(FAKE_CUDA_11)
    11000;
#elif defined(FAKE_CUDA_12)
    12080;
#else
    13000;
#endif

struct Kernel {
  larder::MoveDirection direction;
  uint32_t access_bytes;
};

// Everything that is alive, under one lock.
struct State {
  std::mutex mu;
  std::map<uint64_t, size_t> device;      // address -> bytes
  std::map<uint64_t, size_t> registered;  // address -> bytes
  std::set<void*> streams, events;
  std::set<int> allocations;  // descriptors of memfds
  int contexts = 0;

  size_t Alive() const {
    return device.size() + registered.size() + streams.size() + events.size() + allocations.size() +
           static_cast<size_t>(contexts);
  }
};
State& TheState() {
  static State* state = new State;
  return *state;
}

bool Inside(const std::map<uint64_t, size_t>& ranges, uint64_t at, size_t bytes) {
  auto after = ranges.upper_bound(at);
  if (after == ranges.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return at - begin <= size && bytes <= size - (at - begin);
}

bool IsSet(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && std::string(value) == "1";
}

// Returns true if this process may write there, according to its map of memory.
bool IsWritable(uint64_t at) {
  FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  bool writable = false;
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    uint64_t begin = 0, end = 0;
    char rights[8] = {};
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s", &begin, &end, rights) == 3 &&
        begin <= at && at < end)
      writable = rights[1] == 'w';
  }
  std::fclose(maps);
  return writable;
}

CUresult Copy(uint64_t to, uint64_t from, size_t bytes) {
  State& state = TheState();
  const std::lock_guard lock(state.mu);
  for (const uint64_t at : {to, from})
    if (!Inside(state.device, at, bytes) && !Inside(state.registered, at, bytes))
      return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

template <class Set>
void* Make(Set& set) {
  void* made = std::malloc(1);
  set.insert(made);
  return made;
}

__attribute__((destructor)) void ReportLeaks() {
  if (TheState().Alive() == 0) return;
  std::fprintf(stderr, "fake libcuda: %zu objects were not freed\n", TheState().Alive());
  std::fflush(stderr);
  _exit(kLeaked);
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) {
  return IsSet("LARDER_TEST_CUDA_NO_DEVICE") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  *version = kVersion;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** words) {
  *words = error == CUDA_ERROR_NO_DEVICE ? "no CUDA-capable device is detected" : "fake words";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, static_cast<size_t>(size), "fake GPU");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      *value = 1;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 4;
      break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      *value = 1;
      break;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
      *value = IsSet("LARDER_TEST_CUDA_READ_ONLY");
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = kTotalMemory;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(&TheState());
  ++TheState().contexts;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
  --TheState().contexts;
  return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent_v2(CUcontext*) { return CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* at, size_t bytes) {
  if (bytes > kTotalMemory) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(256, larder::RoundUp(bytes, 256)));
  const std::lock_guard lock(TheState().mu);
  TheState().device[*at] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr at) {
  const std::lock_guard lock(TheState().mu);
  if (TheState().device.erase(at) == 0) return CUDA_ERROR_INVALID_VALUE;
  std::free(reinterpret_cast<void*>(at));
  return CUDA_SUCCESS;
}
CUresult cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  *at = std::aligned_alloc(4096, larder::RoundUp(bytes, 4096));
  const std::lock_guard lock(TheState().mu);
  TheState().registered[reinterpret_cast<uint64_t>(*at)] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* at) {
  const std::lock_guard lock(TheState().mu);
  if (TheState().registered.erase(reinterpret_cast<uint64_t>(at)) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::free(at);
  return CUDA_SUCCESS;
}
CUresult cuMemHostRegister_v2(void* at, size_t bytes, unsigned flags) {
  const bool read_only = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0;
  if (!read_only && !IsWritable(reinterpret_cast<uint64_t>(at))) return CUDA_ERROR_NOT_PERMITTED;
  const std::lock_guard lock(TheState().mu);
  TheState().registered[reinterpret_cast<uint64_t>(at)] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void* at) {
  const std::lock_guard lock(TheState().mu);
  return TheState().registered.erase(reinterpret_cast<uint64_t>(at)) == 1
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr at) {
  const std::lock_guard lock(TheState().mu);
  if (!Inside(TheState().device, at, 0)) return CUDA_ERROR_INVALID_VALUE;
  const auto& [begin, size] = *std::prev(TheState().device.upper_bound(at));
  *base = begin;
  *bytes = size;
  return CUDA_SUCCESS;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  return Copy(to, from, bytes);
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned, int) {
  const std::lock_guard lock(TheState().mu);
  *stream = static_cast<CUstream>(Make(TheState().streams));
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  const std::lock_guard lock(TheState().mu);
  TheState().streams.erase(stream);
  std::free(stream);
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }
CUresult cuEventCreate(CUevent* event, unsigned) {
  const std::lock_guard lock(TheState().mu);
  *event = static_cast<CUevent>(Make(TheState().events));
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
  const std::lock_guard lock(TheState().mu);
  TheState().events.erase(event);
  std::free(event);
  return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult cuEventQuery(CUevent) { return CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }
#if !defined(FAKE_CUDA_BROKEN)
CUresult cuLaunchHostFunc(CUstream, CUhostFn function, void* data) {
  function(data);
  return CUDA_SUCCESS;
}
#endif

CUresult cuModuleLoadData(CUmodule* module, const void*) {
  *module = reinterpret_cast<CUmodule>(1);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  using larder::MoveDirection;
  static Kernel kernels[10];
  int index = 0;
  for (const auto direction : {MoveDirection::kGather, MoveDirection::kScatter})
    for (const uint32_t access : {1u, 2u, 4u, 8u, 16u}) {
      kernels[index] = {direction, access};
      if (std::string(name) == larder::KernelName(direction, access)) {
        *function = reinterpret_cast<CUfunction>(&kernels[index]);
        return CUDA_SUCCESS;
      }
      ++index;
    }
  return CUDA_ERROR_NOT_FOUND;
}
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads,
                        unsigned, unsigned, unsigned, CUstream, void** parameters, void**) {
  if (blocks == 0 || threads != larder::kKernelThreads) return CUDA_ERROR_INVALID_VALUE;
  const auto* kernel = reinterpret_cast<const Kernel*>(function);
  larder::MoveOnHost(*static_cast<const larder::PagedMoveArgs*>(parameters[0]), kernel->direction,
                     kernel->access_bytes);
  return CUDA_SUCCESS;
}

#if !defined(FAKE_CUDA_11)

// An allocation is a memfd, and its handle is the descriptor.
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
  if (bytes > kTotalMemory) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(TheState().mu);
  TheState().allocations.insert(fd);
  *handle = static_cast<CUmemGenericAllocationHandle>(fd);
  return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(TheState().mu);
  if (TheState().allocations.erase(static_cast<int>(handle)) == 0) return CUDA_ERROR_INVALID_VALUE;
  close(static_cast<int>(handle));
  return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* at, size_t bytes, size_t, CUdeviceptr,
                             unsigned long long) {
  void* mapped = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = reinterpret_cast<CUdeviceptr>(mapped);
  return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
  munmap(reinterpret_cast<void*>(at), bytes);
  return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
  struct stat file = {};
  const int fd = static_cast<int>(handle);
  if (fstat(fd, &file) != 0 || static_cast<size_t>(file.st_size) < bytes)
    return CUDA_ERROR_INVALID_VALUE;
  void* mapped = mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(TheState().mu);
  TheState().device[at] = bytes;
  return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t) {
  const std::lock_guard lock(TheState().mu);
  return TheState().device.erase(at) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
CUresult cuMemExportToShareableHandle(void* to, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType, unsigned long long) {
  *static_cast<int*>(to) = fcntl(static_cast<int>(handle), F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* from,
                                        CUmemAllocationHandleType) {
  const int fd = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(from)), F_DUPFD_CLOEXEC, 0);
  if (fd < 0 || fcntl(fd, F_GET_SEALS) < 0) {  // only memfds have seals
    if (fd >= 0) close(fd);
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::lock_guard lock(TheState().mu);
  TheState().allocations.insert(fd);
  *handle = static_cast<CUmemGenericAllocationHandle>(fd);
  return CUDA_SUCCESS;
}

// No process gets memory by handle here, because another process's driver memory cannot be faked.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr at) {
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &at, sizeof at);
  return CUDA_SUCCESS;
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr*, CUipcMemHandle, unsigned) {
  return CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr) { return CUDA_ERROR_INVALID_VALUE; }

#undef cuMemcpyBatchAsync
#if defined(FAKE_CUDA_12)
CUresult cuMemcpyBatchAsync(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count, void*,
                            size_t*, size_t, size_t* failed, CUstream) {
  for (size_t i = 0; i < count; ++i) {
    *failed = i;
    if (const CUresult result = Copy(to[i], from[i], bytes[i]); result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}
#else
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, size_t* bytes, size_t count,
                               CUmemcpyAttributes*, size_t*, size_t, CUstream) {
  for (size_t i = 0; i < count; ++i)
    if (const CUresult result = Copy(to[i], from[i], bytes[i]); result != CUDA_SUCCESS)
      return result;
  return CUDA_SUCCESS;
}
#endif

#endif  // FAKE_CUDA_11

}  // extern "C"
