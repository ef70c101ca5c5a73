#include "cuda/driver_symbols.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace larder {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

template <class Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

absl::StatusOr<CudaSymbols> CudaSymbols::Load() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return absl::UnavailableError(absl::StrCat(
        "no CUDA driver: ", dlerror(), "; install NVIDIA's driver, or give the container the GPU"));
  CudaSymbols symbols;
  std::vector<const char*> missing;
#define LARDER_FIND(name) \
  if (!Find(library, #name, &symbols.name)) missing.push_back(#name);
  LARDER_CUDA_REQUIRED(LARDER_FIND)
#undef LARDER_FIND
  if (!missing.empty())
    return absl::UnavailableError(absl::StrCat("the CUDA driver lacks ",
                                               absl::StrJoin(missing, ", "),
                                               "; CUDA 11.0 (driver 450) or later is needed"));
  symbols.has_descriptors = symbols.has_handles = true;
#define LARDER_FIND(name) \
  symbols.has_descriptors = Find(library, #name, &symbols.name) && symbols.has_descriptors;
  LARDER_CUDA_DESCRIPTORS(LARDER_FIND)
#undef LARDER_FIND
#define LARDER_FIND(name) \
  symbols.has_handles = Find(library, #name, &symbols.name) && symbols.has_handles;
  LARDER_CUDA_HANDLES(LARDER_FIND)
#undef LARDER_FIND
  if (!Find(library, "cuMemcpyBatchAsync_v2", &symbols.batch_copy))
    (void)Find(library, "cuMemcpyBatchAsync", &symbols.batch_copy_12);
  return symbols;
}

absl::Status CudaSymbols::StatusOf(CUresult result, const char* what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* words = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &words);
  const std::string text =
      absl::StrCat(what, ": ", words != nullptr ? words : "no description", " (",
                   name != nullptr ? name : "unknown", ", ", static_cast<int>(result), ")");
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::ResourceExhaustedError(text);
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
      return absl::InvalidArgumentError(text);
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace larder
