#include "cuda/cuda_queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cuda/cuda_memory.h"
#include "cuda/paged_plan.h"
#include "storage/clock.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

constexpr ByteCount kStagingBytes = MiB(8);
constexpr size_t kTableSlots = 4;
constexpr size_t kTableWords = 64 << 10;  // 64-bit words in one slot

class CudaEvent : public DeviceEvent {
 public:
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Make(std::shared_ptr<CudaContext> cuda) {
    const CudaContext::Scope scope(*cuda);
    CUevent event = nullptr;
    LARDER_RETURN_IF_ERROR(cuda->StatusOf(
        cuda->driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    return std::unique_ptr<CudaEvent>(new CudaEvent(std::move(cuda), event));
  }
  ~CudaEvent() override {
    const CudaContext::Scope scope(*cuda_);
    cuda_->driver().cuEventDestroy_v2(event_);
  }
  [[nodiscard]] absl::StatusOr<bool> Done() const override {
    const CudaContext::Scope scope(*cuda_);
    const CUresult result = cuda_->driver().cuEventQuery(event_);
    if (result == CUDA_ERROR_NOT_READY) return false;
    LARDER_RETURN_IF_ERROR(cuda_->StatusOf(result, "the device's work"));
    return true;
  }
  // The driver has no wait with a deadline, so this polls, with growing pauses of 2 to 200 us.
  [[nodiscard]] absl::Status Wait(std::chrono::steady_clock::time_point deadline) const override {
    for (auto pause = std::chrono::microseconds(2);;
         pause = std::min(pause * 2, std::chrono::microseconds(200))) {
      LARDER_ASSIGN_OR_RETURN(const bool done, Done());
      if (done) return absl::OkStatus();
      if (SteadyNow() >= deadline)
        return absl::DeadlineExceededError(
            "the work before this event was not done by the deadline");
      std::this_thread::sleep_for(pause);
    }
  }
  [[nodiscard]] CUevent get() const { return event_; }

 private:
  CudaEvent(std::shared_ptr<CudaContext> cuda, CUevent event)
      : cuda_(std::move(cuda)), event_(event) {}
  const std::shared_ptr<CudaContext> cuda_;
  const CUevent event_;
};

// The tables of kernel launches (PagedMoveArgs), in host memory and on the device, in slots that
// are used in turn.
class TableRing {
 public:
  static absl::StatusOr<std::unique_ptr<TableRing>> Make(const std::shared_ptr<CudaContext>& cuda) {
    const ByteCount bytes(kTableSlots * kTableWords * sizeof(uint64_t));
    LARDER_ASSIGN_OR_RETURN(auto host, AllocateCudaPinned(cuda, bytes));
    LARDER_ASSIGN_OR_RETURN(auto device, AllocateCudaMemory(cuda, bytes, SharePath::kNone));
    std::unique_ptr<TableRing> ring(new TableRing);
    ring->host_ = std::move(host);
    ring->device_ = std::move(device);
    for (std::unique_ptr<CudaEvent>& used : ring->used_) {
      LARDER_ASSIGN_OR_RETURN(used, CudaEvent::Make(cuda));
    }
    return ring;
  }

  struct Slot {
    std::span<uint64_t> host;
    uint64_t device = 0;
    const CudaEvent* used = nullptr;  // the caller records it after the launch
  };
  // Returns the next slot, once the launch that used it before is done.
  [[nodiscard]] absl::StatusOr<Slot> Next(const CudaContext& cuda) {
    const size_t slot = next_++ % kTableSlots;
    LARDER_RETURN_IF_ERROR(
        cuda.StatusOf(cuda.driver().cuEventSynchronize(used_[slot]->get()), "the device's work"));
    const size_t first = slot * kTableWords;
    auto* words = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(host_->bytes().data()));
    return Slot{{words + first, kTableWords},
                device_->address() + first * sizeof(uint64_t),
                used_[slot].get()};
  }

 private:
  TableRing() = default;
  std::unique_ptr<PinnedMemory> host_;
  std::unique_ptr<DeviceMemory> device_;
  std::array<std::unique_ptr<CudaEvent>, kTableSlots> used_;
  size_t next_ = 0;
};

// The argument of RunStagedCopy, a host function that the driver calls in the order of a stream.
// RunStagedCopy deletes the argument.
struct StagedCopy {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};
void CUDA_CB RunStagedCopy(void* data) {
  const std::unique_ptr<StagedCopy> copy(static_cast<StagedCopy*>(data));
  std::memcpy(copy->to, copy->from, copy->bytes);
}

class CudaQueue : public DeviceQueue {
 public:
  CudaQueue(std::shared_ptr<CudaContext> cuda, CUstream stream, bool owned)
      : cuda_(std::move(cuda)), stream_(stream), owned_(owned) {}
  ~CudaQueue() override {
    const CudaContext::Scope scope(*cuda_);
    driver().cuStreamSynchronize(stream_);
    if (owned_) driver().cuStreamDestroy_v2(stream_);
  }

  [[nodiscard]] absl::Status CopyBatch(CopyDirection direction,
                                       std::span<const DeviceCopy> copies) override {
    LARDER_RETURN_IF_ERROR(broken_);
    const CudaContext::Scope scope(*cuda_);
    Clear();
    for (const DeviceCopy& copy : copies) {
      if (copy.bytes == 0) continue;
      LARDER_RETURN_IF_ERROR(Sort(direction, copy));
    }
    cuda_->counters().copies += copies.size();
    for (const StagedPart& part : staged_) LARDER_RETURN_IF_ERROR(CopyStaged(part));
    return CopyDirect();
  }
  [[nodiscard]] absl::Status Gather(const PagedPlan& plan, const PagedMove& move) override {
    return Move(plan, move, MoveDirection::kGather);
  }
  [[nodiscard]] absl::Status Scatter(const PagedPlan& plan, const PagedMove& move) override {
    return Move(plan, move, MoveDirection::kScatter);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() override {
    LARDER_ASSIGN_OR_RETURN(auto event, CudaEvent::Make(cuda_));
    LARDER_RETURN_IF_ERROR(RecordInto(*event));
    return event;
  }
  [[nodiscard]] absl::Status WaitFor(const DeviceEvent& event) override {
    const CudaContext::Scope scope(*cuda_);
    return Check(driver().cuStreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).get(), 0),
                 "cuStreamWaitEvent");
  }
  [[nodiscard]] absl::Status Wait() override {
    const CudaContext::Scope scope(*cuda_);
    return Check(driver().cuStreamSynchronize(stream_), "the device's work");
  }

 private:
  struct StagedPart {
    bool to_device = false;
    uint64_t host = 0, device = 0, bytes = 0;
  };

  [[nodiscard]] const CudaSymbols& driver() const { return cuda_->driver(); }
  [[nodiscard]] absl::Status Check(CUresult result, const char* what) const {
    return cuda_->StatusOf(result, what);
  }
  [[nodiscard]] absl::Status RecordInto(const CudaEvent& event) const {
    const CudaContext::Scope scope(*cuda_);
    return Check(driver().cuEventRecord(event.get(), stream_), "cuEventRecord");
  }

  void Clear() {
    to_.clear();
    from_.clear();
    bytes_.clear();
    staged_.clear();
  }
  void AddDirect(uint64_t to, uint64_t from, uint64_t bytes) {
    to_.push_back(to);
    from_.push_back(from);
    bytes_.push_back(bytes);
  }
  // Splits a copy into parts that the device can copy directly and parts for CopyStaged.
  absl::Status Sort(CopyDirection direction, const DeviceCopy& copy) {
    if (direction == CopyDirection::kWithin) {
      AddDirect(copy.to, copy.from, copy.bytes);
      cuda_->counters().within += copy.bytes;
      return absl::OkStatus();
    }
    const bool to_device = direction == CopyDirection::kToDevice;
    const uint64_t host = to_device ? copy.from : copy.to;
    const uint64_t device = to_device ? copy.to : copy.from;
    parts_.clear();
    LARDER_RETURN_IF_ERROR(cuda_->pins().Split(host, copy.bytes, /*written=*/!to_device, &parts_));
    for (const PinRegistry::Part& part : parts_) {
      const uint64_t at = device + (part.begin - host);
      if (!part.direct) {
        staged_.push_back({to_device, part.begin, at, part.bytes});
      } else if (to_device) {
        AddDirect(at, part.begin, part.bytes);
      } else {
        AddDirect(part.begin, at, part.bytes);
      }
      (part.direct ? cuda_->counters().direct : cuda_->counters().staged) += part.bytes;
    }
    return absl::OkStatus();
  }

  absl::Status CopyDirect() {
    const size_t count = to_.size();
#if CUDA_VERSION >= 12080
    // The driver accepts no batches on the legacy default stream.
    const bool batches = driver().batch_copy != nullptr || driver().batch_copy_12 != nullptr;
    if (count > 1 && stream_ != nullptr && batches) return CopyAsBatch();
#endif
    for (size_t i = 0; i < count; ++i)
      LARDER_RETURN_IF_ERROR(
          Check(driver().cuMemcpyAsync(to_[i], from_[i], bytes_[i], stream_), "cuMemcpyAsync"));
    cuda_->counters().copy_calls += count;
    return absl::OkStatus();
  }
#if CUDA_VERSION >= 12080
  absl::Status CopyAsBatch() {
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes.flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    size_t first = 0, failed = 0;
    ++cuda_->counters().copy_calls;
    if (driver().batch_copy != nullptr)
      return Check(driver().batch_copy(to_.data(), from_.data(), bytes_.data(), to_.size(),
                                       &attributes, &first, 1, stream_),
                   "cuMemcpyBatchAsync");
    return Check(driver().batch_copy_12(to_.data(), from_.data(), bytes_.data(), to_.size(),
                                        &attributes, &first, 1, &failed, stream_),
                 "cuMemcpyBatchAsync");
  }
#endif

  // Copies through one pinned buffer, in the order of the stream.  In each step a thread of the
  // driver copies between the caller's memory and the buffer, and a copy engine between the buffer
  // and the device.
  absl::Status CopyStaged(const StagedPart& part) {
    if (staging_ == nullptr) {
      LARDER_ASSIGN_OR_RETURN(staging_, AllocateCudaPinned(cuda_, kStagingBytes));
    }
    auto* const buffer = const_cast<std::byte*>(staging_->bytes().data());
    const auto buffer_at = reinterpret_cast<uint64_t>(buffer);
    for (uint64_t done = 0; done < part.bytes;) {
      const uint64_t bytes = std::min(part.bytes - done, kStagingBytes.value());
      auto* const host = reinterpret_cast<std::byte*>(part.host + done);
      const uint64_t device = part.device + done;
      if (part.to_device) {
        LARDER_RETURN_IF_ERROR(CopyOnHost({buffer, host, bytes}));
        LARDER_RETURN_IF_ERROR(CopyOne(device, buffer_at, bytes));
      } else {
        LARDER_RETURN_IF_ERROR(CopyOne(buffer_at, device, bytes));
        LARDER_RETURN_IF_ERROR(CopyOnHost({host, buffer, bytes}));
      }
      done += bytes;
    }
    return absl::OkStatus();
  }
  absl::Status CopyOne(uint64_t to, uint64_t from, uint64_t bytes) {
    ++cuda_->counters().copy_calls;
    return Check(driver().cuMemcpyAsync(to, from, bytes, stream_), "cuMemcpyAsync");
  }
  absl::Status CopyOnHost(const StagedCopy& copy) {
    auto data = std::make_unique<StagedCopy>(copy);
    const absl::Status ok =
        Check(driver().cuLaunchHostFunc(stream_, &RunStagedCopy, data.get()), "cuLaunchHostFunc");
    if (ok.ok()) (void)data.release();
    return ok;
  }

  absl::Status Move(const PagedPlan& plan, const PagedMove& move, MoveDirection direction) {
    LARDER_RETURN_IF_ERROR(broken_);
    LARDER_RETURN_IF_ERROR(plan.Check(move.layers, move.blocks));
    LARDER_ASSIGN_OR_RETURN(const CUfunction kernel, cuda_->Kernel(direction, plan.access_bytes()));
    const CudaContext::Scope scope(*cuda_);
    if (tables_ == nullptr) {
      LARDER_ASSIGN_OR_RETURN(tables_, TableRing::Make(cuda_));
    }
    const size_t blocks_max = MoveBlocksMax(plan, move.layers, kTableWords);
    if (blocks_max == 0)
      return absl::InvalidArgumentError("one block is too large for a kernel launch");
    for (std::span left = move.blocks; !left.empty();) {
      const auto blocks = left.first(std::min(left.size(), blocks_max));
      LARDER_RETURN_IF_ERROR(Launch(kernel, plan, move, blocks));
      left = left.subspan(blocks.size());
    }
    cuda_->counters().moved += plan.BytesPerBlock(move.layers).value() * move.blocks.size();
    return absl::OkStatus();
  }
  absl::Status Launch(CUfunction kernel, const PagedPlan& plan, const PagedMove& move,
                      std::span<const PagedBlock> blocks) {
    LARDER_ASSIGN_OR_RETURN(const TableRing::Slot slot, tables_->Next(*cuda_));
    const auto words = slot.host.first(MoveTableWords(plan, move.layers, blocks.size()));
    PagedMoveArgs args = FillMoveTables(plan, move.layers, blocks, words, slot.device);
    LARDER_RETURN_IF_ERROR(
        Check(driver().cuMemcpyAsync(slot.device, reinterpret_cast<uint64_t>(words.data()),
                                     words.size_bytes(), stream_),
              "cuMemcpyAsync"));
    void* parameters[] = {&args};
    LARDER_RETURN_IF_ERROR(
        Check(driver().cuLaunchKernel(kernel, Grid(args, move), 1, 1, kKernelThreads, 1, 1, 0,
                                      stream_, parameters, nullptr),
              "cuLaunchKernel"));
    ++cuda_->counters().launches;
    const absl::Status recorded = RecordInto(*slot.used);
    if (!recorded.ok()) {
      // Without the event no later launch can know when the slot's tables may be overwritten.
      (void)driver().cuStreamSynchronize(stream_);
      broken_ = recorded;
    }
    return recorded;
  }
  // Returns the number of blocks of the grid.  If the move limits the multiprocessors, each such
  // block counts as a whole multiprocessor, since it may run on one of its own; otherwise there are
  // at most two blocks per multiprocessor.
  [[nodiscard]] unsigned Grid(const PagedMoveArgs& args, const PagedMove& move) const {
    constexpr uint32_t kWarps = kKernelThreads / kWarpLanes;
    const uint32_t useful = (args.pieces + kWarps - 1) / kWarps;
    const uint32_t all = cuda_->info().multiprocessors;
    const uint32_t wanted =
        move.multiprocessors == 0 ? 2 * all : std::min(move.multiprocessors, all);
    return std::max(1u, std::min(useful, wanted));
  }

  const std::shared_ptr<CudaContext> cuda_;
  const CUstream stream_;
  const bool owned_;
  absl::Status broken_;                    // if not OK: what CopyBatch and moves return
  std::unique_ptr<TableRing> tables_;      // made by the first move
  std::unique_ptr<PinnedMemory> staging_;  // made by the first copy that needs it
  // The parts of the batch that CopyBatch is enqueuing.  The vectors are kept between calls so that
  // their memory is reused.
  std::vector<CUdeviceptr> to_, from_;
  std::vector<size_t> bytes_;
  std::vector<PinRegistry::Part> parts_;
  std::vector<StagedPart> staged_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeCudaQueue(std::shared_ptr<CudaContext> cuda,
                                                           bool low_priority) {
  const CudaContext::Scope scope(*cuda);
  int least = 0, greatest = 0;
  LARDER_RETURN_IF_ERROR(
      cuda->StatusOf(cuda->driver().cuCtxGetStreamPriorityRange(&least, &greatest),
                     "cuCtxGetStreamPriorityRange"));
  CUstream stream = nullptr;
  LARDER_RETURN_IF_ERROR(
      cuda->StatusOf(cuda->driver().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING,
                                                               low_priority ? least : greatest),
                     "cuStreamCreateWithPriority"));
  return std::make_unique<CudaQueue>(std::move(cuda), stream, /*owned=*/true);
}

absl::StatusOr<std::unique_ptr<DeviceQueue>> AdoptCudaQueue(std::shared_ptr<CudaContext> cuda,
                                                            CUstream stream) {
  return std::make_unique<CudaQueue>(std::move(cuda), stream, /*owned=*/false);
}

}  // namespace larder
