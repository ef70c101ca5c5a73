#include "cuda/host_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cuda/gather_scatter.h"
#include "cuda/host_work.h"
#include "cuda/paged_plan.h"
#include "cuda/pin_registry.h"
#include "storage/status_macros.h"

namespace larder {
namespace {

std::byte* At(uint64_t address) { return reinterpret_cast<std::byte*>(address); }
uint64_t AddressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

ByteCount MemoryOfHost() {
  return ByteCount(static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * kPageBytes);
}

absl::Status FromErrno(const char* what) {
  return absl::InternalError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// A mapping of an anonymous file, so that another process can map it too.
class HostMemory : public DeviceMemory {
 public:
  static absl::StatusOr<std::unique_ptr<HostMemory>> Make(ByteCount bytes, SharePath share) {
    const int fd = memfd_create("larder-device", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return FromErrno("memfd_create");
    std::unique_ptr<HostMemory> memory(new HostMemory(fd, bytes, share));
    if (ftruncate(fd, static_cast<off_t>(bytes.value())) != 0)
      return absl::ResourceExhaustedError(
          absl::StrCat("a memfd of ", bytes.value(), " bytes: ", std::strerror(errno)));
    // A process that imports the memory must not get a SIGBUS because the file shrank.
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) return FromErrno("F_ADD_SEALS");
    LARDER_RETURN_IF_ERROR(memory->Map());
    return memory;
  }
  static absl::StatusOr<std::unique_ptr<HostMemory>> Of(int descriptor, ByteCount bytes) {
    const int fd = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return absl::InvalidArgumentError("the exported descriptor is not open");
    std::unique_ptr<HostMemory> memory(new HostMemory(fd, bytes, SharePath::kDescriptor));
    if (const int seals = fcntl(fd, F_GET_SEALS); seals < 0 || (seals & F_SEAL_SHRINK) == 0)
      return absl::InvalidArgumentError(
          "the exported descriptor is not a memfd that is sealed against shrinking");
    const off_t size = lseek(fd, 0, SEEK_END);
    if (size < 0 || static_cast<uint64_t>(size) < bytes.value())
      return absl::InvalidArgumentError("the exported memory is smaller than its export says");
    LARDER_RETURN_IF_ERROR(memory->Map());
    return memory;
  }
  ~HostMemory() override {
    if (address_ != nullptr) munmap(address_, bytes_.value());
    close(fd_);
  }
  [[nodiscard]] uint64_t address() const override { return AddressOf(address_); }
  [[nodiscard]] ByteCount bytes() const override { return bytes_; }
  [[nodiscard]] SharePath share() const override { return share_; }
  [[nodiscard]] int descriptor() const { return fd_; }

 private:
  HostMemory(int fd, ByteCount bytes, SharePath share) : fd_(fd), bytes_(bytes), share_(share) {}
  absl::Status Map() {
    void* at = mmap(nullptr, bytes_.value(), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (at == MAP_FAILED) return FromErrno("mmap");
    address_ = at;
    return absl::OkStatus();
  }

  const int fd_;
  const ByteCount bytes_;
  const SharePath share_;
  void* address_ = nullptr;
};

// Memory of the process.  It counts as registered (with PinAccess::kRead as registered read-only)
// from the beginning, because the "device" is the processor, and no driver has to register
// anything.
class HostPinned : public PinnedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedMemory>> Make(
      PinRegistry* pins, std::span<const std::byte> bytes, PinAccess access,
      std::unique_ptr<HostMemory> memory = nullptr) {
    LARDER_RETURN_IF_ERROR(pins->Add(AddressOf(bytes.data()), bytes.size(), bytes.size(), access));
    pins->Set(AddressOf(bytes.data()), 0,
              access == PinAccess::kRead ? PieceState::kReadOnly : PieceState::kRegistered);
    return std::unique_ptr<PinnedMemory>(new HostPinned(pins, bytes, access, std::move(memory)));
  }
  ~HostPinned() override { pins_->Remove(AddressOf(bytes_.data())); }
  [[nodiscard]] std::span<const std::byte> bytes() const override { return bytes_; }
  [[nodiscard]] PinPath path() const override {
    return access_ == PinAccess::kRead ? PinPath::kReadOnly : PinPath::kRegistered;
  }
  [[nodiscard]] ByteCount registered() const override { return ByteCount(bytes_.size()); }
  [[nodiscard]] std::string refusal() const override { return {}; }
  void WaitDecided() override {}

 private:
  HostPinned(PinRegistry* pins, std::span<const std::byte> bytes, PinAccess access,
             std::unique_ptr<HostMemory> memory)
      : pins_(pins), bytes_(bytes), access_(access), memory_(std::move(memory)) {}

  PinRegistry* const pins_;
  const std::span<const std::byte> bytes_;
  const PinAccess access_;
  const std::unique_ptr<HostMemory> memory_;  // null if the caller owns the memory
};

class HostEvent : public DeviceEvent {
 public:
  // The event comes after all work that was added before the call.
  explicit HostEvent(std::shared_ptr<HostWork> work)
      : work_(std::move(work)), count_(work_->added()) {}
  [[nodiscard]] absl::StatusOr<bool> Done() const override { return work_->Done(count_); }
  [[nodiscard]] absl::Status Wait(std::chrono::steady_clock::time_point deadline) const override {
    if (work_->Wait(count_, deadline)) return absl::OkStatus();
    return absl::DeadlineExceededError("the work before this event was not done by the deadline");
  }

 private:
  const std::shared_ptr<HostWork> work_;
  const uint64_t count_;  // items of work_ that come before the event
};

// What a device and its queues share.
struct HostShared {
  PinRegistry pins;
  std::atomic<uint64_t> copies{0}, copy_calls{0}, direct{0}, within{0}, moved{0}, launches{0},
      imports{0};
};

class HostQueue : public DeviceQueue {
 public:
  explicit HostQueue(HostShared* shared)
      : shared_(shared), thread_([work = work_] { work->Run(); }) {}
  ~HostQueue() override {
    work_->End();
    thread_.join();
  }

  [[nodiscard]] absl::Status CopyBatch(CopyDirection direction,
                                       std::span<const DeviceCopy> copies) override {
    LARDER_RETURN_IF_ERROR(CheckPinned(direction, copies));
    uint64_t bytes = 0;
    for (const DeviceCopy& copy : copies) bytes += copy.bytes;
    shared_->copies += copies.size();
    ++shared_->copy_calls;
    (direction == CopyDirection::kWithin ? shared_->within : shared_->direct) += bytes;
    work_->Add(copies);
    return absl::OkStatus();
  }
  [[nodiscard]] absl::Status Gather(const PagedPlan& plan, const PagedMove& move) override {
    return Move(plan, move, MoveDirection::kGather);
  }
  [[nodiscard]] absl::Status Scatter(const PagedPlan& plan, const PagedMove& move) override {
    return Move(plan, move, MoveDirection::kScatter);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() override {
    return std::make_unique<HostEvent>(work_);
  }
  [[nodiscard]] absl::Status WaitFor(const DeviceEvent& event) override {
    work_->Add([before = static_cast<const HostEvent&>(event)] {
      (void)before.Wait(std::chrono::steady_clock::time_point::max());
    });
    return absl::OkStatus();
  }
  [[nodiscard]] absl::Status Wait() override {
    return HostEvent(work_).Wait(std::chrono::steady_clock::time_point::max());
  }

 private:
  [[nodiscard]] absl::Status CheckPinned(CopyDirection direction,
                                         std::span<const DeviceCopy> copies) const {
    if (direction == CopyDirection::kWithin) return absl::OkStatus();
    const bool to_device = direction == CopyDirection::kToDevice;
    std::vector<PinRegistry::Part> parts;
    for (const DeviceCopy& copy : copies) {
      parts.clear();
      if (copy.bytes != 0)
        LARDER_RETURN_IF_ERROR(
            shared_->pins.Split(to_device ? copy.from : copy.to, copy.bytes, !to_device, &parts));
    }
    return absl::OkStatus();
  }
  absl::Status Move(const PagedPlan& plan, const PagedMove& move, MoveDirection direction) {
    LARDER_RETURN_IF_ERROR(plan.Check(move.layers, move.blocks));
    if (move.blocks.empty()) return absl::OkStatus();
    std::vector<uint64_t> tables(MoveTableWords(plan, move.layers, move.blocks.size()));
    if (MoveBlocksMax(plan, move.layers, tables.size()) < move.blocks.size())
      return absl::InvalidArgumentError("too many blocks for one launch");
    const PagedMoveArgs args =
        FillMoveTables(plan, move.layers, move.blocks, tables, AddressOf(tables.data()));
    ++shared_->launches;
    shared_->moved += plan.BytesPerBlock(move.layers).value() * move.blocks.size();
    work_->Add([args, direction, access = plan.access_bytes(), tables = std::move(tables)] {
      MoveOnHost(args, direction, access);
    });
    return absl::OkStatus();
  }

  HostShared* const shared_;
  const std::shared_ptr<HostWork> work_ = std::make_shared<HostWork>();
  std::thread thread_;
};

class HostDevice : public Device {
 public:
  HostDevice(DeviceWish wish, std::string reason) {
    info_.kind = DeviceKind::kHost;
    info_.wish = wish;
    info_.reason = std::move(reason);
    info_.name = "memory of the process";
    info_.memory = MemoryOfHost();
    info_.limits.push_back("no GPU: copies and moves are done by threads of the process");
  }
  [[nodiscard]] const DeviceInfo& info() const override { return info_; }
  [[nodiscard]] DeviceStats stats() const override {
    DeviceStats stats;
    stats.copies = shared_.copies;
    stats.copy_calls = shared_.copy_calls;
    stats.bytes_direct = ByteCount(shared_.direct);
    stats.bytes_within = ByteCount(shared_.within);
    stats.bytes_moved = ByteCount(shared_.moved);
    stats.launches = shared_.launches;
    stats.imports[0] = shared_.imports;
    shared_.pins.Tell(&stats);
    return stats;
  }

  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(ByteCount bytes,
                                                                       SharePath share) override {
    if (bytes.value() == 0) return absl::InvalidArgumentError("the size of the memory is 0 bytes");
    if (bytes > MemoryOfHost())
      return absl::ResourceExhaustedError(
          absl::StrCat("this machine has ", MemoryOfHost().value(), " bytes of memory"));
    if (share == SharePath::kHandle)
      return absl::UnavailableError("the host device shares by descriptor only");
    LARDER_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory, HostMemory::Make(bytes, share));
    // Filled, because new memory of a GPU need not be zero: code that relies on zeros must fail
    // here too.
    std::memset(At(memory->address()), 0xA5, bytes.value());
    return memory;
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<PinnedMemory>> AllocatePinned(
      ByteCount bytes) override {
    if (bytes.value() == 0) return absl::InvalidArgumentError("the size of the memory is 0 bytes");
    LARDER_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> memory,
                            HostMemory::Make(bytes, SharePath::kNone));
    const std::span at(At(memory->address()), bytes.value());
    return HostPinned::Make(&shared_.pins, at, PinAccess::kReadWrite, std::move(memory));
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<PinnedMemory>> Pin(
      std::span<const std::byte> memory, const PinOptions& options) override {
    if (memory.empty() || AddressOf(memory.data()) % kPageBytes != 0)
      return absl::InvalidArgumentError(
          "pinned memory must begin at a page of 4096 bytes and must not be empty");
    return HostPinned::Make(&shared_.pins, memory, options.access);
  }

  [[nodiscard]] absl::StatusOr<DeviceExport> Export(const DeviceMemory& memory) override {
    if (memory.share() != SharePath::kDescriptor)
      return absl::FailedPreconditionError("this memory was not allocated to be shared");
    DeviceExport exported(SharePath::kDescriptor, memory.bytes());
    exported.descriptor =
        fcntl(static_cast<const HostMemory&>(memory).descriptor(), F_DUPFD_CLOEXEC, 0);
    if (exported.descriptor < 0) return FromErrno("dup");
    return exported;
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceMemory>> Import(
      const DeviceExport& exported) override {
    if (exported.path != SharePath::kDescriptor)
      return absl::UnavailableError("the host device imports by descriptor only");
    if (exported.bytes.value() == 0)
      return absl::InvalidArgumentError("the size of the memory is 0 bytes");
    ++shared_.imports;
    return HostMemory::Of(exported.descriptor, exported.bytes);
  }

  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceQueue>> MakeQueue(bool) override {
    return std::make_unique<HostQueue>(&shared_);
  }
  [[nodiscard]] absl::StatusOr<std::unique_ptr<DeviceQueue>> AdoptQueue(uint64_t) override {
    return absl::UnavailableError(
        "the host device cannot adopt a queue: it has only those that it makes");
  }

 private:
  DeviceInfo info_;
  HostShared shared_;
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice(DeviceWish wish, std::string reason) {
  return std::make_unique<HostDevice>(wish, std::move(reason));
}

}  // namespace larder
