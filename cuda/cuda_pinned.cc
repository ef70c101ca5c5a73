// Memory of the process that a CUDA device may access (cuda_memory.h): memory that the driver
// allocates, and memory of the caller.
#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/cuda_memory.h"
#include "storage/check.h"
#include "storage/mutex.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

class AllocatedPinned : public PinnedMemory {
 public:
  AllocatedPinned(std::shared_ptr<CudaContext> cuda, void* at, ByteCount bytes)
      : cuda_(std::move(cuda)), bytes_(static_cast<std::byte*>(at), bytes.value()) {
    const absl::Status added =
        cuda_->pins().Add(begin(), bytes_.size(), bytes_.size(), PinAccess::kReadWrite);
    LARDER_CHECK(added.ok());  // the driver has just allocated it, so no known range overlaps it
    cuda_->pins().Set(begin(), 0, PieceState::kRegistered);
  }
  ~AllocatedPinned() override {
    cuda_->pins().Remove(begin());
    const CudaContext::Scope scope(*cuda_);
    cuda_->driver().cuMemFreeHost(bytes_.data());
  }
  [[nodiscard]] std::span<const std::byte> bytes() const override { return bytes_; }
  [[nodiscard]] PinPath path() const override { return PinPath::kRegistered; }
  [[nodiscard]] ByteCount registered() const override { return ByteCount(bytes_.size()); }
  [[nodiscard]] std::string refusal() const override { return {}; }
  void WaitDecided() override {}

 private:
  [[nodiscard]] uint64_t begin() const { return reinterpret_cast<uint64_t>(bytes_.data()); }
  const std::shared_ptr<CudaContext> cuda_;
  const std::span<std::byte> bytes_;
};

// Memory of the caller.  This object registers the memory, piece by piece, on threads of its own.
class RegisteredPinned : public PinnedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedMemory>> Make(std::shared_ptr<CudaContext> cuda,
                                                            std::span<const std::byte> bytes,
                                                            const PinOptions& options) {
    const uint64_t piece_bytes = RoundUp(options.piece_bytes.value(), kPageBytes);
    LARDER_RETURN_IF_ERROR(cuda->pins().Add(reinterpret_cast<uint64_t>(bytes.data()), bytes.size(),
                                            piece_bytes, options.access));
    return std::make_unique<RegisteredPinned>(std::move(cuda), bytes, options);
  }
  // REQUIRES: `bytes` was added to the context's pins.
  RegisteredPinned(std::shared_ptr<CudaContext> cuda, std::span<const std::byte> bytes,
                   const PinOptions& options)
      : cuda_(std::move(cuda)),
        bytes_(bytes),
        piece_bytes_(RoundUp(options.piece_bytes.value(), kPageBytes)),
        pieces_((bytes.size() + piece_bytes_ - 1) / piece_bytes_),
        read_only_(options.access == PinAccess::kRead),
        states_(pieces_, PieceState::kPending) {
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { RegisterPieces(); });
  }
  ~RegisteredPinned() override {
    ending_ = true;
    for (std::thread& thread : threads_) thread.join();
    cuda_->pins().Remove(begin());
    const CudaContext::Scope scope(*cuda_);
    for (size_t piece = 0; piece < pieces_; ++piece) {
      const PieceState state = StateOf(piece);
      if (state == PieceState::kRegistered || state == PieceState::kReadOnly)
        cuda_->driver().cuMemHostUnregister(PieceAt(piece));
    }
  }
  [[nodiscard]] std::span<const std::byte> bytes() const override { return bytes_; }
  [[nodiscard]] PinPath path() const override {
    MutexLock lock(mu_);
    bool read_only = false, refused = false;
    for (const PieceState state : states_) {
      if (state == PieceState::kPending) return PinPath::kPending;
      read_only |= state == PieceState::kReadOnly;
      refused |= state == PieceState::kRefused;
    }
    if (refused) return PinPath::kStaged;
    return read_only ? PinPath::kReadOnly : PinPath::kRegistered;
  }
  [[nodiscard]] ByteCount registered() const override {
    MutexLock lock(mu_);
    uint64_t sum = 0;
    for (size_t piece = 0; piece < pieces_; ++piece)
      if (states_[piece] == PieceState::kRegistered || states_[piece] == PieceState::kReadOnly)
        sum += PieceBytes(piece);
    return ByteCount(sum);
  }
  [[nodiscard]] std::string refusal() const override {
    MutexLock lock(mu_);
    return refusal_;
  }
  void WaitDecided() override {
    MutexLock lock(mu_);
    while (decided_ < pieces_) changed_.Wait(mu_);
  }

 private:
  [[nodiscard]] uint64_t begin() const { return reinterpret_cast<uint64_t>(bytes_.data()); }
  [[nodiscard]] void* PieceAt(size_t piece) const {
    return const_cast<std::byte*>(bytes_.data() + piece * piece_bytes_);
  }
  [[nodiscard]] size_t PieceBytes(size_t piece) const {
    return std::min<size_t>(piece_bytes_, bytes_.size() - piece * piece_bytes_);
  }
  [[nodiscard]] PieceState StateOf(size_t piece) const {
    MutexLock lock(mu_);
    return states_[piece];
  }

  void RegisterPieces() {
    const CudaContext::Scope scope(*cuda_);
    for (size_t piece = next_++; piece < pieces_ && !ending_; piece = next_++) {
      absl::Status why;
      const PieceState state = Register(piece, &why);
      cuda_->pins().Set(begin(), piece, state);
      MutexLock lock(mu_);
      states_[piece] = state;
      if (!why.ok()) refusal_ = std::string(why.message());
      ++decided_;
      changed_.NotifyAll();
    }
  }
  // Registers a piece.  If the memory has PinAccess::kRead, and the device supports it, tries a
  // read-only registration first.  Otherwise, or if that fails, tries a plain one, which may need
  // memory that is mapped writable.
  PieceState Register(size_t piece, absl::Status* why) {
    if (read_only_ && cuda_->pins_read_only() &&
        Register(piece, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY).ok())
      return PieceState::kReadOnly;
    *why = Register(piece, CU_MEMHOSTREGISTER_PORTABLE);
    return why->ok() ? PieceState::kRegistered : PieceState::kRefused;
  }
  absl::Status Register(size_t piece, unsigned flags) {
    return cuda_->StatusOf(
        cuda_->driver().cuMemHostRegister_v2(PieceAt(piece), PieceBytes(piece), flags),
        "cuMemHostRegister");
  }

  const std::shared_ptr<CudaContext> cuda_;
  const std::span<const std::byte> bytes_;
  const uint64_t piece_bytes_;
  const size_t pieces_;
  const bool read_only_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> ending_{false};
  mutable Mutex mu_;
  std::vector<PieceState> states_ LARDER_GUARDED_BY(mu_);
  size_t decided_ LARDER_GUARDED_BY(mu_) = 0;
  std::string refusal_ LARDER_GUARDED_BY(mu_);
  CondVar changed_;
  std::vector<std::thread> threads_;  // last: the threads use the members above
};

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocateCudaPinned(std::shared_ptr<CudaContext> cuda,
                                                                 ByteCount bytes) {
  if (bytes.value() == 0) return absl::InvalidArgumentError("the size of the memory is 0 bytes");
  const CudaContext::Scope scope(*cuda);
  void* at = nullptr;
  LARDER_RETURN_IF_ERROR(
      cuda->StatusOf(cuda->driver().cuMemHostAlloc(&at, bytes.value(), CU_MEMHOSTALLOC_PORTABLE),
                     "cuMemHostAlloc"));
  return std::make_unique<AllocatedPinned>(std::move(cuda), at, bytes);
}

absl::StatusOr<std::unique_ptr<PinnedMemory>> PinForCuda(std::shared_ptr<CudaContext> cuda,
                                                         std::span<const std::byte> memory,
                                                         const PinOptions& options) {
  if (memory.empty() || reinterpret_cast<uint64_t>(memory.data()) % kPageBytes != 0)
    return absl::InvalidArgumentError(
        "pinned memory must begin at a page of 4096 bytes and must not be empty");
  if (options.threads <= 0 || options.piece_bytes.value() == 0)
    return absl::InvalidArgumentError(
        "pinning needs at least one thread and pieces of at least one byte");
  return RegisteredPinned::Make(std::move(cuda), memory, options);
}

}  // namespace larder
