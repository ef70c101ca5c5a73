#include "bench/matrix_product.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/driver_symbols.h"
#include "storage/status_macros.h"

namespace larder::bench {
namespace {

// From cublas_v2.h, which many toolkits lack; the numbers are those of its enums.
struct Cublas {
  int (*create)(void** handle) = nullptr;
  int (*destroy)(void* handle) = nullptr;
  int (*set_stream)(void* handle, CUstream stream) = nullptr;
  int (*product)(void* handle, int transpose_a, int transpose_b, int m, int n, int k,
                 const void* alpha, const void* a, int type_a, int stride_a, const void* b,
                 int type_b, int stride_b, const void* beta, void* c, int type_c, int stride_c,
                 int compute, int algorithm) = nullptr;
};
constexpr int kNotTransposed = 0, kBf16 = 14, kCompute32 = 68, kDefaultAlgorithm = -1;

absl::StatusOr<Cublas> LoadCublas() {
  void* library = nullptr;
  for (const char* name : {"libcublas.so.13", "libcublas.so.12"})
    if (library == nullptr) library = dlopen(name, RTLD_NOW);
  if (library == nullptr) return absl::UnavailableError(absl::StrCat("no cuBLAS: ", dlerror()));
  Cublas found;
  const auto find = [library](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    return *function != nullptr;
  };
  if (!find("cublasCreate_v2", &found.create) || !find("cublasDestroy_v2", &found.destroy) ||
      !find("cublasSetStream_v2", &found.set_stream) || !find("cublasGemmEx", &found.product))
    return absl::UnavailableError("this cuBLAS lacks a function that is needed");
  return found;
}

absl::Status Blas(int status, const char* what) {
  if (status == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": cuBLAS status ", status));
}

void* At(const DeviceMemory& memory) { return reinterpret_cast<void*>(memory.address()); }

}  // namespace

struct MatrixProduct::Impl {
  Cublas blas;
  CudaSymbols driver;
  void* handle = nullptr;
  CUstream stream = nullptr;
  CUevent done = nullptr;
  std::unique_ptr<DeviceMemory> a, b, c;
};

absl::StatusOr<std::unique_ptr<MatrixProduct>> MatrixProduct::Make(Device& device) {
  auto impl = std::make_unique<Impl>();
  LARDER_ASSIGN_OR_RETURN(impl->blas, LoadCublas());
  LARDER_ASSIGN_OR_RETURN(impl->driver, CudaSymbols::Load());
  constexpr uint64_t kBytes = uint64_t{kSide} * kSide * 2;
  for (auto* memory : {&impl->a, &impl->b, &impl->c}) {
    LARDER_ASSIGN_OR_RETURN(*memory, device.Allocate(ByteCount(kBytes)));
  }
  // Random numbers near 1: products of zeros are faster than those of an engine.
  LARDER_ASSIGN_OR_RETURN(auto pinned, device.AllocatePinned(ByteCount(kBytes)));
  auto* words = reinterpret_cast<uint16_t*>(const_cast<std::byte*>(pinned->bytes().data()));
  std::minstd_rand random(1);
  for (uint64_t i = 0; i < kBytes / 2; ++i)
    words[i] = static_cast<uint16_t>(0x3F00 | (random() >> 8 & 0x80FF));
  LARDER_ASSIGN_OR_RETURN(auto queue, device.MakeQueue());
  for (const auto* memory : {&impl->a, &impl->b}) {
    const DeviceCopy copy{(*memory)->address(), reinterpret_cast<uint64_t>(words), kBytes};
    LARDER_RETURN_IF_ERROR(queue->CopyBatch(CopyDirection::kToDevice, std::span(&copy, 1)));
  }
  LARDER_RETURN_IF_ERROR(queue->Wait());
  LARDER_RETURN_IF_ERROR(Blas(impl->blas.create(&impl->handle), "cublasCreate"));
  impl->driver.cuStreamCreateWithPriority(&impl->stream, CU_STREAM_NON_BLOCKING, 0);
  impl->driver.cuEventCreate(&impl->done, CU_EVENT_DISABLE_TIMING);
  impl->blas.set_stream(impl->handle, impl->stream);
  return std::unique_ptr<MatrixProduct>(new MatrixProduct(std::move(impl)));
}

MatrixProduct::MatrixProduct(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

MatrixProduct::~MatrixProduct() {
  impl_->driver.cuStreamSynchronize(impl_->stream);
  impl_->blas.destroy(impl_->handle);
  impl_->driver.cuEventDestroy_v2(impl_->done);
  impl_->driver.cuStreamDestroy_v2(impl_->stream);
}

absl::Status MatrixProduct::Start(int count) {
  const float one = 1, zero = 0;
  for (int i = 0; i < count; ++i)
    LARDER_RETURN_IF_ERROR(
        Blas(impl_->blas.product(impl_->handle, kNotTransposed, kNotTransposed, kSide, kSide, kSide,
                                 &one, At(*impl_->a), kBf16, kSide, At(*impl_->b), kBf16, kSide,
                                 &zero, At(*impl_->c), kBf16, kSide, kCompute32, kDefaultAlgorithm),
             "cublasGemmEx"));
  return impl_->driver.StatusOf(impl_->driver.cuEventRecord(impl_->done, impl_->stream),
                                "cuEventRecord");
}

absl::StatusOr<bool> MatrixProduct::Done() {
  const CUresult result = impl_->driver.cuEventQuery(impl_->done);
  if (result == CUDA_ERROR_NOT_READY) return false;
  LARDER_RETURN_IF_ERROR(impl_->driver.StatusOf(result, "the product"));
  return true;
}

}  // namespace larder::bench
